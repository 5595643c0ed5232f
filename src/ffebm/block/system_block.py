"""Blocks of which only readings are known."""

from __future__ import annotations

from typing import Any, NoReturn

from torch import Tensor

from ffebm.block.analog_block import AnalogBlock, Unsettled
from ffebm.checks import check_type
from ffebm.gradient import EquilibriumPropagation, GradientEstimator
from ffebm.substrate import Substrate
from ffebm.system import System
from ffebm.tracing import transforming

__all__ = ["SystemBlock"]
__dir__ = __all__.copy


class SystemBlock(AnalogBlock):
    """Any system as a module: a chip, a circuit, a map without an energy, or a simulation that is disturbed.

    Args:
        system: what settles.
        estimator: how the derivative of its equilibrium is computed, from readings alone.
        name: how errors name this block.
        unsettled: as in `EnergyBlock`.
        hardware: likewise.
    """

    def __init__(
        self,
        system: System,
        estimator: GradientEstimator = EquilibriumPropagation(),
        *,
        name: str = "",
        unsettled: Unsettled = "warn",
        hardware: Substrate | None = None,
    ) -> None:
        check_type("system", system, System, "Simulated(Hopfield([Dense(32, 16)]), FixedPoint(20))")
        super().__init__("The system", system, estimator, name, unsettled)
        self.system = system
        self.put_on(hardware)

    def _enter(self, x: Tensor, dims: int) -> Tensor:
        x = super()._enter(x, dims)
        if not transforming():  # which change nothing in place
            self.system.confine_()
        return x

    def _refuse(self, *_: Any) -> NoReturn:
        raise TypeError(
            f"{self.label} is known by its readings alone. Its energy and sweeps, which calibration and diagnostics ask for, "
            "belong to an `EnergyBlock`; how a system settles is said where it is made."
        )

    energy = property(_refuse)
    relax = property(_refuse, _refuse)
