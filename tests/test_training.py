"""Training: what a run leaves behind, that it can be re-made and resumed to the bit, and what stops it."""

from __future__ import annotations

import csv
import io
import json
import pickle
import shutil
import signal
import tomllib
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import nn

from ffebm import DivergenceError, EquilibriumPropagation
from ffebm.diagnostics import gradients
from ffebm.experiment.architectures import build_model
from ffebm.experiment.data import Batch, digits
from ffebm.experiment.data.dataset import Samples
from ffebm.experiment.evaluation import evaluate
from ffebm.experiment.packing import packed
from ffebm.experiment.run import Run, RunError, read_checkpoint, step_of
from ffebm.experiment.settings import Settings, SettingsError, settings_from
from ffebm.experiment.trained import load_trained
from ffebm.experiment.training import (
    HealthError,
    Learner,
    Stopped,
    calibrating,
    checkpoints as checkpoints_module,
    preparing,
    resume,
    train,
)
from ffebm.experiment.training.health import Health, drowned, frozen, unsettled, without_error

# A net that trains in a second: what is tested here does not depend on its size.
SMALL = {
    "sweeps": "settle",  # calibration takes longer than these runs
    "data": {"name": "digits", "crop_padding": 1},
    "model": {"channels": [4, 4, 8], "pooled": [3], "split": [2, 1]},
    "relaxation": {"steps": 4},
    "gradient": {"steps": 2},
    "optimiser": {"learning_rate": 0.003},
    "trainer": {"epochs": 2, "batch": 64, "threads": 1, "accelerator": "cpu", "checkpoint_every": 2},
}


@pytest.fixture(autouse=True, scope="module")
def _few_digits() -> Iterator[None]:
    """320 training images make epochs of five steps."""
    full = digits()
    few = replace(full, train=Samples(*(t[:320] for t in full.train)), test=Samples(*(t[:130] for t in full.test)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ffebm.experiment.training.preparing.load_for", lambda *_: few)
        yield


def small(*overrides: str) -> Settings:
    return settings_from(SMALL, overrides)


def console() -> Console:
    return Console(file=io.StringIO(), width=300)


def text(shown: Console) -> str:
    assert isinstance(shown.file, io.StringIO)
    return shown.file.getvalue()


def run_small(folder: Path, *overrides: str) -> Learner:
    return train(small(*overrides), Run.create(folder, ""), console())


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "weights.safetensors")


def assert_same_run(one: Path, other: Path) -> None:
    for (name, a), (_, b) in zip(weights(one).items(), weights(other).items(), strict=True):
        assert torch.equal(a, b), name
    timed = {"seconds", "images_per_second"}
    for a, b in zip(Run(one).metrics(), Run(other).metrics(), strict=True):
        assert {k: v for k, v in a.items() if k not in timed} == {k: v for k, v in b.items() if k not in timed}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupted, with all of its checkpoints."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    run_small(folder, "trainer.keep=100")
    return folder


def test_a_run_writes_all_of_its_files(finished: Path) -> None:
    assert {path.name for path in finished.iterdir()} == {
        ".lock",
        "checkpoints",
        "curves.png",
        "data.json",
        "environment.json",
        "gradient.json",
        "metrics.csv",
        "settings.toml",
        "tensorboard",
        "weights.safetensors",
    }
    assert settings_from(tomllib.loads((finished / "settings.toml").read_text())) == small("trainer.keep=100")
    with (finished / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["1", "2"]
    assert [row["step"] for row in rows] == ["5", "10"]
    assert float(rows[1]["train_loss"]) < float(rows[0]["train_loss"])
    assert float(rows[1]["residual"]) > 0
    (started,) = json.loads((finished / "environment.json").read_text())
    assert {"command", "commit", "packages", "threads", "seed", "machine", "python"} <= started.keys()
    assert started["threads"] == 1
    assert started["packages"]["torch"] == torch.__version__
    assert (finished / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert list((finished / "tensorboard").glob("events.out.tfevents.*"))
    assert [step_of(path) for path in Run(finished).checkpoints()] == [10, 8, 6, 5, 4, 2]


def test_tensorboard_has_the_curves(finished: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(finished / "tensorboard"))
    events.Reload()
    losses = [event.value for event in events.Scalars("epoch/test_loss")]
    assert losses == pytest.approx([row["test_loss"] for row in Run(finished).metrics()], rel=1e-4)
    assert "residual/block 1" in events.Tags()["scalars"]


def test_recorded_test_loss_and_accuracy_are_those_of_the_saved_weights(finished: Path) -> None:
    """The last row's test loss and accuracy, recomputed without any of the code under test."""

    full = digits()
    model = build_model(small(), full.shape, 10)
    model.load_state_dict(weights(finished))
    x, y = full.normalise(full.test.x[:130]), full.test.y[:130]
    logits = model.eval()(x).logits
    last = Run(finished).metrics()[-1]
    assert last["test_accuracy"] == pytest.approx((logits.argmax(1) == y).double().mean().item(), rel=1e-5)
    assert last["test_loss"] == pytest.approx(torch.nn.functional.cross_entropy(logits, y).item(), rel=1e-5)


def test_a_run_repeated_from_its_settings_is_the_same_to_the_bit(finished: Path, tmp_path: Path) -> None:
    from ffebm.experiment.settings import read_settings

    train(read_settings(finished / "settings.toml"), Run.create(tmp_path / "again", ""), console())
    assert_same_run(finished, tmp_path / "again")


@pytest.mark.parametrize("step", [2, 4, 5, 6, 8, 10])
def test_resuming_from_any_checkpoint_ends_in_the_same_bits(finished: Path, tmp_path: Path, step: int) -> None:
    """In the middle of an epoch, at its end, and at the end of the run."""
    run = Run(tmp_path / "resumed")
    shutil.copytree(finished, run.folder)
    for path in run.checkpoints():
        if int(path.stem.removeprefix("step-")) > step:
            path.unlink()
    if step < 10:
        (run.folder / "weights.safetensors").unlink()
        (run.folder / "metrics.csv").unlink()
    shown = console()
    resume(run, shown)
    assert f"Going on from step {step}" in text(shown)
    assert_same_run(finished, run.folder)
    assert len(json.loads((run.folder / "environment.json").read_text())) == 2


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ten steps that calibrates before the first, fourth, seventh and tenth."""
    folder = tmp_path_factory.mktemp("runs") / "calibrated"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrating, "SOONEST", 3)
        patch.setattr(calibrating, "LATEST", 3)
        run_small(folder, "sweeps=calibrated", "trainer.keep=9")
    return folder


@pytest.mark.parametrize("step", [2, 5, 8])
def test_a_resumed_run_keeps_its_calibrated_sweeps(
    calibrated: Path, tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrating, "SOONEST", 3)
    monkeypatch.setattr(calibrating, "LATEST", 3)
    run = Run(tmp_path / "resumed")
    shutil.copytree(calibrated, run.folder)
    for path in run.checkpoints():
        if int(path.stem.removeprefix("step-")) > step:
            path.unlink()
    resume(run, console())
    assert_same_run(calibrated, run.folder)


def test_calibrated_runs_are_evaluated_with_settled_blocks(calibrated: Path) -> None:
    """So that the accuracy of a run is that of its weights, whatever sweeps they were trained with."""
    *_, row = Run(calibrated).metrics()
    assert 1 <= row["free_sweeps"] <= 20
    assert 1 <= row["nudged_sweeps"] <= 10
    dataset = preparing.load_for(small().data)
    model, _ = load_trained(Run(calibrated))
    assert evaluate(model, dataset, 500).loss == pytest.approx(row["test_loss"], rel=1e-5)


def test_a_quality_out_of_reach_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrating, "SOONEST", 3)
    shown = console()
    settings = small("sweeps=calibrated", "relaxation.steps=1", "gradient.steps=1", "gradient.quality=0.9999")
    train(settings, Run.create(tmp_path / "poor", ""), shown)
    assert text(shown).count("0.9999 is asked for. Slowest is block") == 1


def test_calibration_does_not_synchronise_batch_norms() -> None:
    """Its batch-norms are on their own, also where those of training are synchronised."""
    learner, x, y = model_and_images()
    synchronised = nn.SyncBatchNorm.convert_sync_batchnorm(learner.model)
    alone = calibrating.on_its_own(synchronised).train()
    torch.testing.assert_close(gradients(alone, x, y), gradients(learner.model.train(), x, y))


def test_a_run_without_checkpoint_starts_over(finished: Path, tmp_path: Path) -> None:
    run = Run(tmp_path / "early")
    run.folder.mkdir()
    shutil.copy(finished / "settings.toml", run.folder)
    resume(run, console())
    assert_same_run(finished, run.folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("step", [3, 5])
def test_a_signal_stops_after_a_checkpoint(
    finished: Path, tmp_path: Path, number: int, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 3 lies between two checkpoints, step 5 at the end of an epoch."""
    original = Learner.training_step

    def interrupted(self: Learner, batch: object, index: int) -> torch.Tensor:
        if self.global_step == step - 1 and self.settings.seed == 0:
            signal.raise_signal(number)
        return original(self, batch, index)

    before = signal.getsignal(number)
    run = Run.create(tmp_path / "stopped", "")
    with monkeypatch.context() as patch:
        patch.setattr(Learner, "training_step", interrupted)
        with pytest.raises(Stopped, match=f"{signal.Signals(number).name} after step {step}; nothing is lost") as stop:
            train(small("trainer.keep=100"), run, console())
    assert stop.value.exit_code == 128 + number
    assert signal.getsignal(number) is before
    assert run.checkpoints()[0].name == f"step-{step:08d}.safetensors"
    resume(run, console())
    assert signal.getsignal(number) is before
    assert_same_run(finished, run.folder)


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    run_small(tmp_path / "run", "trainer.keep=2")
    assert [step_of(path) for path in Run(tmp_path / "run").checkpoints()] == [10, 8]
    assert not list((tmp_path / "run").rglob("*.part"))


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "foreign"])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_used(finished: Path, tmp_path: Path, damage: str) -> None:
    run = Run(tmp_path / "run")
    shutil.copytree(finished, run.folder)
    newest = run.checkpoints()[0]
    content = bytearray(newest.read_bytes())
    marker = tmp_path / "executed"
    if damage == "truncated":
        newest.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":  # a single bit, in the middle of a tensor
        content[-400] ^= 1
        newest.write_bytes(content)
    elif damage == "empty":
        newest.write_bytes(b"")
    else:
        torch.save({"state_dict": Bomb(marker), "optimizer_states": [], "loops": {}, "global_step": 10}, newest)
    shown = console()
    resume(run, shown)
    assert f"Warning: {newest} is" in text(shown)
    assert "Going on from step 8" in text(shown)
    assert not marker.exists()
    assert_same_run(finished, run.folder)


class Bomb:
    """Would create a file if it were unpickled as pickles are."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


def test_code_in_foreign_checkpoints_is_not_executed(tmp_path: Path) -> None:
    path, marker = tmp_path / "step-00000001.safetensors", tmp_path / "executed"
    torch.save({"state_dict": Bomb(marker)}, path)
    with pytest.raises(RunError, match="is not a sound checkpoint"):
        read_checkpoint(path)
    path.write_bytes(pickle.dumps(Bomb(marker)))
    with pytest.raises(RunError, match="is not a sound checkpoint"):
        read_checkpoint(path)
    path.write_bytes(packed({"weights": 1}))
    with pytest.raises(RunError, match="not a checkpoint of a training run"):
        read_checkpoint(path)
    assert not marker.exists()


def test_when_no_checkpoint_is_sound_nothing_is_overwritten(finished: Path, tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    shutil.copytree(finished, run.folder)
    for path in run.checkpoints():
        path.write_bytes(b"nothing")
    with pytest.raises(RunError, match=r"None of the checkpoints in .* \(6\)"):
        resume(run, console())


def test_checkpoints_of_another_model_are_refused(finished: Path, tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    shutil.copytree(finished, run.folder)
    small("model.width=2").save(run.settings_file)
    with pytest.raises(RunError, match=r"None of the checkpoints .* \(6\) .* of another model"):
        resume(run, console())


def test_what_a_killed_process_left_half_written_is_cleared_away(finished: Path, tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    shutil.copytree(finished, run.folder)
    (run.checkpoint_folder / ".step-00000012.safetensors.abc.part").write_bytes(b"half")
    (run.folder / "data.json").unlink()
    resume(run, console())
    assert not list(run.folder.rglob("*.part"))
    assert run.description().shape == (1, 8, 8)
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    (fresh / ".settings.toml.abc.part").write_bytes(b"half")
    Run.create(fresh, "")  # killed before it was a run: no reason to refuse


def test_a_run_folder_is_never_overwritten(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="exists already"):
        Run.create(finished, "")
    with pytest.raises(RunError, match="is no run folder"):
        Run.open(tmp_path)


def test_two_processes_do_not_train_into_one_folder(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffebm.experiment.run.PATIENCE", 0.2)
    with Run(finished).locked(), pytest.raises(RunError, match="being trained by another process"):
        resume(Run(finished), console())


def test_parts_of_a_batch_add_up_to_it(tmp_path: Path) -> None:
    """Accumulating changes the loss curve by rounding alone."""
    plain = ["trainer.precision=64-true", "model.batch_norm=off"]
    whole = run_small(tmp_path / "whole", *plain).history
    parts = run_small(tmp_path / "parts", *plain, "trainer.accumulate=3").history
    for a, b in zip(whole, parts, strict=True):
        assert a["step"] == b["step"]
        for key in ("train_loss", "test_loss", "train_accuracy", "test_accuracy"):
            assert a[key] == pytest.approx(b[key], rel=1e-9)


def test_resuming_while_accumulating_and_drawing_signs(tmp_path: Path) -> None:
    settings = ("trainer.accumulate=2", "trainer.keep=100", "gradient.variant=random-sign")
    run_small(tmp_path / "whole", *settings)
    run = Run(tmp_path / "resumed")
    shutil.copytree(tmp_path / "whole", run.folder)
    for path in run.checkpoints()[:3]:
        path.unlink()
    resume(run, console())
    assert_same_run(tmp_path / "whole", run.folder)


@pytest.mark.parametrize("kind", ["id", "recurrent-backprop", "bptt"])
def test_every_estimator_trains(tmp_path: Path, kind: str) -> None:
    history = run_small(tmp_path / kind, f"gradient.kind={kind}").history
    assert history[1]["train_loss"] < history[0]["train_loss"]


@pytest.mark.parametrize(
    "override",
    ["trainer.precision=bf16-mixed", "optimiser.kind=sgd", "optimiser.kind=adamw", "optimiser.clip=1", "data.workers=1"],
)
def test_training_learns_in_other_precisions_optimisers_and_with_workers(tmp_path: Path, override: str) -> None:
    history = run_small(tmp_path / "run", override, "optimiser.learning_rate=0.01").history
    assert history[1]["train_loss"] < history[0]["train_loss"]


def test_workers_do_not_change_a_run(finished: Path, tmp_path: Path) -> None:
    run_small(tmp_path / "run", "data.workers=2")
    assert_same_run(finished, tmp_path / "run")


def test_training_works_with_deterministic_algorithms(finished: Path, tmp_path: Path) -> None:
    try:
        run_small(tmp_path / "run", "trainer.deterministic=true")
    finally:
        torch.use_deterministic_algorithms(False)
    assert_same_run(finished, tmp_path / "run")


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Learner.training_step

    def poisoned(self: Learner, batch: object, index: int) -> torch.Tensor:
        if self.global_step == 4:
            with torch.no_grad():
                self.model.readout[1].weight.fill_(torch.nan)
        return original(self, batch, index)

    monkeypatch.setattr(Learner, "training_step", poisoned)
    with pytest.raises(HealthError, match=r"loss is not finite at step 5; .*learning_rate"):
        run_small(tmp_path / "run")
    for tensor in read_checkpoint(Run(tmp_path / "run").checkpoints()[0])["state_dict"].values():
        assert tensor.isfinite().all()


def test_a_gradient_that_is_not_finite_stops_the_run_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def poisoned(self: Learner) -> None:
        for part in (*self.model.stages, self.model.blocks[0]):  # what is before it is no better
            for parameter in part.parameters():
                parameter.grad.fill_(torch.inf)

    monkeypatch.setattr(Learner, "on_after_backward", poisoned)
    with pytest.raises(HealthError, match=r"gradient of the stage before block 2 of 2 is not finite at step 1"):
        run_small(tmp_path / "run")


def test_a_failure_between_synchronised_batch_norms_waits_for_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are in the middle of a batch-norm: who asks them anything else waits for ever."""

    def diverge(*_: object) -> None:
        raise DivergenceError("block 2 of 2", 3, 1e9, "Lower the learning rate.")

    learner, x, y = model_and_images()
    learner.model = nn.SyncBatchNorm.convert_sync_batchnorm(learner.model)
    monkeypatch.setattr(learner.model, "forward", diverge)
    monkeypatch.setattr(learner, "fail_together", lambda _: pytest.fail("asked the other processes"))
    with pytest.raises(HealthError, match=r"relaxation of block 2 of 2 diverged.* This was step 1; no step was taken with it"):
        learner.training_step(Batch(x, y, len(y)), 0)


def model_and_images(*overrides: str) -> tuple[Learner, torch.Tensor, torch.Tensor]:
    learner = preparing.prepare(small(*overrides))
    return learner, learner.dataset.normalise(learner.dataset.train.x[:32]), learner.dataset.train.y[:32]


def test_healthy_blocks_are_not_reported() -> None:
    learner, x, y = model_and_images()
    learner.model(x, y).losses.mean().backward()
    found = without_error(learner.model), unsettled(learner.model), drowned(learner.model), frozen(learner.model, x)
    assert found == ([], [], [], [])


def test_saturated_blocks_are_named() -> None:
    learner, x, y = model_and_images("model.clamped_outputs=[1]")
    stage, _ = learner.model.chain[0]
    with torch.no_grad():
        stage.norm.bias.fill_(50.0)
    learner.model(x, y).losses.mean().backward()
    found = frozen(learner.model, x)
    assert found[0].block == "block 1 of 2"
    assert "Layer 1 of block 1 of 2 is saturated: 100.0 %" in found[0].message
    (dead,) = without_error(learner.model)
    assert dead.block == "block 1 of 2"
    assert "no error signal" in dead.message
    assert stage.training  # looking changed nothing


def test_unsettled_blocks_are_named() -> None:
    learner, x, _ = model_and_images("relaxation.steps=2")
    with torch.no_grad():
        learner.model.chain[0][1].energy.get_parameter("interactions.0.weight").mul_(20)
    learner.model(x)
    assert unsettled(learner.model)[0].block == "block 1 of 2"


@pytest.mark.parametrize(("eps", "named"), [(1e-5, ["block 2 of 2"]), (1e-14, [])])
def test_blocks_whose_batch_norm_does_not_normalise_are_named(eps: float, named: list[str]) -> None:
    learner, x, _ = model_and_images()
    stage, _ = learner.model.chain[1]
    stage.norm.eps = eps
    stage.norm.momentum = 1.0  # as after many batches
    with torch.no_grad():
        stage.connection.weight.mul_(1e-4)  # as after many layers
        drive = stage(learner.model.chain[0][1](learner.model.chain[0][0](x)))
    assert [finding.block for finding in drowned(learner.model)] == named
    assert (drive.std() < 0.1) == bool(named)  # what the warning is about


def test_a_health_warning_is_shown_once() -> None:
    shown = console()
    health = Health(shown)
    learner, x, _ = model_and_images()
    with torch.no_grad():
        learner.model.chain[0][0].norm.bias.fill_(50.0)
    for _ in range(3):
        health._report(frozen(learner.model, x))
    assert text(shown).count("Layer 1 of block 1") == 1


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.batch=1", "at least two samples"),
        ("model.channels=[4, 4, 4, 4, 4]", "split"),
        ("model.pooled=[1, 2, 3]", None),
    ],
)
def test_settings_that_no_model_fits_are_refused(override: str, message: str | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if message is None:  # 8 × 8 digits can be pooled three times, not four
            preparing.prepare(small(override))
            override, message = "model.pooled=[1, 2, 3, 4]", "No model can be built"
            with pytest.raises(SettingsError, match=message):
                preparing.prepare(small(override, "model.channels=[4, 4, 4, 4]", "model.split=2"))
            return
        with pytest.raises(SettingsError, match=message):
            preparing.prepare(small(override))


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    from ffebm.experiment.files import write_atomically

    path = tmp_path / "file"
    write_atomically(path, b"old")

    def breaks(file: io.BufferedIOBase) -> None:
        file.write(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, breaks)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_training_works_outside_the_main_thread(tmp_path: Path) -> None:
    from threading import Thread

    failures: list[BaseException] = []

    def work() -> None:
        try:
            run_small(tmp_path / "run", "trainer.epochs=1")
        except BaseException as error:
            failures.append(error)

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert not failures
    assert checkpoints_module.SIGNALS == (signal.SIGINT, signal.SIGTERM)


def test_a_backward_pass_that_diverges_stops_the_run_with_a_one_line_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(*_: object) -> None:
        raise DivergenceError("block 2 of 2", 3, 1e9, "Lower the learning rate.")

    monkeypatch.setattr(EquilibriumPropagation, "response", diverge)
    with pytest.raises(HealthError, match=r"relaxation of block 2 of 2 diverged.* This was the backward pass of step 1\."):
        run_small(tmp_path / "run", "model.nudge=stationary")


@pytest.mark.parametrize(("beta", "far"), [(0.05, False), (50.0, True)])
def test_the_first_gradient_is_compared_with_recurrent_backprop_once(tmp_path: Path, beta: float, far: bool) -> None:
    shown = console()
    run = Run.create(tmp_path / "run", "")
    train(small(f"gradient.beta={beta}", "gradient.steps=10", "relaxation.steps=40"), run, shown)
    assert text(shown).count("first gradient") == 1
    assert ("A run hardly learns from that. Look at gradient.beta first" in text(shown)) == far
    found = json.loads(run.gradient_file.read_text())
    assert (found["cosine"] < 0.9) == far
    assert found["images"] == 8
    resume(run, shown)
    assert text(shown).count("first gradient") == 1


@pytest.mark.parametrize(("beta", "precision"), [("1e-12", "32-true"), ("1e6", "64-true")])
def test_a_nudge_that_cannot_work_in_this_precision_is_refused_before_anything_is_written(
    tmp_path: Path, beta: str, precision: str
) -> None:
    with pytest.raises(SettingsError, match="`beta` must lie between"):
        run_small(tmp_path / "run", f"gradient.beta={beta}", f"trainer.precision={precision}")
    assert not (tmp_path / "run" / "settings.toml").exists()


@pytest.mark.parametrize(
    "overrides",
    [
        ("optimiser.kind=sgd",),
        ("optimiser.kind=sgd", "optimiser.momentum=0"),
        ("optimiser.kind=adamw", "trainer.accumulate=2"),
        ("trainer.precision=64-true",),
        ("trainer.precision=bf16-mixed", "sweeps=plain"),
    ],
    ids=" ".join,
)
def test_runs_of_every_kind_go_on_from_where_they_were(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    """Not from the beginning: what this run wrote, this run accepts."""
    run_small(tmp_path / "whole", *overrides)
    run = Run(tmp_path / "resumed")
    shutil.copytree(tmp_path / "whole", run.folder)
    run.checkpoints()[0].unlink()
    run.weights_file.unlink()
    shown = console()
    resume(run, shown)
    assert "Going on from step 8" in text(shown)
    assert "Warning" not in text(shown)
    assert_same_run(tmp_path / "whole", run.folder)
    load_trained(run)
