"""Figures 3 and 4 of the paper, from an analysis of our own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ffebm.experiment.figures import shown

if TYPE_CHECKING:
    from ffebm.experiment.reproduction.static import Layer, Static

__all__ = ["bars_figure", "colour", "transients_figure"]
__dir__ = __all__.copy


def transients_figure(static: Static) -> Figure:
    """A column for each block, the last first, as backward time runs; a panel for each layer, a curve for each weight."""
    blocks = sorted({layer.block for layer in static.layers}, reverse=True)
    columns = [[layer for layer in static.layers if layer.block == block] for block in blocks]
    height = max(map(len, columns))
    figure = Figure(figsize=(2.3 * len(columns) + 0.6, 1.75 * height + 1.2), layout="constrained", dpi=150)
    panels = figure.subplots(height, len(columns), squeeze=False)
    for column, layers in enumerate(columns):
        for row in range(height):
            axes = panels[row][column]
            if row >= len(layers):
                axes.set_axis_off()
                continue
            _curves(axes, layers[::-1][row], column * static.sweeps, colour(static, layers[::-1][row]))
        panels[0][column].set_title(f"block {blocks[column]}", fontsize=9)
        panels[len(layers) - 1][column].set_xlabel("backward time t", fontsize=8)
    panels[0][0].plot([], [], color="black", label="ID")
    panels[0][0].plot([], [], color="black", linestyle=":", label="EP")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False, fontsize=9)
    figure.suptitle(f"Gradients of some weights of every layer: {shown(static.title)}", fontsize=10, x=0.01, ha="left")
    return figure


def _curves(axes: Axes, layer: Layer, begin: int, shade: tuple[float, ...]) -> None:
    ep, id_ = np.array(layer.ep), np.array(layer.id)
    size = np.abs(id_).max() or 1.0
    time = begin + np.arange(len(ep))
    axes.plot(time, id_ / size, color=shade, linewidth=1.8)
    axes.plot(time, ep / size, color="black", linestyle=":", linewidth=1.2)
    axes.set_ylabel(layer.label, fontsize=10, rotation=0, ha="right")
    axes.tick_params(labelsize=7)
    axes.xaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlim(time[0], time[-1])


def bars_figure(analyses: Sequence[Static]) -> Figure:
    """The cosine between the final gradients of every layer."""
    figure = Figure(figsize=(7.5, 2.9 * len(analyses)), layout="constrained", dpi=150)
    for axes, static in zip(figure.subplots(len(analyses), 1, squeeze=False)[:, 0], analyses, strict=True):
        places = range(1, len(static.layers) + 1)
        axes.bar(places, [layer.cosine for layer in static.layers], color=[colour(static, layer) for layer in static.layers])
        lowest = static.worst.cosine
        axes.set_ylim(min(0.0, lowest), 1.08)
        axes.set_xticks(list(places), [layer.label for layer in static.layers], fontsize=9)
        axes.set_ylabel("cosine, EP with ID", fontsize=8)
        axes.tick_params(axis="y", labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(f"{shown(static.title)}: smallest cosine {lowest:.5f}", fontsize=9, loc="left")
    return figure


def colour(static: Static, layer: Layer) -> tuple[float, ...]:
    """The same for a layer in both figures."""
    return colormaps["turbo"](0.08 + 0.84 * static.layers.index(layer) / max(1, len(static.layers) - 1))
