"""Automatic differentiation through recorded sweeps."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ffebm.checks import check_type
from ffebm.energy import Energy
from ffebm.gradient.estimator import GradientEstimator
from ffebm.relaxation import FixedPoint, Relaxation, Relaxed


@dataclass(frozen=True)
class Unrolled(GradientEstimator):
    """The paper's implicit differentiation (ID): relax without recording, then record a few more sweeps.

    Autograd through those sweeps, all at the equilibrium, is a truncated Neumann series for the implicit derivative.
    Memory grows with their number. Second derivatives work.

    Args:
        relax: the recorded sweeps, which start from the free equilibrium.

    Paper: Alg. [alg:id]
    """

    relax: Relaxation = field(default_factory=lambda: FixedPoint(10, order="output-last"))

    def __post_init__(self) -> None:
        check_type("relax", self.relax, Relaxation, "FixedPoint(10)")

    def equilibrium(self, energy: Energy, x: Tensor, relax: Relaxation) -> Relaxed:
        with torch.no_grad():
            free = relax(energy, x)
        recorded = self.relax(energy, x, start=free.state)
        return Relaxed(recorded.state, free.residual, free.sweeps)  # these tell whether it was an equilibrium


@dataclass(frozen=True)
class BackpropThroughTime(GradientEstimator):
    """Autograd through the whole relaxation: exact for the sweeps that were made, settled or not.

    Memory grows with their number. Second derivatives work.

    Paper: appendix A.5, the gradient that Eq. [eq:gdd] truncates
    """

    def equilibrium(self, energy: Energy, x: Tensor, relax: Relaxation) -> Relaxed:
        return relax(energy, x)
