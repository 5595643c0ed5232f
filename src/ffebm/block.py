"""The analog block: a module whose forward is a relaxation and whose backward is equilibrium propagation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from ffebm.checks import check_samples_stay_apart, check_type
from ffebm.energy import Energy
from ffebm.gradient import EquilibriumPropagation, GradientEstimator
from ffebm.gradient.estimator import full_precision
from ffebm.iteration import Relaxed
from ffebm.nudge import Cost
from ffebm.relaxation import FixedPoint, Relaxation, check_input

Method = TypeVar("Method", bound=Callable[..., Any])


def _not_compiled(method: Method) -> Method:
    """Have `torch.compile` cut its graph here: it would unroll every sweep otherwise."""
    return cast(Method, torch.compiler.disable(method))


class EnergyBlock(nn.Module):
    r"""Relaxes to $s_\star = \operatorname{argmin}_s E(s, \theta, x)$ and returns its last layer; goes wherever a module goes.

    Args:
        energy: what is minimised.
        relax: how the free equilibrium is found.
        estimator: how its derivative is computed.
        name: how errors name this block.

    Paper: Eq. [def:deeply-nested-model], Alg. [alg:inference-ff-ebm]
    """

    def __init__(
        self,
        energy: Energy,
        relax: Relaxation = FixedPoint(20),
        estimator: GradientEstimator = EquilibriumPropagation(),
        *,
        name: str = "",
    ) -> None:
        super().__init__()
        check_type("energy", energy, Energy, "Hopfield([Dense(32, 16)])")
        check_type("relax", relax, Relaxation, "FixedPoint(20)")
        check_type("estimator", estimator, GradientEstimator, "EquilibriumPropagation()")
        check_samples_stay_apart("The energy", energy, "Put it into a module before or behind the block.")
        self.energy = energy
        self.relax = relax
        self.estimator = estimator
        self.residual: Tensor | None = None  # of every sample in the last forward pass, and its sweeps
        self.sweeps: Tensor | None = None
        if name:
            energy.name = name

    def forward(self, x: Tensor) -> Tensor:
        return self.equilibrium(x).state[-1]

    @_not_compiled
    def equilibrium(self, x: Tensor) -> Relaxed:
        """All layers at equilibrium, each differentiable, with residual and sweeps."""
        with full_precision(x):
            relaxed = self.estimator.equilibrium(self.energy, self._enter(x), self.relax)
        return self._record(relaxed)

    @_not_compiled
    def losses(self, x: Tensor, cost: Cost, y: Tensor) -> tuple[Tensor, Relaxed]:
        """The loss of every sample, shape (B,), nudged elastically where the estimator nudges."""
        with full_precision(x):
            losses, relaxed = self.estimator.losses(self.energy, self._enter(x), self.relax, cost, y)
        return losses, self._record(relaxed)

    def _enter(self, x: Tensor) -> Tensor:
        """Check the input and bring it from autocast's precision to the block's own."""
        check_input(self.energy, x)
        parameter = next(self.energy.parameters(), None)
        own = torch.promote_types(x.dtype, torch.float32) if parameter is None else parameter.dtype
        half = x.dtype in (torch.float16, torch.bfloat16)
        if x.dtype != own and not half:
            raise TypeError(
                f"The input of {self.energy.label} is {x.dtype} but its parameters are {own}: "
                "convert the data or the model so that both are the same."
            )
        return x.to(own)

    def _record(self, relaxed: Relaxed) -> Relaxed:
        self.residual, self.sweeps = relaxed.residual.detach(), relaxed.sweeps
        return relaxed

    def extra_repr(self) -> str:
        return f"relax={self.relax}, estimator={self.estimator}"
