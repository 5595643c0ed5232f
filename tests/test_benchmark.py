"""The benchmark measures what it says; how fast anything is, is not tested."""

from __future__ import annotations

import io
import json
import re
import time
from dataclasses import fields
from itertools import groupby
from pathlib import Path

import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import nn

from ffebm.experiment.benchmark import PAPER, PLAIN, STEADY, Net, by_block, by_operation, measure, methods, speed
from ffebm.experiment.benchmark.command import GRID, _data, parse, run_benchmark, summary
from ffebm.experiment.benchmark.meter import fastest, operations
from ffebm.experiment.benchmark.speed import Measurement, step
from ffebm.experiment.benchmark.subjects import feedforward, noise
from ffebm.experiment.data import digits
from ffebm.experiment.errors import UserError
from ffebm.relaxation import relaxation
from test_data import write_cifar10

SMALL = Net("conv12", 0.03125, 3)


def test_operations_of_a_convolution_and_its_gradient_are_counted() -> None:
    layer, x = nn.Conv2d(3, 5, 3, padding=1), torch.rand(2, 3, 8, 8)
    once = 2 * 2 * 3 * 5 * 9 * 64 / 1e9
    assert operations(lambda: layer(x)) == pytest.approx(once)
    assert operations(lambda: layer(x).sum().backward()) == pytest.approx(2 * once)  # x wants no gradient


def test_operations_of_the_papers_sweeps_are_those_of_its_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Free: two convolutions a sweep, but the first has nothing to send down. Nudged: likewise, for both signs, and the very
    first half-sweep serves both. Contrast: two correlations. Stages and readout: what plain backprop does for them."""
    monkeypatch.setattr(relaxation, "STANDSTILL", -1)  # all sweeps, also those that change nothing
    (ep,) = PAPER.methods("paper", ["ep"])
    model = ep.apply(SMALL.build())
    x, y = noise(SMALL)
    counted = operations(lambda: step(model, x, y))
    macs = 0
    with torch.no_grad():
        for number, (stage, block) in enumerate(model.chain):
            macs += (2 if number == 0 else 3) * stage.macs(tuple(x.shape[1:]))
            x = stage(x)
            edge = block.energy.sweep_macs(tuple(x.shape[1:])) // 2
            macs += ((2 * 20 - 1) + (4 * 5 - 1) + 2) * edge
            x = block(x)
    assert counted == pytest.approx(2 * SMALL.batch * macs / 1e9, rel=0.02)


def test_the_feedforward_net_has_the_same_layers() -> None:
    model = SMALL.build()
    plain = feedforward(model)
    assert sum(isinstance(module, nn.Conv2d) for module in plain) == 12
    assert sum(isinstance(module, nn.MaxPool2d) for module in plain) == 3
    x, _ = noise(SMALL)
    assert plain(x).shape == model(x).logits.shape
    dense = Net("dense", 0.05, 2)
    assert feedforward(dense.build())(noise(dense)[0]).shape == (2, 10)


def test_everything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "WATCHED", 8)
    rows = measure(SMALL, methods(), rounds=1, trained=2, data=digits())
    assert [row.method for row in rows] == [PLAIN, *(method.name for method in methods())]
    for row in rows:
        assert row.seconds > 0
        assert row.gflop > 0
        assert row.memory > 0
        assert row.ratio == pytest.approx(row.seconds / rows[0].seconds)
        assert (row.cosine is None) == (row.method == PLAIN)
    found = {row.method: row for row in rows}
    assert found["ep, paper"].sweeps.endswith(" + 2·5")
    assert found["bptt, paper"].sweeps == "20"
    assert found["recurrent-backprop, calibrated for 0.9995"].cosine > 0.99
    assert found["bptt, paper"].memory > found["ep, paper"].memory


def test_all_take_turns_that_last_alike() -> None:
    calls: list[str] = []

    def short() -> None:
        calls.append("short")

    def long() -> None:
        calls.append("long")
        time.sleep(0.01)

    times = fastest({"short": short, "long": long}, 3)
    turns = [name for name, _ in groupby(calls)]
    assert turns == ["short", "long"] * 4  # once to warm up
    assert calls.count("long") == 4
    assert calls.count("short") > 100
    assert times["long"] >= 0.01 > times["short"]


def test_time_is_shared_out_over_blocks_and_operations() -> None:
    (ep,) = STEADY.methods("steady", ["ep"])
    model = ep.apply(SMALL.build())
    x, y = noise(SMALL)
    times = by_block(model, x, rounds=1)
    assert [spent.block for spent in times] == [f"block {k} of 6" for k in range(1, 7)]
    assert all(spent.stage > 0 and spent.free > 0 for spent in times)
    assert any("convolution" in name for name, _, _ in by_operation(lambda: step(model, x, y)))


def test_results_are_shown_and_written(tmp_path: Path) -> None:
    shown = Console(record=True, width=150, file=io.StringIO())
    run_benchmark(
        ["dense:0.05:4"],
        everything=False,
        trained=0,
        data=None,
        quality=True,
        rounds=1,
        threads=None,
        profile=True,
        output=tmp_path / "speed",
        out=shown,
        notes=shown,
    )
    text = shown.export_text()
    assert "ep, paper" in text
    assert "block 1 of 2" in text
    document = json.loads((tmp_path / "speed" / "speed.json").read_text())
    assert document["rows"][0]["method"] == PLAIN
    assert {"ep, calibrated for 0.995", "id, calibrated for 0.9995"} <= {row["method"] for row in document["rows"]}
    assert "rbp, calibrated for 0.9995" in text
    assert document["environment"]["processor"] is not None
    assert "ep, paper" in (tmp_path / "speed" / "speed.md").read_text()
    with Image.open(tmp_path / "speed" / "speed.png") as picture:
        shades = picture.convert("L").histogram()
    assert sum(shades[:200]) > 0.03 * sum(shades), "a picture without bars"


def kept(folder: str) -> tuple[list[Measurement], str]:
    """The rows of a committed benchmark, and its table."""
    place = Path(__file__).parent.parent / "results" / "speed" / folder
    known = {field.name for field in fields(Measurement)}
    rows = json.loads((place / "speed.json").read_text())["rows"]
    return [Measurement(**{key: row[key] for key in known}) for row in rows], (place / "speed.md").read_text()


@pytest.mark.parametrize("folder", ["trained", "grid"])
def test_labels_promise_nothing_that_numbers_beside_them_contradict(folder: str) -> None:
    """A calibrated row says what it was calibrated for, and the table that this was on other samples."""
    rows, text = kept(folder)
    place = {"command": ["ffebm"], "commit": "0" * 40, "time": "", "processor": "", "threads": 1, "packages": {"torch": ""}}
    made = summary(rows, "weights", place)
    assert [line for line in made.splitlines() if line.startswith(("|", "#"))][1:] == [
        line for line in text.splitlines() if line.startswith(("|", "#"))
    ][1:]
    assert not re.search(r"calibrated \d", text)
    assert any(row.title == "ep, calibrated for 0.995" for row in rows)
    for words in ("on up to 64 other samples", "EP's β is 0.2 in `paper`, 0.02 in `calibrated for 0.995`"):
        assert words in text
        assert words in made


def test_weights_are_trained_on_no_part_of_cifar10(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    with pytest.raises(UserError, match=r"There is no complete CIFAR-10 in .*: `ffebm data check "):
        _data(tmp_path)


def test_nets_are_named() -> None:
    assert parse("conv12") == Net("conv12", 0.125, 128)
    assert parse("dense:1:256") == Net("dense", 1.0, 256)
    assert all(parse(net) for net in GRID)
    for wrong in ("conv13", "conv12:wide", "conv12:0:1", "conv12:1:0", "conv12:1:2:3"):
        with pytest.raises(UserError, match=re.escape("conv12:0.125:128")):
            parse(wrong)
