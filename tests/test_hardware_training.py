"""Runs on hardware: their settings, that they go on to the same bits, and what a meter says of them."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from ffebm import Converter, Drift, Hardware, Levels, Mismatch, PhaseChange, Pulses, ReadNoise, WireResistance, load
from ffebm.experiment.architectures import build_hardware, build_pulses
from ffebm.experiment.benchmark.command import parse
from ffebm.experiment.data import digits
from ffebm.experiment.data.dataset import Samples
from ffebm.experiment.errors import RunError, UserError
from ffebm.experiment.export import export
from ffebm.experiment.fidelity_log import FidelityLog
from ffebm.experiment.report.one_run import one_run
from ffebm.experiment.run import Run
from ffebm.experiment.settings import Settings, SettingsError, settings_from
from ffebm.experiment.trained import load_trained
from ffebm.experiment.training import fidelity_meter, resume, train
from ffebm.experiment.training.fidelity_meter import METERED
from ffebm.hardware import BlockFidelity

SMALL = {
    "sweeps": "settle",
    "data": {"name": "digits"},
    "model": {"channels": [4, 4, 8, 8], "split": 2, "pooled": [], "max_contraction": 0.5},
    "relaxation": {"steps": 4},
    "gradient": {"steps": 2},
    "optimiser": {"learning_rate": 0.003},
    "trainer": {"epochs": 2, "batch": 64, "threads": 1, "accelerator": "cpu", "checkpoint_every": 2, "keep": 100},
}
NOISY = (
    "hardware.dac_bits=6",
    "hardware.dac_noise=0.01",
    "hardware.adc_bits=8",
    "hardware.adc_noise=0.01",
    "hardware.adc_offset=0.01",
    "hardware.rounding=stochastic",
    "hardware.read_noise=0.01",
    "hardware.material=phase-change",
    "hardware.mismatch=0.05",
    "hardware.drift=0.05",
    "hardware.pulses=reram",
    "gradient.automatic_beta=true",
)


@pytest.fixture(autouse=True, scope="module")
def _few_digits() -> Iterator[None]:
    """320 training images make epochs of five steps."""
    full = digits()
    few = replace(full, train=Samples(*(t[:320] for t in full.train)), test=Samples(*(t[:130] for t in full.test)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ffebm.experiment.training.preparing.load_for", lambda *_: few)
        patch.setattr(fidelity_meter.FidelityMeter.__init__, "__defaults__", (3,))
        yield


def small(*overrides: str) -> Settings:
    return settings_from(SMALL, overrides)


def console() -> Console:
    return Console(file=io.StringIO(), width=300)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "finished"
    train(small(*NOISY), Run.create(folder, ""), console())
    return folder


@pytest.mark.parametrize("kept", [2, 5, 8])
def test_a_noisy_run_goes_on_to_the_same_bits(finished: Path, tmp_path: Path, kept: int) -> None:
    run = Run(tmp_path / "resumed")
    shutil.copytree(finished, run.folder)
    for path in run.checkpoints():
        if int(path.stem.removeprefix("step-")) > kept:
            path.unlink()
    for name in ("weights.safetensors", "metrics.csv"):
        (run.folder / name).unlink()
    resume(run, console())
    for (name, a), (_, b) in zip(*(load_file(f / "weights.safetensors").items() for f in (finished, run.folder)), strict=True):
        assert torch.equal(a, b), name
    timed = {"seconds", "images_per_second"}
    for a, b in zip(Run(finished).metrics(), run.metrics(), strict=True):
        assert {k: v for k, v in a.items() if k not in timed} == {k: v for k, v in b.items() if k not in timed}
    assert FidelityLog(finished).entries() == FidelityLog(run.folder).entries()


def test_a_run_without_noise_is_another_and_one_with_everything_off_is_the_ideal_one(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("ideal", "off", "bits")]
    centered = ("gradient.variant=centered", "model.nudge=stationary", "trainer.epochs=1")
    for folder, more in zip(folders, ((), ("hardware.seed=5",), ("hardware.adc_bits=6",)), strict=True):
        train(small(*centered, *more), Run.create(folder, ""), console())
    ideal, off, bits = (load_file(folder / "weights.safetensors") for folder in folders)
    assert all(torch.equal(ideal[name], off[name]) for name in ideal)
    assert bits.keys() - ideal.keys() == {
        f"blocks.{n}.chip.{name}" for n in (0, 1) for name in ("seen_at_input", "seen_in_layers")
    }
    assert not torch.equal(ideal["stages.0.connection.weight"], bits["stages.0.connection.weight"])
    assert not (folders[1] / "fidelity.csv").exists()


def test_the_meter_is_in_metrics_events_a_file_and_the_report(finished: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    rows = Run(finished).metrics()
    assert all(set(METERED) <= row.keys() for row in rows)
    entries = FidelityLog(finished).entries()
    assert [(entry.step, entry.fidelity.block) for entry in entries] == [
        (step, f"block {n} of 2") for step in (0, 3, 6, 9) for n in (1, 2)
    ]
    last = [entry.fidelity for entry in entries if entry.step == 9]
    assert rows[-1]["block_cosine"] == pytest.approx(min(f.cosine for f in last), rel=1e-4)
    assert rows[-1]["unmoved"] == pytest.approx(max(f.unmoved for f in last), rel=1e-4)
    events = EventAccumulator(str(finished / "tensorboard"))
    events.Reload()
    found = [event.value for event in events.Scalars("cosine/block 2")]
    assert found == pytest.approx([e.fidelity.cosine for e in entries if e.fidelity.block == "block 2 of 2"], rel=1e-4)
    titles = [getattr(part, "title", "") for part in one_run(Run(finished))]
    assert "Gradients of blocks on hardware beside those of ideal blocks, before step 10" in titles
    assert "The same along the run" in titles


def test_a_far_gradient_is_warned_of_once_with_what_to_try(tmp_path: Path) -> None:
    shown = console()
    train(small("hardware.adc_bits=3", "gradient.beta=0.001", "trainer.epochs=1"), Run.create(tmp_path / "run", ""), shown)
    assert isinstance(shown.file, io.StringIO)
    (line,) = [line for line in shown.file.getvalue().splitlines() if "On this hardware" in line]
    assert "do not move by a step of their converter. Try gradient.automatic_beta=true" in line


def test_tests_of_a_loaded_noisy_run_repeat(finished: Path) -> None:
    x = torch.rand(5, 1, 8, 8)
    first, second = (load_trained(Run(finished))[0].eval()(x).logits for _ in range(2))
    assert torch.equal(first, second)


def test_files_and_speed_are_of_ideal_blocks(finished: Path, tmp_path: Path) -> None:
    classifier = load(finished)
    with pytest.raises(UserError, match=r"Block 1 of 2 runs on hardware, .*`classifier\.model\.put_on\(None\)` first"):
        export(classifier, tmp_path / "model.pt2")
    classifier.model.put_on(None)
    assert export(classifier, tmp_path / "model.pt2").difference < 1e-2
    with pytest.raises(UserError, match=r"Speed is measured of ideal blocks, got settings of \[hardware\]"):
        parse("conv12", ("hardware.adc_bits=8",))


@pytest.mark.parametrize("damage", ["step,block\n0,x\n", "step,block,cosine\n\0", None])
def test_a_damaged_file_of_fidelities_is_named(tmp_path: Path, damage: str | None) -> None:
    log = FidelityLog(tmp_path)
    log.add(0, [BlockFidelity("block 1 of 1", 0.9, 1.0, 0.8, 1.0, 0.0, float("nan"))])
    assert log.entries()[0].fidelity.cosine == 0.9
    text = log.path.read_text().replace("0.9", "nine") if damage is None else damage
    log.path.write_text(text)
    with pytest.raises(RunError, match=r"fidelity.csv is damaged: .* Move it away"):
        log.entries()


def test_settings_say_what_blocks_run_on() -> None:
    assert build_hardware(small().hardware) is None
    assert build_hardware(small("hardware.adc_bits=8", "hardware.adc_range=2.0").hardware) == Hardware(adc=Converter(8, 2.0))
    chosen = small(*NOISY, "hardware.cell_levels=16", "hardware.wire_resistance=1e-5", "hardware.read=output").hardware
    assert build_hardware(chosen) == Hardware(
        Converter(6, noise=0.01, rounding="stochastic"),
        Converter(8, noise=0.01, offset=0.01, rounding="stochastic"),
        [Levels(16), PhaseChange(1.0), Mismatch(0.05), WireResistance(1e-5), Drift(0.05, phase=1e-3), ReadNoise(0.01)],
        read="output",
    )
    assert build_pulses(chosen) == Pulses.reram()
    assert build_pulses(small().hardware) is None


def test_hardware_gets_nudges_that_it_can_see() -> None:
    assert small().effective[1].variant == "small-signal"
    assert small().nudge == "elastic"
    on = small("hardware.adc_bits=8")
    assert (on.effective[1].variant, on.nudge, on.recipe.model.nudge) == ("centered", "stationary", "stationary")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["hardware.adc_bits=0"], "`hardware.adc_bits` of the command line: input should be greater than or equal to 1, got 0"),
        (["hardware.adc_bits=1"], "`adc_bits` is 1, two levels that cannot hold both signs and zero; take 2 bits or more"),
        (["hardware.adc_noise=-0.1"], "`hardware.adc_noise` of the command line: input should be greater than or equal to 0"),
        (["hardware.adc_range=0"], "`hardware.adc_range` of the command line: input should be greater than 0, got 0"),
        (["hardware.material=diamond"], "input should be 'phase-change' or 'resistive', got 'diamond'"),
        (["hardware.pulses=laser"], "input should be 'ecram', 'oxide-ecram', 'capacitor' or 'reram', got 'laser'"),
        (["hardware.adc_bit=8"], r"Unknown key `adc_bit` in \[hardware\] of the command line; did you mean `adc_bits`"),
        (["hardware.stuck_on=0.7", "hardware.stuck_off=0.7"], "`stuck_off` and `stuck_on` are 0.7 and 0.7, more than all"),
        (["hardware.adc_bits=8", "gradient.kind=id"], "`gradient.kind` is id, and blocks that run on hardware"),
        (
            ["hardware.adc_bits=8", "gradient.variant=small-signal"],
            "`gradient.variant` is small-signal, and blocks",
        ),
        (
            ["gradient.automatic_beta=true"],
            "`gradient.automatic_beta` is true, and small-signal nudges, .* take gradient",
        ),
        (
            ["hardware.average=4"],
            "`hardware.average` has no effect here: repeated read-outs are alike; take hardware",
        ),
        (["hardware.crossbars=separate"], "`hardware.crossbars` has no effect here: they are alike; take hardware.mismatch"),
        (
            ["gradient.automatic_beta=true", "gradient.beta=0.1", "hardware.adc_bits=8"],
            "`gradient.beta` has no effect here: it is chosen; take gradient.automatic_beta=false",
        ),
    ],
)
def test_impossible_hardware_says_what_is_wrong(overrides: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        small(*overrides)
