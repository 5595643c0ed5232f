"""The picture of a benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ffebm.experiment.benchmark.speed import PLAIN, Measurement
from ffebm.experiment.figures import picture, shown
from ffebm.experiment.files import write_atomically

COLOURS = {"ep": "#1b62a5", "id": "#d9822b", "recurrent-backprop": "#3a9d5d", "bptt": "#8c96a3"}


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
    methods = [row for row in rows if row.method != PLAIN][::-1]
    colours = [COLOURS[row.method.split(", ")[0]] for row in methods]
    axes.barh([row.title for row in methods], [row.ratio for row in methods], color=colours)
    longest = max(row.ratio for row in methods)
    for place, row in enumerate(methods):
        quality = "" if row.cosine is None else f", cos {row.cosine:.4f}"
        axes.text(row.ratio + 0.01 * longest, place, f"{row.ratio:.1f}×{quality}", va="center", fontsize=7)
    axes.set_xlim(0, 1.45 * longest)
    axes.set_title(shown(label), fontsize=9)
    axes.tick_params(labelsize=8)
    axes.set_xlabel("times plain backprop", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
