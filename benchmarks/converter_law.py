"""How good a gradient is that converters of so many bits read, and why: a step of the converter against what a nudge moves.

Blocks of two to four dense layers with a limit on their gain, and feedback of 1, 0.3 and 0.1, are nudged both ways by several
strengths and read by converters of 3 to 14 bits. Measured is the cosine between what the block hands back and what it hands
back when it is read exactly, after the same nudges; and besides, the cosine with the exact gradient, in which kinks take part.
Predicted is the first from one number, the step q over the root mean square of the first layer's displacement d between the
two nudged phases. Two read-outs that are d apart, at a random place between levels, differ by the nearest level below d or
above it, by chance, with a variance of q² f (1 − f), where f is the part of a step by which d is more than whole steps. Two
minutes on one thread. Writes results/converter_law.md, results/converter_law.json and docs/images/converter_law.png.

    python benchmarks/converter_law.py
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.progress import track
from torch import Tensor

from ffebm import (
    AutomaticBeta,
    Converter,
    Dense,
    EnergyBlock,
    EquilibriumPropagation,
    FixedPoint,
    Hardware,
    Hopfield,
    RecurrentBackprop,
    clamp,
    identity,
)
from ffebm.experiment.environment import describe_environment
from ffebm.hardware.chip import AnalogChip

ROOT = Path(__file__).parent.parent
RESULT, FIGURE = ROOT / "results" / "converter_law.md", ROOT / "docs" / "images" / "converter_law.png"
LAYERS, FEEDBACK = (2, 3, 4), (1.0, 0.3, 0.1)
BITS = tuple(range(3, 15))
BETAS = (0.02, 0.1, 0.5, 2.0, 8.0)
SEEDS = range(3)
UNITS, SAMPLES, CONTRACTION = 64, 64, 0.5
FREE, NUDGED = FixedPoint(60, order="upward"), FixedPoint(40, order="downward")
SHOWN_BETA, SHOWN_BITS = 0.5, 8
ENOUGH = 0.99


class Point(NamedTuple):
    """One block, read by one converter after one nudge."""

    layers: int
    feedback: float
    seed: int
    bits: int
    beta: float | None  # None: chosen by read-outs
    moved: float  # root mean square of the first layer's displacement between the two nudged phases
    ratio: float  # of a step to that
    measured: float  # cosine with the same nudges read exactly
    predicted: float
    exact: float  # cosine with the exact gradient


def gradient(block: EnergyBlock, x: Tensor, error: Tensor) -> Tensor:
    """What the block hands back for this error."""
    leaf = x.detach().requires_grad_()
    (found,) = torch.autograd.grad((block(leaf) * error).sum(), leaf)
    return found


def cosine(a: Tensor, b: Tensor) -> float:
    lengths = a.norm() * b.norm()
    return (a.flatten() @ b.flatten() / lengths).item() if lengths > 0 else 0.0


def law(ratio: float) -> float:
    """The cosine for displacements that are spread normally; `ratio` is a step over their root mean square."""
    z = torch.linspace(-8, 8, 200_001, dtype=torch.float64)
    weights = (-z.square() / 2).exp()
    parts = (z.abs() / ratio).frac()
    noise = ratio**2 * (weights * parts * (1 - parts)).sum() / weights.sum()
    return 1 / math.sqrt(1 + noise.item())


def law_of(displacements: Tensor, step: float) -> float:
    """The same for the displacements that there are."""
    parts = (displacements.abs() / step).frac()
    noise = step**2 * (parts * (1 - parts)).mean()
    return 1 / math.sqrt(1 + (noise / displacements.square().mean()).item())


def points() -> Iterator[Point]:
    nets = [(layers, feedback, seed) for layers in LAYERS for feedback in FEEDBACK for seed in SEEDS]
    for layers, feedback, seed in track(nets, description="blocks"):
        torch.manual_seed(seed)
        activations = [*[clamp(0.5)] * (layers - 1), identity()]
        energy = Hopfield([Dense(UNITS, UNITS) for _ in range(layers - 1)], activations, feedback=feedback)
        block = EnergyBlock(energy.double(), FREE, max_contraction=CONTRACTION)
        with torch.no_grad():
            for edge in energy.edges:
                edge.scale_(100.0)  # the limit brings it back to what it allows
        x = 1 + 0.5 * torch.randn(SAMPLES, UNITS, dtype=torch.float64)
        error = torch.randn(SAMPLES, UNITS, dtype=torch.float64)
        block.estimator = RecurrentBackprop(FixedPoint(200, order="upward"))
        exact = gradient(block, x, error)
        for beta in (*BETAS, None):
            choice = AutomaticBeta() if beta is None else None
            block.estimator = EquilibriumPropagation(NUDGED, beta=beta or 0.1, automatic=choice)
            ideal = gradient(block.put_on(None), x, error)
            sizes = error.norm(dim=1, keepdim=True)
            moved = 2 * (beta or math.nan) * ideal / sizes / energy.layer_weight(0)  # between the two nudged phases
            for bits in BITS:
                converter = Converter(bits)
                found = gradient(block.put_on(Hardware(adc=converter)), x, error)
                assert isinstance(block.chip, AnalogChip)
                low, high = block.chip.seen_in_layers[0].double()
                step = converter.step(converter.span(low, high))
                assert step is not None
                size = step.item()
                length = moved.square().mean().sqrt().item()
                predicted = law_of(moved, size) if beta else math.nan
                cosines = cosine(found, ideal), predicted, cosine(found, exact)
                yield Point(layers, feedback, seed, bits, beta, length, size / length, *cosines)


def draw(found: Sequence[Point]) -> None:
    figure = Figure(figsize=(11, 4.2), layout="constrained", dpi=150)
    left, right = figure.subplots(1, 2)
    colours = {1.0: "#1b62a5", 0.3: "#d1701c", 0.1: "#4d8f57"}
    markers = {2: "o", 3: "s", 4: "^"}
    for layers in LAYERS:
        for feedback in FEEDBACK:
            own = [p for p in found if p.beta and (p.layers, p.feedback) == (layers, feedback)]
            left.plot(
                [p.ratio for p in own],
                [p.measured for p in own],
                markers[layers],
                color=colours[feedback],
                alpha=0.45,
                markersize=3,
                linestyle="none",
            )
    ratios = [10 ** (k / 20) for k in range(-50, 71)]
    left.plot(ratios, [law(ratio) for ratio in ratios], color="black", linewidth=1.3, label="predicted")
    left.set_xscale("log")
    left.set_xlim(3e-3, 3e3)
    left.set_xlabel("a step of the converter over the displacement of the first layer", fontsize=9)
    left.set_ylabel("cosine with the same nudges read exactly", fontsize=9)
    for layers in LAYERS:
        left.plot([], [], markers[layers], color="grey", label=f"{layers} layers", linestyle="none", markersize=4)
    for feedback in FEEDBACK:
        left.plot([], [], "o", color=colours[feedback], label=f"feedback {feedback:g}", linestyle="none", markersize=4)
    left.legend(frameon=False, fontsize=8)
    for bits, colour in ((4, "#9ecae1"), (6, "#6baed6"), (8, "#2171b5"), (10, "#08306b")):
        own = [p for p in found if (p.layers, p.feedback, p.bits) == (3, 1.0, bits)]
        means = [statistics.fmean(p.exact for p in own if p.beta == beta) for beta in BETAS]
        right.plot(BETAS, means, marker="o", markersize=4, color=colour, label=f"{bits} bits")
        chosen = statistics.fmean(p.exact for p in own if p.beta is None)
        right.axhline(chosen, color=colour, linestyle=":", linewidth=1.2)
    right.plot([], [], color="grey", linestyle=":", label="β chosen by read-outs")
    right.set_xscale("log")
    right.set_xlabel("β", fontsize=9)
    right.set_ylabel("cosine with the exact gradient", fontsize=9)
    right.set_title("3 layers, feedback 1", fontsize=10)
    right.set_ylim(-0.25, 1.05)
    right.legend(frameon=False, fontsize=8, loc="lower right", ncols=2)
    for axes in (left, right):
        tidy(axes)
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE)


def tidy(axes: Axes) -> None:
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)


def needed(found: Sequence[Point], layers: int, feedback: float, name: str) -> str:
    """The fewest bits with a mean cosine that is good enough, at one β."""
    for bits in BITS:
        own = [p for p in found if (p.layers, p.feedback, p.bits, p.beta) == (layers, feedback, bits, SHOWN_BETA)]
        if statistics.fmean(getattr(p, name) for p in own) >= ENOUGH:
            return str(bits)
    return f"over {BITS[-1]}"


def report(found: Sequence[Point]) -> str:
    place = describe_environment(0)
    fixed = [p for p in found if p.beta]
    off = sorted(abs(p.measured - p.predicted) for p in fixed)
    lines = [
        "## Converters: a step against what a nudge moves",
        "",
        f"Made by `python benchmarks/converter_law.py` at {place['commit'][:10]}, {place['time'][:10]}, "
        f"torch {place['packages']['torch']}, {place['machine']}:",
        f"blocks of {UNITS} units a layer, clamps and an unclamped output, limit {CONTRACTION}, {SAMPLES} samples of noise,",
        f"{len(SEEDS)} seeds, converters of {BITS[0]} to {BITS[-1]} bits with learned ranges, centered nudges of β from "
        f"{BETAS[0]:g} to {BETAS[-1]:g}.",
        "",
        f"Of {len(fixed)} gradients, the cosine of what a block hands back is off the prediction for its displacements by",
        f"{statistics.median(off):.3f} in the median, by {off[int(0.95 * len(off))]:.3f} at most in 95 of 100, and by "
        f"{off[-1]:.3f} in the worst. By the curve for displacements that",
        f"are spread normally it is {law(0.25):.3f} where a step is a quarter of their root mean square, {law(1):.3f} where it "
        f"is as large, and {law(4):.3f}",
        "where it is four times that.",
        "",
        f"### Bits for a cosine of {ENOUGH:g}, at β = {SHOWN_BETA:g}",
        "",
        "| layers | feedback | displacement of the first layer, over β | measured | predicted |",
        "| --- | --- | --- | --- | --- |",
    ]
    for layers in LAYERS:
        for feedback in FEEDBACK:
            own = [p for p in found if (p.layers, p.feedback, p.bits, p.beta) == (layers, feedback, BITS[0], SHOWN_BETA)]
            moved = statistics.fmean(p.moved for p in own) / SHOWN_BETA
            row = (needed(found, layers, feedback, name) for name in ("measured", "predicted"))
            lines.append(f"| {layers} | {feedback:g} | {moved:.2g} | {' | '.join(row)} |")
    lines += [
        "",
        f"### Cosine with the exact gradient at {SHOWN_BITS} bits: fixed β and chosen β",
        "",
        "| layers | feedback | " + " | ".join(f"β = {beta:g}" for beta in BETAS) + " | chosen |",
        "| --- " * (len(BETAS) + 3) + "|",
    ]
    for layers in LAYERS:
        for feedback in FEEDBACK:
            own = [p for p in found if (p.layers, p.feedback, p.bits) == (layers, feedback, SHOWN_BITS)]
            means = [statistics.fmean(p.exact for p in own if p.beta == beta) for beta in (*BETAS, None)]
            lines.append(f"| {layers} | {feedback:g} | {' | '.join(f'{mean:.3f}' for mean in means)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    torch.set_num_threads(1)
    measured = list(points())
    RESULT.write_text(report(measured))
    RESULT.with_suffix(".json").write_text(json.dumps([p._asdict() for p in measured], indent=0).replace("NaN", "null") + "\n")
    draw(measured)
    print(RESULT.read_text())
