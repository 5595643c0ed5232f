"""`ffebm bench`: which nets, what is shown, what is written."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from ffebm.checks import brief
from ffebm.experiment.allocator import keep_freed_memory
from ffebm.experiment.benchmark.figure import save_speed
from ffebm.experiment.benchmark.profile import by_block, by_operation
from ffebm.experiment.benchmark.speed import Measurement, images, measure, step, train
from ffebm.experiment.benchmark.subjects import CURVES, NETS, PAPER, PRESETS, SMALL_BETA, Net, fixed, noise
from ffebm.experiment.data import Dataset, Presence, condition_of, default_folder, digits, load, load_for
from ffebm.experiment.environment import describe_environment
from ffebm.experiment.errors import UserError
from ffebm.experiment.files import write_atomically
from ffebm.experiment.markup import code, table, text
from ffebm.experiment.preset import read_preset
from ffebm.experiment.run import Run
from ffebm.experiment.tables import titled
from ffebm.experiment.trained import load_relaxing
from ffebm.model import FFEBM

__all__ = ["GRID", "cells", "named_after", "of_run", "parse", "prepared", "run_benchmark", "selected", "summary"]
__dir__ = __all__.copy

BATCH = 128
USUAL = ("conv12:0.125:128",)
GRID = (
    "dense:1:256",
    *(f"{net}:{size}" for net in ("conv6", "conv12", "conv15") for size in ("0.125:32", "0.125:256", "0.25:64", "0.5:32")),
)
WIDTHS = (1e-3, 1e3)
MOST_SAMPLES = 1_000_000
HEADER = ("gradient", "sweeps", "ms", "× plain", "GFLOP/s", "of peak", "MiB", "cosine")
NARROW = ("gradient", "sweeps", "ms", "× plain", "MiB", "cosine")  # of which a terminal has room for
TARGETS = (0.99, 0.999)  # cosines at which gradients are compared, besides the one that the paper's sweeps and nudge come to


def run_benchmark(
    nets: Sequence[str],
    *,
    everything: bool,
    trained: int,
    runs: Sequence[Path],
    data: Path | None,
    quality: bool,
    rounds: int,
    threads: int | None,
    profile: bool,
    output: Path | None,
    out: Console,
    notes: Console,
) -> list[Measurement]:
    overrides = tuple(word for word in nets if "=" in word)
    named = [word for word in nets if "=" not in word]
    if runs and (nets or everything or trained):
        raise UserError("--run is a net with its settings and weights: leave out other nets, KEY=VALUE, --all and --trained.")
    chosen = [named_after(run) for run in runs] or [parse(net, overrides) for net in named or (GRID if everything else USUAL)]
    if not runs and data is not None and not (trained and any(net.name != "dense" for net in chosen)):
        raise UserError(
            "Images are read from --data only to train convolutional nets: add --trained STEPS and such a net, or leave it out."
        )
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
    keep_freed_memory()
    if threads is not None:
        torch.set_num_threads(threads)
    pictures = _data(data) if trained else None
    weights = "initial weights"
    if runs:
        weights = "weights as runs trained them"
    elif pictures is not None:
        weights = f"weights after {trained} steps on {'CIFAR-10' if pictures.shape == (3, 32, 32) else 'enlarged digits'}"
    rows: list[Measurement] = []
    with notes.status("") as status:
        for number, net in enumerate(chosen, 1):
            place = f"{number} of {len(chosen)} · "

            def say(text: str, place: str = place) -> None:
                status.update(f"{place}{text} …")

            if runs:
                subject = of_run(Run.open(runs[number - 1]), data, net.batch)
            else:
                say(f"{net.label}: training {trained} steps" if trained else net.label)
                subject = prepared(net, trained, None if net.name == "dense" else pictures)
            rows += measure(net, *subject, rounds=rounds, quality=quality, say=say)
            notes.print(_shown(net, [row for row in rows if row.label == net.label]))
            if profile:
                _profile(net, *subject, notes)
            if output is not None:  # after every net: an interrupted benchmark keeps what it has
                _write(rows, output, weights)
    if output is not None:
        out.print(f"{escape(str(output))}/speed.json, speed.md, speed.png", highlight=False, soft_wrap=True)
    return rows


def prepared(net: Net, trained: int, data: Dataset | None) -> tuple[FFEBM, Tensor, Tensor]:
    """A net, trained for so many steps if there are images, and what its gradients are measured on."""
    model = net.build()
    if data is None:
        return model, *noise(net)
    train(model, data, trained)
    return model, *images(data, slice(0, net.batch))


def named_after(run: Path) -> Net:
    """What the net of a run is called."""
    return Net(run.name, Run.open(run).settings().model.width, BATCH)


def of_run(run: Run, folder: Path | None, batch: int) -> tuple[FFEBM, Tensor, Tensor]:
    """The net of a run as it was trained, and training images."""
    model = load_relaxing(run).put_on(None)  # speed is that of ideal blocks
    settings = run.settings().data
    data = load_for(settings, folder or settings.root or default_folder(), run.description())
    x, y = data.few(batch)
    return model.train(), x, y


def parse(text: str, settings: tuple[str, ...] = ()) -> Net:
    """A net from `name:width:batch`, the latter two optional."""
    name, *sizes = text.split(":")
    try:
        width, batch = [float(sizes[0]) if sizes else 0.125, int(sizes[1]) if len(sizes) > 1 else BATCH]
    except ValueError:
        width, batch = 0.0, 0
    if name not in NETS or len(sizes) > 2 or not WIDTHS[0] <= width <= WIDTHS[1] or not 1 <= batch <= MOST_SAMPLES:
        raise UserError(
            f"No net is called {brief(text)}: name one of {', '.join(NETS)}, as in conv12:0.125:128 (width, batch)."
        )
    if settings and name == "dense":
        raise UserError(f"The net `dense` takes no settings, got {brief(settings[0])}: name a convolutional one.")
    net = Net(name, width, batch, settings)
    if settings and not read_preset(PRESETS[name], settings).hardware.is_ideal:  # which says what is wrong with them
        raise UserError(
            "Speed is measured of ideal blocks, got settings of [hardware]: leave those out. How good gradients on hardware "
            "are is in the file fidelity.csv of a run."
        )
    return net


def _data(folder: Path | None) -> Dataset:
    """CIFAR-10 where it is, else the digits that are bundled."""
    folder = folder or default_folder()
    if folder is None:
        return digits()
    if condition_of("cifar10", folder).state is not Presence.COMPLETE:
        raise UserError(f"There is no complete CIFAR-10 in {folder}: `ffebm data check {shlex.quote(str(folder))}` says more.")
    return load("cifar10", folder)


def cells(row: Measurement) -> tuple[str, ...]:
    return (
        row.title,
        row.sweeps,
        f"{1e3 * row.seconds:.0f}",
        f"{row.ratio:.2f}",
        f"{row.gflops:.0f}",
        f"{100 * row.share:.0f} %",
        f"{row.memory / 2**20:.0f}",
        "" if row.cosine is None else f"{row.cosine:.5f}",
    )


def selected(rows: Sequence[Measurement]) -> list[Measurement]:
    """The rows of a net that a table shows: of each curve, what first reaches a cosine to compare at."""
    curves = [row for row in rows if row.method in CURVES]
    paper = next((row.cosine for row in rows if row.method == "ep, paper" and row.cosine is not None), None)
    targets = {f"≥ {target:g}": target for target in TARGETS}
    if paper is not None:
        targets = {"as paper": paper, **targets}
    shown = [row for row in rows if row.method not in CURVES]
    for words, target in targets.items():
        for kind in CURVES:
            good = [row for row in curves if row.method == kind and row.cosine is not None and row.cosine >= target]
            if good:
                cheapest = min(good, key=lambda row: row.seconds)
                shown.append(replace(cheapest, method=f"{kind}, {words}"))
    return shown


def _shown(net: Net, rows: Sequence[Measurement]) -> Group:
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for name in NARROW:
        shown.add_column(name, justify="left" if name in HEADER[:2] else "right", no_wrap=True, min_width=len(name))
    for row in selected(rows):
        shown.add_row(*(cell for name, cell in zip(HEADER, cells(row), strict=True) if name in NARROW))
    return titled(net.label, shown)


def _profile(net: Net, model: FFEBM, x: Tensor, y: Tensor, notes: Console) -> None:
    method, *_ = fixed()
    method.apply(model)
    blocks = Table("block", "stage", "free phase", "gradient", box=box.SIMPLE_HEAD)
    for time in by_block(model, x):
        blocks.add_row(time.block, *(f"{1e3 * part:.1f} ms" for part in (time.stage, time.free, time.gradient)))
    notes.print(titled(f"{net.label}: {method.name}, by block", blocks))
    found = Table("operation", "calls", "time", box=box.SIMPLE_HEAD)
    for name, calls, seconds in by_operation(lambda: step(model, x, y)):
        found.add_row(escape(name), str(calls), f"{1e3 * seconds:.1f} ms")
    notes.print(titled("by operation, one step", found))


def _write(rows: Sequence[Measurement], output: Path, weights: str) -> None:
    place = describe_environment(seed=0)
    document = {"environment": place, "weights": weights, "rows": [asdict(row) for row in rows]}
    write_atomically(output / "speed.json", lambda file: file.write(json.dumps(document, indent=1).encode()))
    write_atomically(output / "speed.md", summary(rows, weights, place).encode("utf-8", "replace"))
    save_speed(rows, output / "speed.png", weights)


def summary(rows: Sequence[Measurement], weights: str, place: Mapping[str, Any]) -> str:
    """What was measured, as Markdown; `place` describes the environment."""
    command = code(shlex.join(["ffebm", *place["command"][1:]]))
    lines = [
        f"## How fast gradients are: {weights}",
        "",
        f"Made by {command} at {place['commit'][:10]}, {place['time'][:10]}, on {place['processor']} with "
        f"{place['threads']} threads and torch {place['packages']['torch']}.",
        "Times are the shortest of several turns of about half a second, in which all methods follow each other. `× plain` is",
        "the ratio to backprop through a feedforward net of the same layers (convolution, pooling, batch-norm, ReLU);",
        "`of peak` is against a product of 1024 × 1024 matrices in the same run; `MiB` counts tensors at the worst moment;",
        "`cosine` is the smallest over all parameters, of the gradient of up to 128 samples (32 where blocks have no",
        "limit) with the fully converged one in float64. rbp is recurrent backprop.",
        "",
        f"`paper` has the paper's 20 and 5 sweeps. EP's β is {PAPER.beta:g} there, and {SMALL_BETA:g} in all other rows; "
        "the others have none.",
        "`≥ …` has the fewest of the sweeps that the formula proposes with which the cosine is so large on these samples;",
        "`as paper` those that reach the cosine of `ep, paper`. `1 nudge` is the response to a small signal.",
    ]
    for label in dict.fromkeys(row.label for row in rows):
        of_net = selected([row for row in rows if row.label == label])
        lines += ["", f"### {text(label)}", "", table(HEADER, [cells(row) for row in of_net])]
    return "\n".join(lines) + "\n"
