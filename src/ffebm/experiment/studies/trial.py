"""One run of a study."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import final

from ffebm.experiment.queue import Cell
from ffebm.experiment.studies.axis import Level

__all__ = ["Trial"]
__dir__ = __all__.copy


@final
@dataclass(frozen=True)
class Trial(Cell):
    """A level of each axis, and a seed."""

    preset: str
    levels: tuple[Level, ...]
    seed: int
    changes: tuple[str, ...] = ()  # settings of the whole study

    @property
    def name(self) -> str:
        words = (re.sub(r"[^A-Za-z0-9.]+", "-", level.name).strip("-") for level in self.levels)
        return "-".join([*words, f"seed{self.seed}"])

    @property
    def source(self) -> str:
        return self.preset

    @property
    def overrides(self) -> list[str]:
        return [*self.changes, *(change for level in self.levels for change in level.changes), f"seed={self.seed}"]
