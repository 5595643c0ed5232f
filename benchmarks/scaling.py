"""How time and memory of an EP gradient grow, one factor at a time; and what that predicts for larger machines.

Measures nets of equal convolutional layers on this machine, then counts the operations of the paper's full nets and divides
them by what GPUs can do. Writes results/scaling.md, results/scaling.json and docs/images/scaling.png.

    python benchmarks/scaling.py
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from matplotlib.figure import Figure
from rich.progress import track

from ffebm import ConvLayer, build
from ffebm.energy import Hopfield
from ffebm.experiment.architectures import build_model
from ffebm.experiment.benchmark.meter import Task, fastest, matrix_product, operations, peak_memory
from ffebm.experiment.benchmark.speed import step
from ffebm.experiment.benchmark.subjects import Schedule
from ffebm.experiment.environment import describe_environment
from ffebm.experiment.preset import read_preset
from ffebm.experiment.settings import Settings
from ffebm.feedforward import Feedforward
from ffebm.relaxation import relaxation

ROOT = Path(__file__).parent.parent
IMAGES = 1_281_167  # of ImageNet32's training set
A100 = 19.5e3  # GFLOP/s in float32 without tensor cores: NVIDIA's data sheet
CALIBRATED = Schedule(4, 3)  # about what calibration to 0.995 chose for trained blocks of two: results/speed/trained/speed.md
RING = 200.0  # GB/s that a ring of A100s reduces over NVLink and InfiniBand, a round number for one node or several


@dataclass(frozen=True)
class Point:
    """A net of equal layers on images of 16 × 16, and how it relaxes."""

    depth: int = 8
    width: int = 32
    batch: int = 64
    block: int = 2
    free: int = 20
    nudged: int = 5

    def task(self) -> Task:
        torch.manual_seed(0)
        (ep,) = Schedule(self.free, self.nudged).methods("", ["ep"])
        model = build((3, 16, 16), [ConvLayer(self.width)] * self.depth, self.block, 10, relax=ep.free, estimator=ep.estimator)
        model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        with torch.no_grad():
            for parameter in model.blocks.parameters():
                parameter.mul_(0.3)  # so that blocks of any size settle
        x = torch.randn(self.batch, 3, 16, 16).to(memory_format=torch.channels_last)
        y = torch.arange(self.batch) % 10
        return lambda: step(model, x, y)


BASE = Point()
FACTORS: dict[str, tuple[str, list[Point]]] = {
    "depth": ("layers", [replace(BASE, depth=n) for n in (4, 8, 16, 32)]),
    "width": ("channels", [replace(BASE, width=n) for n in (16, 32, 64, 128)]),
    "batch": ("samples", [replace(BASE, batch=n) for n in (16, 32, 64, 128, 256)]),
    "block": ("layers per block", [replace(BASE, block=n) for n in (1, 2, 4, 8)]),
    "free": ("free sweeps", [replace(BASE, free=n) for n in (5, 10, 20, 40)]),
    "nudged": ("nudged sweeps", [replace(BASE, nudged=n) for n in (3, 5, 10, 20)]),
}


def exponent(xs: list[float], ys: list[float]) -> float:
    """The slope of a straight line through the logarithms."""
    u, v = [math.log(x) for x in xs], [math.log(y) for y in ys]
    mean_u, mean_v = sum(u) / len(u), sum(v) / len(v)
    return sum((a - mean_u) * (b - mean_v) for a, b in zip(u, v, strict=True)) / sum((a - mean_u) ** 2 for a in u)


def measured(rounds: int = 5) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {}
    for factor, (_, points) in track(FACTORS.items(), "factors", transient=True):
        tasks = {str(getattr(point, factor)): point.task() for point in points}
        seconds = fastest(tasks, rounds)
        found[factor] = [
            {"value": float(name), "seconds": seconds[name], "gflop": operations(task), "bytes": peak_memory(task)}
            for name, task in tasks.items()
        ]
    return found


def macs(settings: Settings, schedule: Schedule, shape: tuple[int, int, int] = (3, 32, 32)) -> tuple[int, int]:
    """Multiply-accumulates of one sample's training gradient, by the same arithmetic that the tests hold; and parameters."""
    model = build_model(settings, shape, 1000)
    total, size = 0, tuple(shape)
    for number, (stage, block) in enumerate(model.chain):
        assert isinstance(stage, Feedforward)
        assert isinstance(block.energy, Hopfield)
        total += (2 if number == 0 else 3) * (stage.macs(size) or 0)
        size = stage.connection.out_shape(size)
        both_ways = block.energy.sweep_macs(size) or 0
        total += (schedule.free + 2 * schedule.nudged) * both_ways  # what first half-sweeps save, contrasts cost
        size = block.energy.layer_shapes(size)[-1]
    return total, sum(p.numel() for p in model.parameters())


def predicted(share: float) -> list[list[str]]:
    """Hours of the paper's nets on one A100 and on 64, if those reach the share of their peak that this machine reached."""
    rows = []
    for name, images in (
        ("cifar100-l12", 50_000),
        ("cifar100-l15", 50_000),
        ("imagenet32-l12", IMAGES),
        ("imagenet32-l15", IMAGES),
    ):
        settings = read_preset(name)
        epochs, batch = settings.trainer.epochs, settings.trainer.batch
        plain = Schedule(settings.relaxation.steps, settings.gradient.steps)
        hours = []
        for schedule in (plain, CALIBRATED):
            work, parameters = macs(settings, schedule)
            seconds = 2 * work * images * epochs / 1e9 / (share * A100)
            exchange = epochs * images / batch * 2 * 4 * parameters / 1e9 / RING
            hours.append((seconds / 3600, (seconds / 64 + exchange) / 3600))
        printed = settings.paper.ep.hours if settings.paper else ""
        rows.append([name, f"{epochs}", printed or "–", *(f"{one:.1f} / {many:.2f}" for one, many in hours)])
    return rows


def draw(found: dict[str, list[dict[str, float]]]) -> None:
    figure = Figure(figsize=(12, 6), layout="constrained", dpi=120)
    for axes, (factor, rows) in zip(figure.subplots(2, 3).flat, found.items(), strict=True):
        values = [row["value"] for row in rows]
        for key, label, colour in (
            ("seconds", "time", "#1b62a5"),
            ("bytes", "memory", "#d9822b"),
            ("gflop", "operations", "#8c96a3"),
        ):
            first = next(row for row in rows if row["value"] == getattr(BASE, factor))[key]
            relative = [row[key] / first for row in rows]
            slope = exponent(values, relative)
            axes.plot(values, relative, marker="o", markersize=4, color=colour, label=f"{label}, exponent {slope:.2f}")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xlabel(FACTORS[factor][0])
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    figure.suptitle(
        "An EP gradient beside that of the base net (8 layers of 32 channels in blocks of 2, batch 64, 20 + 5 sweeps)"
    )
    figure.savefig(ROOT / "docs" / "images" / "scaling.png")


def peak_share() -> float:
    """Of the matrix product's speed, what a gradient of the widest net reaches."""
    task = replace(BASE, width=128).task()
    product, size = matrix_product()
    seconds = fastest({"product": product, "step": task}, 5)
    return operations(task) / seconds["step"] / (size / seconds["product"])


def main() -> None:
    place = describe_environment(seed=0)
    relaxation.STANDSTILL = -1  # all sweeps, also those that change nothing: how cost grows with them is the question
    found = measured()
    share = peak_share()
    draw(found)
    lines = [
        "## How an EP gradient scales",
        "",
        f"Made by `make bench-scaling` at {place['commit'][:10]}, {place['time'][:10]}, on {place['processor']} with "
        f"{place['threads']} threads and torch {place['packages']['torch']}.",
        f"Base: {', '.join(f'{key} {value}' for key, value in asdict(BASE).items())}; images of 16 × 16. One factor at a time.",
        "",
        "| factor | values | time | operations | memory |",
        "|---|---|---|---|---|",
    ]
    for factor, rows in found.items():
        values = [row["value"] for row in rows]
        slopes = [exponent(values, [row[key] for row in rows]) for key in ("seconds", "gflop", "bytes")]
        shown = ", ".join(f"{value:g}" for value in values)
        lines.append(f"| {FACTORS[factor][0]} | {shown} | " + " | ".join(f"∝ n^{slope:.2f}" for slope in slopes) + " |")
    lines += ["", "Measured points:", "", "| factor | value | ms | GFLOP | MiB |", "|---|---|---|---|---|"]
    for factor, rows in found.items():
        for row in rows:
            numbers = f"{1e3 * row['seconds']:.0f} | {row['gflop']:.1f} | {row['bytes'] / 2**20:.0f}"
            lines.append(f"| {FACTORS[factor][0]} | {row['value']:g} | {numbers} |")
    lines += [
        "",
        "### What that predicts",
        "",
        f"Here a gradient of 128 channels runs at {100 * share:.0f} % of the matrix product's speed. If an A100 reaches that",
        f"share of its {A100 / 1e3:g} TFLOP/s in float32, and 64 of them lose only the exchange of gradients at {RING:g} GB/s,",
        "the paper's nets take, in hours on one / on 64:",
        "",
        "| preset | epochs | paper, one A100 | the paper's sweeps | calibrated, 4 + 2·3 |",
        "|---|---|---|---|---|",
        *("| " + " | ".join(row) + " |" for row in predicted(share)),
        "",
        "A prediction, not a measurement: there is no GPU here. The paper's own times are the check. They include tests, data",
        "and what small layers waste on a GPU. Where they are shorter than float32 allows, convolutions probably ran in TF32,",
        "which torch allows them by default and this prediction does not assume.",
    ]
    (ROOT / "results" / "scaling.md").write_text("\n".join(lines) + "\n")
    (ROOT / "results" / "scaling.json").write_text(
        json.dumps({"environment": place, "points": found, "share": share}, indent=1)
    )
    print("\n".join(lines))


if __name__ == "__main__":
    main()
