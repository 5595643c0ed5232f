"""Noise of every read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ffebm.hardware.checks import check_not_negative
from ffebm.hardware.devices.device import Device
from ffebm.hardware.draws import Draws

__all__ = ["ReadNoise"]
__dir__ = __all__.copy


@dataclass(frozen=True)
class ReadNoise(Device):
    r"""Every current into every unit gets fresh noise at every sweep: $u \mapsto u + \sigma \xi$.

    States then never quite settle: they wander around the equilibrium.

    Args:
        deviation: σ, in units of currents, which are those of states over the slope of their activation.

    Source: the output noise of a crossbar's product, `out_noise` of aihwkit (Rasch et al. 2021), at every product.
    """

    restless: ClassVar[bool] = True
    disturbs: ClassVar[bool] = True

    deviation: float

    def check(self) -> None:
        check_not_negative("deviation", self.deviation, "a standard deviation")

    def current(self, like: Tensor, draws: Draws) -> Tensor:
        return self.deviation * draws.normal(like)
