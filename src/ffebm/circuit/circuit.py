"""Circuits: sections of parts, and where a block finds itself in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ffebm.checks import brief, check_size
from ffebm.circuit.checks import check_comment, check_finite, check_name, check_positive
from ffebm.circuit.parts import GROUND, DiodeModel, Node, Part

__all__ = ["Circuit", "Port", "Section"]
__dir__ = __all__.copy


@dataclass(frozen=True)
class Section:
    """Nodes and parts that belong together, and a word on what they are for."""

    title: str
    nodes: tuple[Node, ...] = ()
    parts: tuple[Part, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for words in (self.title, *self.notes):
            check_comment(words)

    @property
    def sources(self) -> dict[str, float]:
        """The values of those that may change from sample to sample, by name."""
        return {part.name: part.level for part in self.parts if part.level is not None}

    def with_sources(self, values: Mapping[str, float]) -> Section:
        """The same with other values of some sources; itself, where none of them is here."""
        if not values.keys() & self.sources.keys():
            return self
        parts = (part.set_to(values[part.name]) if part.name in values else part for part in self.parts)
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
        check_finite(self, "factor")


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
        check_positive(self, "volts", "siemens")
        if len(self.nudges) > len(self.layers):
            raise ValueError(f"There are nudges of {len(self.nudges)} layers, and only {len(self.layers)} layers.")
        for words in (self.title, *self.notes):
            check_comment(words)
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
            check_name("A part", part.name)
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
        return list(dict.fromkeys(part.diode_model for part in self.parts if part.diode_model is not None))

    @property
    def amplified(self) -> bool:
        return any(part.amplifies for part in self.parts)

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
