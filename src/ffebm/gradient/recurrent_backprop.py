"""Recurrent backprop: the implicit function theorem, solved by iteration."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ffebm.checks import check_type
from ffebm.derivative import Gradients, differentiate, pulled_back
from ffebm.energy import Energy
from ffebm.errors import DivergenceError, block_name
from ffebm.gradient.estimator import ImplicitEstimator, divided, sample_norms
from ffebm.relaxation import FixedPoint, Relaxation
from ffebm.relaxation.divergence import ADVICE, RUNAWAY
from ffebm.relaxation.stopping import iterate, stopping_rule
from ffebm.state import Deltas, State, of_samples, per_sample
from ffebm.system import Simulated

__all__ = ["RecurrentBackprop"]
__dir__ = __all__.copy


@dataclass(frozen=True)
class RecurrentBackprop(ImplicitEstimator):
    r"""Solve for the adjoint $\lambda = \delta + J^\top \lambda$, with $J$ the Jacobian of one sweep at equilibrium.

    The gradient is $(\partial_\theta\, \mathrm{sweep})^\top \lambda$. One recorded sweep serves every iteration, so memory
    does not grow with their number; after $t$ of them the result is that of `Unrolled` with $t$ recorded sweeps.

    Args:
        relax: the sweep to differentiate, the number of adjoint iterations, and a tolerance relative to each sample's error.

    Paper: Lemma [lma:lagrangian], whose multipliers these are
    """

    relax: Relaxation = field(default_factory=lambda: FixedPoint(20, order="output-last"))

    def __post_init__(self) -> None:
        check_type("relax", self.relax, Relaxation, "FixedPoint(20)")

    def gradient(self, energy: Energy, x: Tensor, state: State, deltas: Deltas) -> Gradients:
        parts = Simulated(energy, self.relax).portions(x, state, 1)
        return Gradients.summed([self._gradient(energy, x[p], of_samples(state, p), of_samples(deltas, p)) for p in parts])

    def _gradient(self, energy: Energy, x: Tensor, state: State, deltas: Deltas) -> Gradients:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            state = tuple(s.detach().requires_grad_() for s in state)
            swept = self.relax.sweep(energy, state, x)
        size = sample_norms(deltas)
        # The adjoint is linear in the error; unit errors make the tolerance relative.
        unit = tuple(torch.zeros_like(s) if d is None else d for s, d in zip(state, divided(deltas, size), strict=True))

        def step(adjoint: State) -> State:
            return tuple(d + p for d, p in zip(unit, pulled_back(swept, state, adjoint, again=True), strict=True))

        adjoint = unit
        if self.relax.steps > 1:  # the last of the iterations is the pull back to the parameters
            stopping = stopping_rule(self.relax.steps - 1, self.relax.tolerance)
            ((adjoint, residual, _),) = iterate(lambda: ([step], unit), stopping)
            worst = residual.max().item()
            if not worst <= RUNAWAY:
                raise DivergenceError(block_name(), self.relax.steps, worst, f"This was the adjoint iteration. {ADVICE}")
        with torch.enable_grad():
            pulls = [(per_sample(size, a) * a * s).sum() for a, s in zip(adjoint, swept, strict=True)]
            return differentiate(torch.stack(pulls).sum(), x, energy)
