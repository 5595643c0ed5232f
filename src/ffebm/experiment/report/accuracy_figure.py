"""Accuracies of EP and ID beside each other: here, and in the paper."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ffebm.experiment.figures import shown
from ffebm.experiment.report.outcome import GRADIENTS, Comparison

__all__ = ["accuracy_figure"]
__dir__ = __all__.copy

LOOKS = {
    "ep": ("#1b62a5", "o"),
    "id": ("#d1701c", "D"),
    "recurrent-backprop": ("#4d8f57", "s"),
    "bptt": ("#7a5ba6", "^"),
    "bp": ("#6b7280", "v"),
}
APART = 0.24  # between the gradients of a row


def accuracy_figure(rows: Sequence[Comparison]) -> Figure:
    """A line for each net: mean and spread over seeds, faint marks for the seeds; the paper's in a panel of its own."""
    printed = any(row.score(kind) for row in rows for kind in ("ep", "id"))
    labels = [shown(row.label) for row in rows]
    wide = printed or max(map(len, labels), default=0) > 40
    figure = Figure(figsize=(10 if wide else 7, 0.62 * len(rows) + 1.5), layout="constrained", dpi=150)
    panels = figure.subplots(1, 2 if printed else 1, sharey=True, squeeze=False)[0]
    kinds = [kind for kind in GRADIENTS if any(kind in row.outcomes for row in rows)]
    for place, row in enumerate(rows):
        for number, kind in enumerate(kinds):
            height = place + APART * (number - (len(kinds) - 1) / 2)
            values = row.values(kind)
            if values:
                _mark(panels[0], kind, height, statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0)
                colour, marker = LOOKS[kind]
                panels[0].plot(values, [height] * len(values), marker, color=colour, alpha=0.3, markersize=4)
            score = row.score(kind)
            if score is not None:
                _mark(panels[1], kind, height, score.top1, score.top1_spread or 0.0)
    for axes, title in zip(panels, ("here", "in the paper"), strict=False):
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("top-1 test accuracy (%)", fontsize=9)
        axes.grid(axis="x", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.15)
        axes.tick_params(labelsize=9)
    panels[0].set_yticks(range(len(rows)), labels)
    panels[0].set_ylim(len(rows) - 0.5, -0.5)  # the first row on top
    handles = [panels[0].plot([], [], LOOKS[kind][1], color=LOOKS[kind][0], label=GRADIENTS[kind])[0] for kind in kinds]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(kinds), frameon=False, fontsize=9)
    return figure


def _mark(axes: Axes, kind: str, height: float, mean: float, deviation: float) -> None:
    colour, marker = LOOKS[kind]
    axes.errorbar(mean, height, xerr=deviation or None, fmt=marker, color=colour, markersize=6, capsize=3, linewidth=1.2)
