"""Accuracy by epoch, of one net by every gradient that it was trained by."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ffebm.experiment.figures import shown
from ffebm.experiment.report.accuracy_figure import LOOKS
from ffebm.experiment.report.outcome import Comparison

__all__ = ["epochs_figure", "most_compared"]
__dir__ = __all__.copy

NAMES = {"ep": "EP", "id": "ID", "bp": "plain backprop", "bptt": "BPTT", "recurrent-backprop": "recurrent backprop"}
LONG = 8  # epochs
STYLES = {"ep": "-", "id": (0, (5, 2)), "bp": (0, (1.5, 1.5))}


def most_compared(rows: Sequence[Comparison]) -> Comparison | None:
    """The net with the most gradients, and the most runs among those; None where none is compared."""
    compared = [row for row in rows if sum(bool(outcome.top1) for outcome in row.outcomes.values()) > 1]
    return max(compared, key=lambda row: (sum(bool(o.top1) for o in row.outcomes.values()), len(row.runs)), default=None)


def epochs_figure(row: Comparison) -> Figure:
    """Mean over finished seeds, and the range between the lowest and the highest of them; beside all epochs, the last."""
    epochs = row.settings.trainer.epochs
    close = epochs >= LONG  # where curves end side by side
    figure = Figure(figsize=(9 if close else 6.5, 3.8), layout="constrained", dpi=150)
    panels = figure.subplots(1, 2, width_ratios=(2, 1), squeeze=False)[0] if close else [figure.subplots()]
    for axes, first in zip(panels, (1, epochs - epochs // 4), strict=False):
        for kind in (kind for kind in LOOKS if row.outcome(kind).top1):
            _draw(axes, row, kind, first)
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("top-1 test accuracy (%)")
    panels[0].legend(frameon=False, loc="lower right")
    figure.suptitle(shown(row.label), fontsize=10)
    return figure


def _draw(axes: Axes, row: Comparison, kind: str, first: int) -> None:
    """One gradient, from an epoch on."""
    names = row.outcome(kind).runs
    curves = [[100 * each["test_accuracy"] for each in run.metrics()] for run in row.runs if run.folder.name in names]
    by_epoch = list(zip(*curves, strict=False))[first - 1 :]
    epochs, means = range(first, first + len(by_epoch)), [statistics.fmean(values) for values in by_epoch]
    colour, marker = LOOKS[kind]
    seeds = f"{len(curves)} seed{'s' if len(curves) > 1 else ''}"
    look = {"color": colour, "linestyle": STYLES.get(kind, "-"), "linewidth": 1.8, "marker": marker if len(means) < 3 else None}
    axes.plot(epochs, means, **look, label=f"{NAMES[kind]}: {means[-1]:.2f} %, {seeds}")
    if len(curves) > 1:
        lowest, highest = (list(map(end, by_epoch)) for end in (min, max))
        axes.fill_between(epochs, lowest, highest, color=colour, alpha=0.18, linewidth=0)
