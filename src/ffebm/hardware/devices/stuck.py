"""Cells that no writing changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ffebm.hardware.checks import check_between
from ffebm.hardware.devices.device import Cells, Device
from ffebm.hardware.draws import Draws

__all__ = ["StuckCells"]
__dir__ = __all__.copy


@dataclass(frozen=True)
class StuckCells(Device):
    """Some cells are stuck for ever, at zero or at the largest conductance, whatever is written to them.

    Which ones was decided when the chip was made. Training does not know: their weights go on changing, without effect.

    Args:
        off: the share of cells that are stuck at zero.
        on: the share that are stuck at the largest conductance.

    Source: stuck-at faults, as Chen et al., IEEE Trans. Computers 64 (2015), found them in a chip of 4 Mb of ReRAM.
    """

    writes: ClassVar[bool] = True

    off: float = 0.0
    on: float = 0.0

    def check(self) -> None:
        check_between("off", self.off, 0, 1, "a share of all cells")
        check_between("on", self.on, 0, 1, "a share of all cells")
        if self.off + self.on > 1:
            raise ValueError(f"`off` and `on` are shares of the same cells, got {self.off:g} and {self.on:g}: more than all.")

    def written(self, cells: Cells, draws: Draws, name: str) -> Cells:
        return Cells(*(self._stuck(g, draws, (name, "stuck", sign)) for g, sign in zip(cells, "+-", strict=True)))

    def _stuck(self, g: torch.Tensor, draws: Draws, what: tuple[str, ...]) -> torch.Tensor:
        lot = draws.made_uniform(g, *what)
        return torch.where(lot < self.off, 0.0, torch.where(lot > 1 - self.on, 1.0, g))
