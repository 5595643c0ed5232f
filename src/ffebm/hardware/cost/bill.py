"""What something takes, line by line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

__all__ = ["KINDS", "PHASES", "Bill", "Kind", "Line", "Phase"]
__dir__ = __all__.copy

Phase = Literal["free", "nudged", "update"]
Kind = Literal["settling", "input conversion", "read-out", "digital", "memory", "weight writes"]

PHASES: tuple[Phase, ...] = ("free", "nudged", "update")
KINDS: tuple[Kind, ...] = ("settling", "input conversion", "read-out", "digital", "memory", "weight writes")


@dataclass(frozen=True)
class Line:
    """One thing that one part does in one phase, for a whole batch."""

    phase: Phase  # forward counts as free, and backward as nudged, in digital parts
    part: str
    kind: Kind
    count: float  # of conversions, multiply-accumulates, accesses to memory or written cells
    energy: float  # in joules
    time: float  # in seconds
    per_step: bool = False  # once for a batch, whatever its size


@dataclass(frozen=True)
class Bill:
    """All lines of an inference or a training step."""

    batch: int
    lines: tuple[Line, ...]

    @property
    def energy(self) -> float:
        """Joules for the whole batch."""
        return sum(line.energy for line in self.lines)

    @property
    def time(self) -> float:
        """Seconds for the whole batch: samples, and what each of them does, one after the other."""
        return sum(line.time for line in self.lines)

    def energy_of(self, phase: Phase | None = None, kind: Kind | None = None) -> float:
        return sum(line.energy for line in self._those(phase, kind))

    def time_of(self, phase: Phase | None = None, kind: Kind | None = None) -> float:
        return sum(line.time for line in self._those(phase, kind))

    def count_of(self, phase: Phase | None = None, kind: Kind | None = None) -> float:
        return sum(line.count for line in self._those(phase, kind))

    def by_part(self, value: Callable[[Line], float] = lambda line: line.energy) -> dict[str, float]:
        """Of every part, in the order in which parts come first."""
        found: dict[str, float] = {}
        for line in self.lines:
            found[line.part] = found.get(line.part, 0.0) + value(line)
        return found

    def _those(self, phase: Phase | None, kind: Kind | None) -> Iterable[Line]:
        return (line for line in self.lines if phase in (None, line.phase) and kind in (None, line.kind))
