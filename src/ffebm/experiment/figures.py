"""Pictures of runs, and how names that others chose stand in them."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ffebm.checks import one_line
from ffebm.experiment.files import write_atomically

__all__ = ["confusion_figure", "picture", "save_curves", "shown"]
__dir__ = __all__.copy

TRAIN, TEST = "#8c96a3", "#1b62a5"


def shown(name: str, most: int = 72) -> str:
    """A name, or other text that is not ours, as matplotlib shows it literally; of a long one, both ends."""
    line = one_line(name)
    line = line if len(line) <= most else f"{line[: most // 2]}…{line[-(most // 2) :]}"
    return line.replace("$", "\\$")  # between two dollars it would read a formula, and refuse most


def picture(figure: Figure, kind: str = "png") -> bytes:
    """The file of a figure. A letter that no font has, or a label wider than its place, is not worth a warning."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        for message in ("Glyph ", "constrained_layout not applied"):
            warnings.filterwarnings("ignore", message, UserWarning)
        figure.savefig(buffer, format=kind)
    return buffer.getvalue()


def save_curves(rows: Sequence[Mapping[str, float]], path: Path, title: str) -> None:
    """Loss, accuracy and residual by epoch."""
    figure = Figure(figsize=(11, 3.4), layout="constrained", dpi=130)
    loss, accuracy, residual = figure.subplots(1, 3)
    epochs = [row["epoch"] for row in rows]
    marker = "o" if len(rows) < 30 else None
    for axes, name, scale in ((loss, "loss", 1), (accuracy, "accuracy", 100)):
        for part, colour in (("train", TRAIN), ("test", TEST)):
            values = [scale * row[f"{part}_{name}"] for row in rows]
            axes.plot(epochs, values, color=colour, marker=marker, markersize=4, label=part)
        axes.legend(frameon=False)
    residual.plot(epochs, [max(row["residual"], 1e-9) for row in rows], color=TEST, marker=marker, markersize=4)
    residual.set_yscale("log")
    for axes, label in ((loss, "loss"), (accuracy, "accuracy (%)"), (residual, "residual, worst block")):
        axes.set_ylabel(label)
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    best = max(rows, key=lambda row: row["test_accuracy"])
    last = rows[-1]
    figure.suptitle(
        f"{shown(title)}: {100 * last['test_accuracy']:.2f} % on the test set after epoch {last['epoch']:.0f} "
        f"(best {100 * best['test_accuracy']:.2f} %, epoch {best['epoch']:.0f})",
        fontsize=11,
    )
    write_atomically(path, picture(figure))


def confusion_figure(counts: np.ndarray, classes: Sequence[str], title: str) -> Figure:
    """Which class (row) was taken for which (column), as shares of the rows."""
    size = len(classes)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = float(np.clip(2.5 + 0.5 * size, 5, 12))
    figure = Figure(figsize=(side + 1, side), layout="constrained", dpi=130)
    axes = figure.subplots()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.set_title(shown(title), fontsize=11)
    figure.colorbar(image, ax=axes, label="share of the true class", shrink=0.8)
    if size <= 20:
        names = [shown(name, 20) for name in classes]
        axes.set_xticks(range(size), names, rotation=45, ha="right")
        axes.set_yticks(range(size), names)
        for row, column in np.argwhere(counts > 0):
            dark = shares[row, column] > 0.5
            axes.text(
                column, row, f"{counts[row, column]}", ha="center", va="center", fontsize=8, color="white" if dark else "black"
            )
    return figure
