"""Substrates: what a block runs on, where that is not an ideal simulation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from ffebm.relaxation import Relaxation
from ffebm.system import System

__all__ = ["Chip", "Equipment", "Readout", "Substrate"]
__dir__ = __all__.copy


class Readout(NamedTuple):
    """What the converters made of nudged phases."""

    saturated: float  # share of readings at an end of their range
    unmoved: float  # share of units of which all readings are the same, the one that the phases began at among them


class Equipment(NamedTuple):
    """What a block is built with, as far as its cost depends on that."""

    dac_bits: int | None = None  # None where nothing is said of them
    adc_bits: int | None = None
    repeats: int = 1  # of each read-out, which are averaged
    reads_all: bool = True  # layers, and not the output alone, where the block learns
    signed: bool = True  # whether a weight is the difference of two cells
    ways: int = 1  # crossbars that hold the same weights: two, where currents come back through another


class Chip(nn.Module, ABC):
    """One piece of a substrate, on which one block runs: what it has learned in use, such as ranges, is in its buffers."""

    substrate: Substrate
    restless: bool = False  # whether phases are read before all has come to rest, as it is meant to be

    @abstractmethod
    def enter(self, x: Tensor) -> Tensor:
        """An input as the analog part gets it; differentiable."""

    @abstractmethod
    def over(self, system: System) -> System:
        """A system as this chip shows it for one pass, forward and backward."""

    @abstractmethod
    def watch(self, watcher: Callable[[Readout], object] | None) -> None:
        """Have somebody see what becomes of nudged phases from now on; None ends that."""


class Substrate(ABC):
    """A description of what blocks can run on."""

    equipment: Equipment = Equipment()

    def shortened(self, relax: Relaxation) -> Relaxation:
        """A relaxation as far as it comes here."""
        return relax

    @abstractmethod
    def chip(self, layers: int | None) -> Chip | None:
        """A new chip for a block of so many layers, where that is known; None where it would change nothing."""
