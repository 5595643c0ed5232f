"""One run of a table of the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from ffebm.experiment.queue import Cell

__all__ = ["KINDS", "TableCell"]
__dir__ = __all__.copy

KINDS = ("ep", "id", "bp")


@final
@dataclass(frozen=True)
class TableCell(Cell):
    """A preset, a gradient and a seed."""

    preset: str
    kind: str
    seed: int
    changes: tuple[str, ...] = ()  # settings besides these
    row: str = ""  # of the table; without a name it is called as the preset

    @property
    def row_name(self) -> str:
        return self.row or self.preset

    @property
    def name(self) -> str:
        return f"{self.row_name}-{self.kind}-seed{self.seed}"

    @property
    def source(self) -> str:
        return self.preset

    @property
    def keeps_weights(self) -> bool:
        return self.kind == "ep" and self.seed == 0

    @property
    def overrides(self) -> list[str]:
        return [*self.changes, f"gradient.kind={self.kind}", f"seed={self.seed}"]
