"""The picture of a benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ffebm.experiment.benchmark.speed import PLAIN, Measurement
from ffebm.experiment.figures import picture, shown
from ffebm.experiment.files import write_atomically

__all__ = ["save_speed"]
__dir__ = __all__.copy

COLOURS = {
    "small-signal ep": "#7b3fa0",
    "ep": "#1b62a5",
    "id": "#d9822b",
    "recurrent-backprop": "#3a9d5d",
    "bptt": "#8c96a3",
}
BEST = 1e-8  # what is nearer to a cosine of 1 is drawn there


def save_speed(rows: Sequence[Measurement], path: Path, weights: str) -> None:
    """Time of each gradient beside plain backprop, and how good it is, one panel for every net."""
    labels = list(dict.fromkeys(row.label for row in rows))
    columns = min(3, len(labels))
    height = -(-len(labels) // columns)
    figure = Figure(figsize=(7.5 if columns == 1 else 4.6 * columns, 3.6 * height), layout="constrained", dpi=120)
    panels = list(figure.subplots(height, columns, squeeze=False).flat)
    for axes, label in zip(panels, labels, strict=False):
        _panel(axes, [row for row in rows if row.label == label], label)
    for axes in panels[len(labels) :]:
        axes.set_visible(False)
    figure.suptitle(f"Time of a training gradient: {shown(weights)}", fontsize=11)
    write_atomically(path, picture(figure))


def _panel(axes: Axes, rows: Sequence[Measurement], label: str) -> None:
    (_curves if any(row.cosine is not None for row in rows) else _bars)(axes, rows)
    axes.set_title(shown(label), fontsize=9)
    axes.tick_params(labelsize=8)
    axes.set_xlabel("times plain backprop", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _curves(axes: Axes, rows: Sequence[Measurement]) -> None:
    """How far a gradient is from the true one, against what it costs: the lower left is best."""
    for name, colour in COLOURS.items():
        found = [row for row in rows if row.method == name and row.cosine is not None]
        if found:
            points = [(row.ratio, max(BEST, 1 - (row.cosine or 0.0))) for row in sorted(found, key=lambda row: row.ratio)]
            axes.plot(*zip(*points, strict=True), color=colour, marker="o", markersize=3, label=found[0].title)
    for row in rows:
        kind, _, words = row.method.partition(", ")
        if words and row.cosine is not None:
            place = row.ratio, max(BEST, 1 - row.cosine)
            axes.plot(*place, marker="s", color=COLOURS[kind], linestyle="none")
            axes.annotate(row.title, place, (4, 4), textcoords="offset points", fontsize=7)
    axes.set_yscale("log")
    axes.axhline(1e-3, color="#8c96a3", linewidth=0.7, linestyle="--")
    axes.set_ylabel("1 − smallest cosine", fontsize=8)
    axes.set_xlim(left=0)
    axes.legend(frameon=False, fontsize=7)


def _bars(axes: Axes, rows: Sequence[Measurement]) -> None:
    methods = [row for row in rows if row.method != PLAIN][::-1]
    colours = [COLOURS[row.method.split(", ")[0]] for row in methods]
    axes.barh([row.title for row in methods], [row.ratio for row in methods], color=colours)
    longest = max(row.ratio for row in methods)
    for place, row in enumerate(methods):
        axes.text(row.ratio + 0.01 * longest, place, f"{row.ratio:.1f}×", va="center", fontsize=7)
    axes.set_xlim(0, 1.25 * longest)
