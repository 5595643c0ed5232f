"""Circuits as text that SPICE reads, and an engineer too."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from functools import singledispatchmethod

from ffebm.circuit import (
    GROUND,
    Amplifier,
    Circuit,
    CurrentSource,
    Diode,
    DiodeModel,
    Junction,
    Part,
    Resistor,
    Section,
    StraightLines,
    VoltageSource,
)

__all__ = ["OPTIONS", "netlist"]
__dir__ = __all__.copy

WIDTH = 88  # of comments
OPTIONS = "reltol=1e-9 abstol=1e-18 vntol=1e-12 gmin=1e-18 itl1=1000 temp=27 tnom=27"  # the tightest that ngspice keeps


def netlist(circuit: Circuit, *, analysis: Sequence[str] = (".op",)) -> str:
    """The circuit in SPICE's language, with a comment on every section: `ngspice -b FILE` prints all voltages at rest.

    Args:
        analysis: the lines that say what to compute.
    """
    writer = _Writer({model: f"diode{number}" for number, model in enumerate(circuit.diode_models, 1)})
    lines = [f"* {circuit.title}", "*"]
    for words in (*_units(circuit), *circuit.notes):
        lines += _comment(words)
    for section in circuit.sections:
        lines += ["", *writer.section(section)]
    if circuit.diode_models:
        lines += ["", *_heading("Models of diodes")]
        lines += [line for model in circuit.diode_models for line in writer.model(model)]
    lines += ["", *_heading("How exactly it is solved, and what for"), f".options {OPTIONS}", *analysis, ".end", ""]
    return "\n".join(lines)


def _units(circuit: Circuit) -> Iterator[str]:
    volts, siemens = circuit.volts, circuit.siemens
    yield (
        f"Units are volts, amperes and ohms. A state of 1 in the block is {volts:g} V here, a conductance of 1 is "
        f"{siemens:g} S, and so a current of 1 is {volts * siemens:g} A."
    )
    if circuit.amplified:
        yield (
            "Every amplifier is ideal, and made of three parts. E holds its output at a multiple of the input's voltage. V, of "
            "0 V, senses the current that this takes. F draws a multiple of that current from the input."
        )


def _heading(title: str) -> list[str]:
    rule = f"* {'-' * (WIDTH - 2)}"
    return [rule, *_comment(title), rule]


def _comment(words: str) -> list[str]:
    return textwrap.wrap(words, WIDTH, initial_indent="* ", subsequent_indent="* ")


class _Writer:
    """Writes parts, and knows the names of models."""

    def __init__(self, names: dict[DiodeModel, str]) -> None:
        self.names = names

    def section(self, section: Section) -> Iterator[str]:
        yield from _heading(section.title)
        for words in section.notes:
            yield from _comment(words)
        for node in section.nodes:
            yield f"* node {node.name}: {node.comment}" if node.comment else f"* node {node.name}"
        for part in section.parts:
            yield from self.part(part)

    @singledispatchmethod
    def part(self, part: Part) -> list[str]:
        raise TypeError(f"A netlist has no words for a {type(part).__name__}.")

    @part.register
    def _(self, part: Resistor) -> list[str]:
        return [f"{part.name} {part.first} {part.second} {1 / part.conductance!r}"]

    @part.register
    def _(self, part: VoltageSource) -> list[str]:
        return [f"{part.name} {part.positive} {part.negative} dc {part.value!r}"]

    @part.register
    def _(self, part: CurrentSource) -> list[str]:
        return [f"{part.name} {part.origin} {part.into} dc {part.value!r}"]

    @part.register
    def _(self, part: Amplifier) -> list[str]:
        name = part.name
        return [
            f"e{name} {name}.drive {GROUND} {part.input} {GROUND} {part.forward!r}",
            f"v{name} {name}.drive {part.output} dc 0",
            f"f{name} {part.input} {GROUND} v{name} {part.backward!r}",
        ]

    @part.register
    def _(self, part: Diode) -> list[str]:
        return self.diode(part.model, part)

    @singledispatchmethod
    def diode(self, model: DiodeModel, part: Diode) -> list[str]:
        raise TypeError(f"A netlist has no words for a {type(model).__name__}.")

    @diode.register
    def _(self, model: Junction, part: Diode) -> list[str]:
        return [f"{part.name} {part.anode} {part.cathode} {self.names[model]}"]

    @diode.register
    def _(self, model: StraightLines, part: Diode) -> list[str]:
        volts = f"v({part.anode},{part.cathode})"
        above = f"{model.on - model.off!r}*max({volts}-({model.offset!r}),0)"
        return [f"b{part.name} {part.anode} {part.cathode} i={model.off!r}*{volts}+{above}"]

    @singledispatchmethod
    def model(self, model: DiodeModel) -> list[str]:
        raise TypeError(f"A netlist has no words for a {type(model).__name__}.")

    @model.register
    def _(self, model: Junction) -> list[str]:
        name = self.names[model]
        words = f"{name}: a saturation current of {model.saturation:g} A, and an ideality of {model.ideality:g}"
        return [*_comment(words), f".model {name} d(is={model.saturation!r} n={model.ideality!r})"]

    @model.register
    def _(self, model: StraightLines) -> list[str]:
        return _comment(
            f"{self.names[model]}: two straight lines, {model.off:g} S below {model.offset:g} V and {model.on:g} S above, each "
            "diode by a source B"
        )
