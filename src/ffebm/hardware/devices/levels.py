"""Cells that hold a few levels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ffebm.checks import check_size
from ffebm.hardware.devices.device import Cells, Device
from ffebm.hardware.draws import Draws

__all__ = ["Levels"]
__dir__ = __all__.copy


@dataclass(frozen=True)
class Levels(Device):
    r"""Every cell holds one of so many conductances, evenly from 0 to the largest.

    A pair of cells with $n$ levels each stores weights of $2n - 1$: with $n = 2^{b-1}$ they are weights of $b$ bits.

    Source: the weight discretisation of aihwkit (`WeightQuantizationType.DISCRETIZE`), whose `res` is $2n - 2$.
    """

    writes: ClassVar[bool] = True

    count: int

    def check(self) -> None:
        check_size("count", self.count, least=2)

    def written(self, cells: Cells, draws: Draws, name: str) -> Cells:
        most = self.count - 1
        return Cells(*(torch.round(g.clamp(0, 1) * most) / most for g in cells))
