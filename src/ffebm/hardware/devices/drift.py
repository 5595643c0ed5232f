"""Conductances that fall as time passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ffebm.hardware.checks import check_not_negative, check_positive
from ffebm.hardware.devices.device import Device
from ffebm.hardware.draws import Draws

__all__ = ["Drift"]
__dir__ = __all__.copy


@dataclass(frozen=True)
class Drift(Device):
    r"""Conductances fall after they were written, $g(t) = g(t_0)\, (t / t_0)^{-\nu}$, also between the phases of a step.

    The free phase is read at $t_0$, the first nudged phase one `phase` later, and so on. What falls in between enters the
    contrast of two phases as if the nudge had moved it, divided by β.

    Args:
        exponent: ν, 0.05 to 0.1 for phase-change memory.
        spread: its standard deviation from cell to cell, decided when the chip was made.
        phase: seconds from the start of one phase to that of the next.
        first: $t_0$, seconds from writing to the free phase.

    Source: the law of Le Gallo et al. (2018), in the form of aihwkit's `PCMLikeNoiseModel`, there with $t_0$ = 20 s.
    """

    ages: ClassVar[bool] = True

    exponent: float = 0.05
    spread: float = 0.0
    phase: float = 1.0
    first: float = 20.0

    def check(self) -> None:
        check_not_negative("exponent", self.exponent, "the exponent that conductances fall by")
        check_not_negative("spread", self.spread, "a standard deviation")
        check_not_negative("phase", self.phase, "the time from one phase to the next, in seconds")
        check_positive("first", self.first, "the time from writing to the free phase, in seconds")

    def aged(self, weight: Tensor, phase: int, draws: Draws, name: str) -> Tensor:
        exponents = self.exponent
        if self.spread:
            exponents = (self.exponent + self.spread * draws.made(weight, name, "drift")).clamp(min=0)
        return weight * (1 + phase * self.phase / self.first) ** -exponents
