"""Electrical circuits as plain data: what an energy hands over to a circuit simulator, or to whoever builds it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

from ffebm.checks import brief, check_size

__all__ = [
    "GROUND",
    "THERMAL_VOLTAGE",
    "Amplifier",
    "Circuit",
    "CurrentSource",
    "Diode",
    "DiodeModel",
    "Junction",
    "Node",
    "Part",
    "Port",
    "Resistor",
    "Section",
    "Source",
    "StraightLines",
    "VoltageSource",
]
__dir__ = __all__.copy

GROUND = "0"
THERMAL_VOLTAGE = 1.380649e-23 * 300.15 / 1.602176634e-19  # k T / q at 27 °C, where SPICE is by default

_NAME = re.compile("[a-z][a-z0-9_]{0,39}")  # SPICE takes small and capital letters for the same


@dataclass(frozen=True)
class Node:
    """A point of which a voltage can be measured, against ground."""

    name: str
    comment: str = ""

    def __post_init__(self) -> None:
        _check_name("A node", self.name)
        _check_comment(self.comment)


@dataclass(frozen=True)
class Junction:
    r"""A semiconductor diode, $i = I_s\,(e^{v / (N V_T)} - 1)$; the smaller N, the closer to an ideal one.

    Args:
        saturation: the current $I_s$ that leaks through it backwards, in amperes.
        ideality: N; 1 is a good silicon diode, and 0.001 no real one but nearly ideal: it drops less than a millivolt.
    """

    saturation: float = 1e-12
    ideality: float = 1.0

    def __post_init__(self) -> None:
        _check_positive(self, "saturation", "ideality")


@dataclass(frozen=True)
class StraightLines:
    """A diode of two resistances: one below an offset, another one above.

    Args:
        offset: where it opens, in volts.
        on: what it conducts above, in siemens.
        off: what it conducts below.
    """

    offset: float
    on: float
    off: float

    def __post_init__(self) -> None:
        _check_positive(self, "on")
        _check_finite(self, "offset")
        if not 0 <= self.off < self.on:
            raise ValueError(f"A diode conducts more when it is open: got off={self.off} and on={self.on}, in siemens.")


DiodeModel: TypeAlias = Junction | StraightLines


@dataclass(frozen=True)
class Resistor:
    """A resistor between two nodes, by its conductance in siemens."""

    name: str
    first: str
    second: str
    conductance: float

    letter: ClassVar[str] = "r"

    def __post_init__(self) -> None:
        _check_positive(self, "conductance")

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.first, self.second


@dataclass(frozen=True)
class Diode:
    """A diode that lets current through from anode to cathode."""

    name: str
    anode: str
    cathode: str
    model: DiodeModel

    letter: ClassVar[str] = "d"

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.anode, self.cathode


@dataclass(frozen=True)
class VoltageSource:
    """Holds `positive` so many volts above `negative`."""

    name: str
    positive: str
    negative: str
    value: float

    letter: ClassVar[str] = "v"

    def __post_init__(self) -> None:
        _check_finite(self, "value")

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.positive, self.negative


@dataclass(frozen=True)
class CurrentSource:
    """Drives so many amperes from `origin` into `into`."""

    name: str
    origin: str
    into: str
    value: float

    letter: ClassVar[str] = "i"

    def __post_init__(self) -> None:
        _check_finite(self, "value")

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.origin, self.into


@dataclass(frozen=True)
class Amplifier:
    """A bidirectional amplifier: `output` is held at `forward` × the voltage of `input`, whatever current that takes.

    Of this current, `input` has to deliver `backward` times as much. Voltages go forward, currents come back.
    """

    name: str
    input: str
    output: str
    forward: float
    backward: float

    letter: ClassVar[str] = "a"

    def __post_init__(self) -> None:
        _check_finite(self, "forward", "backward")

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.input, self.output


Source: TypeAlias = VoltageSource | CurrentSource
Part: TypeAlias = Resistor | Diode | VoltageSource | CurrentSource | Amplifier


@dataclass(frozen=True)
class Section:
    """Nodes and parts that belong together, and a word on what they are for."""

    title: str
    nodes: tuple[Node, ...] = ()
    parts: tuple[Part, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for words in (self.title, *self.notes):
            _check_comment(words)

    @property
    def sources(self) -> dict[str, float]:
        """The values of those that may change from sample to sample, by name."""
        return {part.name: part.value for part in self.parts if isinstance(part, VoltageSource | CurrentSource)}

    def with_sources(self, values: Mapping[str, float]) -> Section:
        """The same with other values of some sources; itself, where none of them is here."""
        if not values.keys() & self.sources.keys():
            return self
        parts = (
            replace(part, value=values.get(part.name, part.value)) if isinstance(part, VoltageSource | CurrentSource) else part
            for part in self.parts
        )
        return replace(self, parts=tuple(parts))


@dataclass(frozen=True)
class Port:
    """A source through which a number enters: its value is `factor` × the number, in volts or amperes.

    Args:
        source: its name.
        unit: which of the numbers of one sample it is, from 0.
    """

    source: str
    unit: int
    factor: float

    def __post_init__(self) -> None:
        check_size("unit", self.unit, 0)
        _check_finite(self, "factor")


@dataclass(frozen=True)
class Circuit:
    """A circuit, section by section, and where a block finds itself in it.

    Args:
        layers: the names of the nodes that are the units of each layer, in their order.
        inputs: where the input of the block enters.
        nudges: where currents into the units of each layer enter; a layer without ports cannot be nudged.
        volts: what 1 in the block is here.
        siemens: what a conductance of 1 is.
        notes: what somebody who reads it should know first.
    """

    title: str
    sections: tuple[Section, ...]
    layers: tuple[tuple[str, ...], ...] = ()
    inputs: tuple[Port, ...] = ()
    nudges: tuple[tuple[Port, ...], ...] = ()
    volts: float = 1.0
    siemens: float = 1.0
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_positive(self, "volts", "siemens")
        if len(self.nudges) > len(self.layers):
            raise ValueError(f"There are nudges of {len(self.nudges)} layers, and only {len(self.layers)} layers.")
        for words in (self.title, *self.notes):
            _check_comment(words)
        nodes = [node.name for section in self.sections for node in section.nodes]
        known = {GROUND, *nodes}
        if len(known) != len(nodes) + 1:
            raise ValueError(f"Two nodes have one name: {brief(_twice(nodes))}. Each needs a name of its own.")
        names: list[str] = []
        for part in self.parts:
            if not part.name.startswith(part.letter):
                raise ValueError(
                    f"The name of a {type(part).__name__} begins with {part.letter!r}, as SPICE has it, got {brief(part.name)}."
                )
            _check_name("A part", part.name)
            names.append(part.name)
            strange = [name for name in part.nodes if name not in known]
            if strange:
                raise ValueError(
                    f"{brief(part.name)} ends in {brief(strange[0])}, which is no node of the circuit: list it in a section."
                )
        if len(set(names)) != len(names):
            raise ValueError(f"Two parts have one name: {brief(_twice(names))}. Each needs a name of its own.")
        sources = self.sources
        for port in (*self.inputs, *(port for ports in self.nudges for port in ports)):
            if port.source not in sources:
                raise ValueError(f"A port is {brief(port.source)}, which is no source of the circuit: list it in a section.")
        for name in (name for layer in self.layers for name in layer):
            if name not in known:
                raise ValueError(f"A layer is read at {brief(name)}, which is no node of the circuit: list it in a section.")

    @property
    def parts(self) -> Iterator[Part]:
        """All of them, in their order."""
        return (part for section in self.sections for part in section.parts)

    @property
    def nodes(self) -> Iterator[Node]:
        """All of them but ground, in their order."""
        return (node for section in self.sections for node in section.nodes)

    @property
    def sources(self) -> dict[str, float]:
        """The values of all sources, by name."""
        return {name: value for section in self.sections for name, value in section.sources.items()}

    @property
    def diode_models(self) -> list[DiodeModel]:
        """Those that occur, each once."""
        return list(dict.fromkeys(part.model for part in self.parts if isinstance(part, Diode)))

    @property
    def amplified(self) -> bool:
        return any(isinstance(part, Amplifier) for part in self.parts)

    def values(self, x: Sequence[float], currents: Sequence[Sequence[float] | None] = ()) -> dict[str, float]:
        """The values of the sources that make the input and the nudges of one sample, by name.

        Args:
            x: the input of the block, flat.
            currents: of the nudge into every layer, flat, as the block counts them; None, or nothing, where there are none.
        """
        found = {port.source: port.factor * x[port.unit] for port in self.inputs}
        for layer, current in enumerate(currents):
            ports = self.nudges[layer] if layer < len(self.nudges) else ()
            if current is not None and not ports:
                raise ValueError(
                    f"Layer {layer + 1} of the circuit cannot be nudged, because no current source ends in it: only layers "
                    "that are nudged have some."
                )
            if current is not None:
                found |= {port.source: port.factor * current[port.unit] for port in ports}
        return found

    def fed(self, x: Sequence[float], currents: Sequence[Sequence[float] | None] = ()) -> Circuit:
        """The circuit with the input and the nudges of one sample."""
        values = self.values(x, currents)
        return replace(self, sections=tuple(section.with_sources(values) for section in self.sections))


def _twice(names: list[str]) -> str:
    return next(name for index, name in enumerate(names) if name in names[:index])


def _check_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{what} cannot be called {brief(name)}: a netlist takes small letters, digits and underscores, 40 at most, and a "
            "letter first."
        )


def _check_comment(words: str) -> None:
    if not words.isprintable():
        raise ValueError(f"A comment is one line of text, got {brief(words)}: in a netlist, a new line would be a new part.")


def _check_positive(owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"`{name}` of a {type(owner).__name__} must be positive, got {value!r}.")


def _check_finite(owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if not math.isfinite(value):
            raise ValueError(f"`{name}` of a {type(owner).__name__} must be a finite number, got {value!r}.")
