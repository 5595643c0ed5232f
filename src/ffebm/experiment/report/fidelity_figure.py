"""Cosines between the gradients of blocks on hardware and those of ideal blocks, along a run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.figure import Figure

from ffebm.experiment.fidelity_log import Entry
from ffebm.experiment.figures import shown

__all__ = ["fidelity_figure"]
__dir__ = __all__.copy


def fidelity_figure(entries: Sequence[Entry]) -> Figure:
    """A line for each block: the cosine of its gradient, and of what it hands back."""
    figure = Figure(figsize=(8, 3.2), layout="constrained", dpi=150)
    panels = figure.subplots(1, 2, sharey=True)
    blocks = list(dict.fromkeys(entry.fidelity.block for entry in entries))
    for axes, name, title in zip(panels, ("cosine", "handed_cosine"), ("of its parameters", "handed back"), strict=True):
        for number, block in enumerate(blocks):
            points = [(entry.step, getattr(entry.fidelity, name)) for entry in entries if entry.fidelity.block == block]
            steps, values = zip(*((step, value if math.isfinite(value) else 0.0) for step, value in points), strict=True)
            axes.plot(steps, values, marker="o", markersize=3, color=f"C{number % 10}", label=shown(block))
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("step", fontsize=9)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=9)
    panels[0].set_ylabel("cosine with the ideal block", fontsize=9)
    panels[0].set_ylim(top=1.02)
    panels[0].legend(frameon=False, fontsize=8, ncols=1 + len(blocks) // 8)
    return figure
