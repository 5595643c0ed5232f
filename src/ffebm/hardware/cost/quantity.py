"""Numbers with units, so that a power is never taken for an energy."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ffebm.checks import brief, brief_name

__all__ = ["Quantity", "in_units", "suited"]
__dir__ = __all__.copy

Dimension = tuple[int, int]  # powers of joule and second

PREFIXES = {"f": 1e-15, "p": 1e-12, "n": 1e-9, "µ": 1e-6, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
BASES: dict[str, Dimension] = {"J": (1, 0), "s": (0, 1), "W": (1, -1), "S/s": (0, -1), "Hz": (0, -1)}
NAMES: dict[Dimension, str] = {
    (1, 0): "an energy, for example pJ",
    (0, 1): "a time, for example ns",
    (1, -1): "a power, for example mW",
    (0, -1): "a rate, for example GS/s or GHz",
    (0, 0): "a number without a unit",
}


@dataclass(frozen=True)
class Quantity:
    """A value in joules and seconds, with the powers of both in its unit."""

    value: float
    dimension: Dimension = (0, 0)

    @classmethod
    def of(cls, value: float, unit: str) -> Quantity:
        """A value in a unit by its name, such as "pJ", "mW" or "GS/s"; no unit at all is the empty text."""
        if not unit:
            return cls(float(value))
        found = re.fullmatch(rf"([{''.join(PREFIXES)}]?)({'|'.join(BASES)})", unit)
        if found is None:
            raise ValueError(
                f"Unknown unit `{brief_name(unit)}`: use J, s, W, Hz or S/s (samples a second), with f, p, n, µ, m, k, M or G "
                "before it, for example pJ"
            )
        return cls(value * PREFIXES[found[1]], BASES[found[2]])

    def __mul__(self, other: Quantity | float) -> Quantity:
        if isinstance(other, Quantity):
            (joules, seconds), (more, longer) = self.dimension, other.dimension
            return Quantity(self.value * other.value, (joules + more, seconds + longer))
        return Quantity(self.value * other, self.dimension)

    __rmul__ = __mul__

    def __truediv__(self, other: Quantity | float) -> Quantity:
        if isinstance(other, Quantity):
            return self * Quantity(1 / other.value, (-other.dimension[0], -other.dimension[1]))
        return Quantity(self.value / other, self.dimension)

    def __add__(self, other: Quantity) -> Quantity:
        self._check(other.dimension)
        return Quantity(self.value + other.value, self.dimension)

    def to(self, unit: str) -> float:
        """The number of such units; raises where they measure something else."""
        one = Quantity.of(1.0, unit)
        self._check(one.dimension)
        return self.value / one.value

    def _check(self, wanted: Dimension) -> None:
        if self.dimension != wanted:
            raise ValueError(f"{self} is {NAMES.get(self.dimension, 'something else')}, and {NAMES[wanted]} is needed")

    def __str__(self) -> str:
        unit = next((name for name, dimension in BASES.items() if dimension == self.dimension), "")
        return in_units(self.value, unit) if unit else brief(self.value)


def in_units(value: float, unit: str) -> str:
    """A value in joules, seconds or watts with the prefix that suits it, such as 1.67 pJ."""
    size, name = suited(value, unit)
    return f"{value / size:.3g} {name}" if value else f"0 {unit}"


def suited(value: float, unit: str) -> tuple[float, str]:
    """The size of the unit that suits a value, and its name."""
    steps = [("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0), ("m", 1e-3), ("µ", 1e-6), ("n", 1e-9), ("p", 1e-12), ("f", 1e-15)]
    prefix, size = next(((name, size) for name, size in steps if abs(value) >= 0.9995 * size), steps[-1])
    return size, f"{prefix}{unit}"
