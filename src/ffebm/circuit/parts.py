"""Parts of circuits, and the nodes between them, as plain data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias, final

from ffebm.circuit.checks import check_comment, check_finite, check_name, check_positive

__all__ = [
    "GROUND",
    "THERMAL_VOLTAGE",
    "Amplifier",
    "CurrentSource",
    "Diode",
    "DiodeModel",
    "Junction",
    "Node",
    "Part",
    "Resistor",
    "StraightLines",
    "VoltageSource",
]
__dir__ = __all__.copy

GROUND = "0"
THERMAL_VOLTAGE = 1.380649e-23 * 300.15 / 1.602176634e-19  # k T / q at 27 °C, where SPICE is by default


@dataclass(frozen=True)
class Node:
    """A point of which a voltage can be measured, against ground."""

    name: str
    comment: str = ""

    def __post_init__(self) -> None:
        check_name("A node", self.name)
        check_comment(self.comment)


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
        check_positive(self, "saturation", "ideality")


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
        check_positive(self, "on")
        check_finite(self, "offset")
        if not 0 <= self.off < self.on:
            raise ValueError(f"A diode conducts more when it is open: got off={self.off} and on={self.on}, in siemens.")


DiodeModel: TypeAlias = Junction | StraightLines


class Part(ABC):
    """What lies between nodes."""

    letter: ClassVar[str]  # that its name begins with, as SPICE has it
    amplifies: ClassVar[bool] = False
    name: str

    @property
    @abstractmethod
    def nodes(self) -> tuple[str, ...]:
        """The names of those that it ends in."""

    @property
    def level(self) -> float | None:
        """What a source is set to, in volts or amperes; None where there is nothing to set."""
        return None

    def set_to(self, level: float) -> Part:
        """The same, set to this."""
        raise TypeError(f"{self.name!r} is no source, so nothing can be set.")

    @property
    def diode_model(self) -> DiodeModel | None:
        return None


@final
@dataclass(frozen=True)
class Resistor(Part):
    """A resistor between two nodes, by its conductance in siemens."""

    name: str
    first: str
    second: str
    conductance: float

    letter: ClassVar[str] = "r"

    def __post_init__(self) -> None:
        check_positive(self, "conductance")

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.first, self.second


@final
@dataclass(frozen=True)
class Diode(Part):
    """A diode that lets current through from anode to cathode."""

    name: str
    anode: str
    cathode: str
    model: DiodeModel

    letter: ClassVar[str] = "d"

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.anode, self.cathode

    @property
    def diode_model(self) -> DiodeModel:
        return self.model


@final
@dataclass(frozen=True)
class VoltageSource(Part):
    """Holds `positive` so many volts above `negative`."""

    name: str
    positive: str
    negative: str
    value: float

    letter: ClassVar[str] = "v"

    def __post_init__(self) -> None:
        check_finite(self, "value")

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.positive, self.negative

    @property
    def level(self) -> float:
        return self.value

    def set_to(self, level: float) -> VoltageSource:
        return replace(self, value=level)


@final
@dataclass(frozen=True)
class CurrentSource(Part):
    """Drives so many amperes from `origin` into `into`."""

    name: str
    origin: str
    into: str
    value: float

    letter: ClassVar[str] = "i"

    def __post_init__(self) -> None:
        check_finite(self, "value")

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.origin, self.into

    @property
    def level(self) -> float:
        return self.value

    def set_to(self, level: float) -> CurrentSource:
        return replace(self, value=level)


@final
@dataclass(frozen=True)
class Amplifier(Part):
    """A bidirectional amplifier: `output` is held at `forward` × the voltage of `input`, whatever current that takes.

    Of this current, `input` has to deliver `backward` times as much. Voltages go forward, currents come back.
    """

    name: str
    input: str
    output: str
    forward: float
    backward: float

    letter: ClassVar[str] = "a"
    amplifies: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_finite(self, "forward", "backward")

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.input, self.output
