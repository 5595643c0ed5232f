"""Phases that are cut short."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ffebm.checks import check_size
from ffebm.hardware.devices.device import Device
from ffebm.relaxation import Relaxation

__all__ = ["SettleTime"]
__dir__ = __all__.copy


@dataclass(frozen=True)
class SettleTime(Device):
    """Every phase is read after so many sweeps, whether or not it has settled.

    One sweep stands for one time constant of the circuit: each layer goes to where its neighbours draw it, once.
    """

    restless: ClassVar[bool] = True

    sweeps: int

    def check(self) -> None:
        check_size("sweeps", self.sweeps)

    def shortened(self, relax: Relaxation) -> Relaxation:
        return replace(relax, steps=min(relax.steps, self.sweeps))
