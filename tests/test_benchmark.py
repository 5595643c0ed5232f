"""The benchmark measures what it says; how fast anything is, is not tested."""

from __future__ import annotations

import io
import json
import re
import time
from dataclasses import fields, replace
from itertools import groupby
from pathlib import Path

import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import nn

from ffebm.experiment.benchmark import PAPER, PLAIN, STEADY, Net, by_block, by_operation, fixed, measure
from ffebm.experiment.benchmark.command import GRID, _data, parse, prepared, run_benchmark, selected, summary
from ffebm.experiment.benchmark.meter import fastest, operations
from ffebm.experiment.benchmark.speed import Measurement, step
from ffebm.experiment.benchmark.subjects import CURVES, FEW, POINTS, feedforward, noise
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


@pytest.mark.parametrize("settings", [(), ("model.max_contraction=0.5", "model.start=0.5")], ids=["free", "limited"])
def test_everything_is_measured(settings: tuple[str, ...]) -> None:
    net = replace(SMALL, settings=settings)
    rows = measure(net, *prepared(net, 2, digits()), rounds=1)
    assert [row.method for row in rows if row.method not in CURVES] == [PLAIN, *(method.name for method in fixed())]
    for row in rows:
        assert row.label == net.label
        assert row.seconds > 0
        assert row.gflop > 0
        assert row.memory > 0
        assert row.ratio == pytest.approx(row.seconds / rows[0].seconds)
        assert (row.cosine is None) == (row.method == PLAIN)
    found = {row.method: row for row in rows}
    assert found["ep, paper"].sweeps.endswith(" + 2·5")
    assert found["ep, paper, β 0.02"].cosine > found["ep, paper"].cosine
    assert found["bptt, paper"].sweeps == "20"
    assert found["bptt, paper"].memory > found["ep, paper"].memory
    for kind in CURVES:
        curve = [row for row in rows if row.method == kind]
        assert 1 < len(curve) <= len(FEW) + POINTS
        assert curve[-1].gflop > curve[0].gflop
        assert max(row.cosine for row in curve) > (0.9 if kind == "ep" else 0.99)  # which has an error of β


def test_a_table_compares_at_equal_cosines() -> None:
    def row(method: str, seconds: float, cosine: float | None) -> Measurement:
        return Measurement("conv12", 0.1, 1, method, "", seconds, 1.0, 1.0, 1.0, 1.0, 1, cosine, "")

    rows = [row(PLAIN, 1, None), row("ep, paper", 9, 0.95)]
    rows += [row("ep", 2, 0.94), row("ep", 3, 0.96), row("ep", 4, 0.9991), row("ep", 3.5, 0.9995), row("id", 5, 0.98)]
    assert [(found.method, found.seconds) for found in selected(rows)] == [
        (PLAIN, 1),
        ("ep, paper", 9),
        ("ep, as paper", 3),
        ("id, as paper", 5),
        ("ep, ≥ 0.99", 3.5),
        ("ep, ≥ 0.999", 3.5),
    ]


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
        runs=[],
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
    assert {"ep, paper, β 0.02", *CURVES} <= {row["method"] for row in document["rows"]}
    assert "rbp, ≥ 0.999" in text
    assert document["environment"]["processor"] is not None
    assert "ep, paper" in (tmp_path / "speed" / "speed.md").read_text()
    with Image.open(tmp_path / "speed" / "speed.png") as picture:
        shades = picture.convert("L").histogram()
    assert sum(shades[:200]) > 0.03 * sum(shades), "a picture without bars"


def test_committed_tables_are_those_of_their_numbers() -> None:
    folders = [path.parent for path in (Path(__file__).parent.parent / "results" / "speed").glob("*/speed.json")]
    assert folders
    known = {field.name for field in fields(Measurement)}
    place = {"command": ["ffebm"], "commit": "0" * 40, "time": "", "processor": "", "threads": 1, "packages": {"torch": ""}}
    for folder in folders:
        rows = json.loads((folder / "speed.json").read_text())["rows"]
        made = summary([Measurement(**{key: row[key] for key in known & row.keys()}) for row in rows], "weights", place)
        text = (folder / "speed.md").read_text()
        tables = [[line for line in page.splitlines() if line.startswith(("|", "###"))] for page in (made, text)]
        assert tables[0] == tables[1]


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
