"""Wires that are no ideal conductors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ffebm.checks import check_size
from ffebm.hardware.checks import check_not_negative
from ffebm.hardware.devices.device import Cells, Device
from ffebm.hardware.draws import Draws

__all__ = ["WireResistance"]
__dir__ = __all__.copy


@dataclass(frozen=True)
class WireResistance(Device):
    r"""Voltage drops along the wires of a crossbar (IR drop), to first order in their resistance.

    Rows are driven at one end, columns are sensed at one end, and every cell adds a piece of wire to both:

    $$g_{ij} \mapsto g_{ij} \Big(1 - r \sum_l \min(j, l)\, g_{il} - r \sum_k \min(i', k')\, g_{kj}\Big)$$

    with $i, j$ counted from 1 at the driven end of a row, and $i'$ from the sensed end of a column. The first sum is what the
    other cells of a row take from its voltage on the way, the second what the others of a column lift its wire by. Cells far
    from both ends lose most. A network of resistors is reciprocal, so currents back lose as much.

    Args:
        ratio: $r$, the resistance of a piece of wire times the largest conductance: 1 Ω and 25 µS make 2.5e-5.
        tile: rows and columns of a crossbar; larger matrices are cut into several.

    Source: first-order nodal analysis of a crossbar; tests hold it against the exact solution of a small one.
    """

    writes: ClassVar[bool] = True

    ratio: float
    tile: int = 512

    def check(self) -> None:
        check_not_negative("ratio", self.ratio, "the resistance of a piece of wire times the largest conductance")
        check_size("tile", self.tile)

    def written(self, cells: Cells, draws: Draws, name: str) -> Cells:
        plus, minus = (g.flatten(1).T for g in cells)  # (rows, columns): inputs are rows
        held = [torch.empty_like(plus), torch.empty_like(minus)]
        for rows in _cut(len(plus), self.tile):
            for columns in _cut(plus.shape[1], self.tile):
                pair = plus[rows, columns], minus[rows, columns]
                along_row = self._along(pair[0] + pair[1], torch.arange(1.0, pair[0].shape[1] + 1))
                for whole, g in zip(held, pair, strict=True):
                    from_end = torch.arange(len(g), 0.0, -1)
                    along_column = self._along(g.T, from_end).T
                    whole[rows, columns] = g * (1 - self.ratio * (along_row + along_column)).clamp(min=0)
        return Cells(*(g.T.reshape(like.shape) for g, like in zip(held, cells, strict=True)))

    @staticmethod
    def _along(g: Tensor, places: Tensor) -> Tensor:
        """What flows along each line of `g`, times the wire that cells at these places have in common with it."""
        places = places.to(g)
        return g @ torch.minimum(places.unsqueeze(0), places.unsqueeze(1))


def _cut(size: int, tile: int) -> list[slice]:
    return [slice(start, start + tile) for start in range(0, size, tile)]
