"""Noise of writing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ffebm.hardware.checks import check_not_negative
from ffebm.hardware.devices.device import Cells, Device
from ffebm.hardware.draws import Draws

__all__ = ["ProgrammingNoise"]
__dir__ = __all__.copy


@dataclass(frozen=True)
class ProgrammingNoise(Device):
    r"""Writing misses its aim: $w \mapsto w + \sigma\, w_{\max}\, \xi$, drawn anew at every training step, which rewrites all.

    What was written stays for the whole step: free and nudged phases see the same.

    Args:
        deviation: σ, in parts of the largest weight.

    Source: `WeightNoiseInjectionType.ADD_NORMAL` of aihwkit-lightning.
    """

    writes: ClassVar[bool] = True

    deviation: float

    def check(self) -> None:
        check_not_negative("deviation", self.deviation, "a standard deviation in parts of the largest weight")

    def written(self, cells: Cells, draws: Draws, name: str) -> Cells:
        return cells._replace(plus=cells.plus + self.deviation * draws.normal(cells.plus))
