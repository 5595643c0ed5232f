"""What every imperfection of a device is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from ffebm.hardware.draws import Draws
from ffebm.relaxation import Relaxation

__all__ = ["Cells", "Device"]
__dir__ = __all__.copy


class Cells(NamedTuple):
    r"""The conductances that store a weight, $w = w_{\max} (g_+ - g_-)$, each between 0 and 1, in units of the largest.

    One cell of each pair is at 0 when it is programmed.
    """

    plus: Tensor
    minus: Tensor

    @classmethod
    def of(cls, weight: Tensor, largest: Tensor) -> Cells:
        """Those that a weight is written to."""
        scaled = weight / largest
        return cls(scaled.clamp(min=0), (-scaled).clamp(min=0))

    def weight(self, largest: Tensor, *, pairs: bool = True) -> Tensor:
        """What they store; where there are no pairs, the first alone, which has no sign."""
        return largest * (self.plus - self.minus) if pairs else largest * self.plus.clamp(min=0)


@dataclass(frozen=True)
class Device(ABC):
    """One imperfection: a subclass overrides what it changes, and says so."""

    writes: ClassVar[bool] = False  # whether it changes what is stored: once for a whole step, free and nudged
    splits: ClassVar[bool] = False  # whether currents that come back meet other devices than those that go up
    ages: ClassVar[bool] = False  # whether what is stored changes from one phase to the next
    restless: ClassVar[bool] = False  # whether phases are read before all has come to rest
    disturbs: ClassVar[bool] = False  # whether currents are disturbed at every sweep

    def __post_init__(self) -> None:
        self.check()

    @abstractmethod
    def check(self) -> None:
        """Refuse numbers that cannot be."""

    def written(self, cells: Cells, draws: Draws, name: str) -> Cells:
        """What cells hold that are programmed to these conductances.

        Args:
            name: of the parameter, for a pattern that stays.
        """
        return cells

    def aged(self, weight: Tensor, phase: int, draws: Draws, name: str) -> Tensor:
        """A weight in a phase: 0 is the free one, and nudged ones count from 1."""
        return weight

    def current(self, like: Tensor, draws: Draws) -> Tensor:
        """What it adds to the current into a layer of this state, at one sweep."""
        raise NotImplementedError

    def shortened(self, relax: Relaxation) -> Relaxation:
        """The relaxation as far as it comes."""
        return relax
