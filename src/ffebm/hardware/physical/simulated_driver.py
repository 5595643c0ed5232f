"""A device that is no device: any energy, relaxed on this computer."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import final

import torch
from torch import Tensor

from ffebm.checks import check_type
from ffebm.energy import Energy
from ffebm.hardware.physical.driver import Currents, Driver
from ffebm.hardware.physical.parameters import load_parameters
from ffebm.nudge import Stationary
from ffebm.relaxation import FixedPoint, Relaxation
from ffebm.state import State
from ffebm.system import FREE, Phase, Simulated

__all__ = ["SimulatedDriver"]
__dir__ = __all__.copy


@final
class SimulatedDriver(Driver):
    """Settles as an energy does that a relaxation minimises: to test what goes around a device, here or in another process.

    Args:
        energy: copied, and in double precision.
        relax: how it settles.
    """

    rows: int | None = None

    def __init__(self, energy: Energy, relax: Relaxation = FixedPoint(1000, tolerance=1e-10)) -> None:
        check_type("energy", energy, Energy, "Hopfield([Dense(32, 16)])")
        self.system = Simulated(deepcopy(energy).double(), relax)
        self._x: Tensor | None = None
        self._phase = FREE
        self._state: State = ()

    def program(self, parameters: Mapping[str, Tensor]) -> None:
        load_parameters(self.system.energy, parameters)

    def set_input(self, x: Tensor) -> None:
        self._x = x.double()

    def apply_nudge(self, currents: Currents) -> None:
        energy = self.system.energy
        forces = tuple(
            None if current is None else -energy.layer_weight(layer) * current.double()
            for layer, current in enumerate(currents)
        )
        self._phase = FREE if all(force is None for force in forces) else Phase(Stationary(1.0, forces), 1.0)

    @torch.no_grad()
    def settle(self) -> None:
        assert self._x is not None, "an input comes first"
        (reading,) = self.system.settle(self._x, [self._phase])
        self._state = reading.state

    def read(self) -> State:
        return self._state

    def __repr__(self) -> str:
        return f"SimulatedDriver({self.system.kind})"
