"""An edge as crossbars see it: a matrix, and how often it is applied."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Matrix"]
__dir__ = __all__.copy


class Matrix(NamedTuple):
    """Weights that a crossbar holds, with the layer below on its rows and the layer above on its columns."""

    rows: int
    columns: int
    positions: int = 1  # places of an image that the same weights serve
    groups: int = 1  # matrices of this size, each with rows and columns of its own

    @property
    def weights(self) -> int:
        return self.groups * self.rows * self.columns

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one product, one way, for one sample."""
        return self.positions * self.weights
