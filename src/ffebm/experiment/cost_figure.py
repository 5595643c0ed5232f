"""Where energy and time go: a picture."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ffebm.experiment.figures import shown
from ffebm.hardware.cost import KINDS, PHASES, Bill, Estimate
from ffebm.hardware.cost.bill import Kind
from ffebm.hardware.cost.quantity import in_units

__all__ = ["cost_figure"]
__dir__ = __all__.copy

COLOURS = {
    "settling": "#1b62a5",
    "input conversion": "#7fb2e0",
    "read-out": "#e0a030",
    "digital": "#8c96a3",
    "memory": "#c3c9d1",
    "weight writes": "#b8453c",
}
WORDS = {"free": "free, forward", "nudged": "nudged, backward", "update": "update"}


def cost_figure(name: str, found: Estimate) -> Figure:
    """Bars for inference and each phase of a training step, analog above digital; energy left, time right."""
    rows = _rows(found)
    figure = Figure(figsize=(11, 0.5 * len(rows) + 1.9), layout="constrained", dpi=130)
    energy, time = figure.subplots(1, 2, sharey=True)
    _bars(energy, rows, "J", "energy per sample", Bill.energy_of)
    _bars(time, rows, "s", "time per sample", Bill.time_of)
    energy.set_yticks(_places(rows), [label for label, _, _ in rows], fontsize=9)
    energy.set_ylim(_places(rows)[-1] + 0.6, -0.6)
    handles = [energy.barh([0], [0], color=colour, label=kind) for kind, colour in COLOURS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)
    node = found.technology.node
    figure.suptitle(f"{shown(name)} at {node:g} nm, batch {found.inference.batch}", fontsize=11, x=0.01, ha="left")
    return figure


def _rows(found: Estimate) -> list[tuple[str, Bill, str | None]]:
    """What each bar is of: a bill, and a phase of it."""
    rows: list[tuple[str, Bill, str | None]] = [
        ("inference", found.inference, None),
        ("the same, digital", found.digital_inference, None),
    ]
    for phase in PHASES:
        if found.training is not None:
            rows.append((f"training: {WORDS[phase]}", found.training, phase))
        rows.append(("the same, digital", found.digital_training, phase))
    return rows


def _places(rows: list[tuple[str, Bill, str | None]]) -> list[float]:
    """Heights of the bars: those of one phase stay together."""
    groups = list(dict.fromkeys(phase for _, _, phase in rows))
    return [place + 0.5 * groups.index(phase) for place, (_, _, phase) in enumerate(rows)]


def _bars(axes: Axes, rows: list[tuple[str, Bill, str | None]], unit: str, title: str, value: Callable[..., float]) -> None:
    places, ends = _places(rows), [0.0] * len(rows)
    for kind in KINDS:
        sizes = [_size(bill, phase, kind, value) for _, bill, phase in rows]
        axes.barh(places, sizes, left=ends, color=COLOURS[kind], height=0.8)
        ends = [end + size for end, size in zip(ends, sizes, strict=True)]
    for place, end in zip(places, ends, strict=True):
        axes.annotate(in_units(end, unit), (end, place), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_title(title, fontsize=10)
    axes.margins(x=0.18)
    axes.xaxis.set_major_formatter(lambda value, _: in_units(value, unit))
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _size(bill: Bill, phase: str | None, kind: Kind, value: Callable[..., float]) -> float:
    return value(bill, phase, kind) / bill.batch
