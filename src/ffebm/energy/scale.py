"""Physical units: what the numbers of a circuit are in siemens, volts and amperes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ffebm.checks import brief

__all__ = ["Scale"]
__dir__ = __all__.copy


@dataclass(frozen=True)
class Scale:
    """What a conductance of 1 and a voltage of 1 stand for; currents and powers follow.

    Voltages do not change where all conductances and currents are scaled alike.
    """

    siemens: float = 1.0
    volts: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (("siemens", self.siemens), ("volts", self.volts)):
            if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
                raise ValueError(f"`{name}` must be positive, got {brief(value)}: it is what a 1 in the block stands for.")

    @property
    def amperes(self) -> float:
        return self.siemens * self.volts

    @property
    def watts(self) -> float:
        return self.siemens * self.volts**2
