"""A study as a picture: accuracy, cosine and energy along its first axis, and what each accuracy costs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ffebm.experiment.figures import shown
from ffebm.experiment.studies.findings import Findings, Point, standard_error
from ffebm.hardware.cost.quantity import in_units

__all__ = ["study_figure"]
__dir__ = __all__.copy

COLOURS = ("#1b62a5", "#d9822b", "#3a9d5d", "#b0413e", "#7a52a3", "#8a6d3b", "#c2589b", "#4a5563")
Value = Callable[[Point], list[float]]  # one for each seed


def study_figure(findings: Findings) -> Figure:
    """Mean over seeds and its standard error; the front of accuracy against energy as a line."""
    study = findings.study
    measured = any(point.cosines for point in findings.points)
    priced = any(math.isfinite(point.energy) for point in findings.points)
    figure = Figure(figsize=(4.2 * (1 + measured + priced), 3.7), layout="constrained", dpi=140)
    panels = figure.subplots(1, 1 + measured + priced, squeeze=False)[0].tolist()
    _along(panels[0], findings, lambda point: [outcome.accuracy for outcome in point.outcomes])
    panels[0].set_ylabel("test accuracy (%)", fontsize=9)
    if measured:
        _along(panels[1], findings, lambda point: point.cosines)
        panels[1].set_ylabel("smallest cosine with the ideal gradient", fontsize=9)
    if priced:
        _front(panels[-1], findings)
    if len(study.axes) > 1:
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.suptitle(shown(study.title), fontsize=11, x=0.01, ha="left")
    return figure


def _along(axes: Axes, findings: Findings, value: Value) -> None:
    first = findings.study.axes[0]
    for number, (level, points) in enumerate(findings.lines()):
        known = [(place, value(point)) for place, point in enumerate(points) if value(point)]
        axes.errorbar(
            [place for place, _ in known],
            [statistics.fmean(values) for _, values in known],
            yerr=[standard_error(values) for _, values in known],
            color=COLOURS[number % len(COLOURS)],
            marker="o",
            markersize=5,
            capsize=3,
            label="" if level is None else shown(level.name),
        )
    names = [shown(level.name, 12) for level in first.levels]
    axes.set_xticks(range(len(names)), names, fontsize=8, rotation=30 if max(map(len, names)) > 5 else 0)
    axes.set_xlabel(shown(first.label), fontsize=9)
    _plain(axes)


def _front(axes: Axes, findings: Findings) -> None:
    for number, (_, points) in enumerate(findings.lines()):
        known = [point for point in points if point.outcomes and math.isfinite(point.energy)]
        axes.errorbar(
            [point.energy for point in known],
            [point.accuracy for point in known],
            yerr=[point.accuracy_error for point in known],
            fmt="o",
            color=COLOURS[number % len(COLOURS)],
            markersize=5,
            capsize=3,
        )
        for point in known:
            words = shown(point.levels[0].name, 12)
            axes.annotate(words, (point.energy, point.accuracy), (5, 4), textcoords="offset points", fontsize=7)
    front = findings.front()
    axes.plot([p.energy for p in front], [p.accuracy for p in front], color="#8c96a3", linewidth=1, zorder=0)
    energies = [point.energy for point in findings.points if math.isfinite(point.energy)]
    if max(energies) > 10 * min(energies):
        axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: in_units(value, "J"))
    axes.xaxis.set_minor_formatter(lambda *_: "")
    axes.set_xlabel("energy of a training step, for a sample", fontsize=9)
    axes.set_ylabel("test accuracy (%)", fontsize=9)
    _plain(axes)


def _plain(axes: Axes) -> None:
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.12)
