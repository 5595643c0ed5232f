"""Recurrent backprop: the implicit function theorem, solved by iteration."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ffebm.checks import check_type
from ffebm.energy import Energy, State, per_sample
from ffebm.errors import DivergenceError
from ffebm.gradient.estimator import Deltas, Gradients, ImplicitEstimator, differentiate, divided, of_samples, sample_norms
from ffebm.iteration import iterate
from ffebm.portions import portions
from ffebm.relaxation import ADVICE, RUNAWAY, FixedPoint, Relaxation


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
        parts = portions(len(x), (x[:1], *(s[:1] for s in state)))
        return Gradients.summed(
            [self._gradient(energy, x[p], tuple(s[p] for s in state), of_samples(deltas, p)) for p in parts]
        )

    def _gradient(self, energy: Energy, x: Tensor, state: State, deltas: Deltas) -> Gradients:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            state = tuple(s.detach().requires_grad_() for s in state)
            swept = self.relax.sweep(energy, state, x)
        size = sample_norms(deltas)
        # The adjoint is linear in the error; unit errors make the tolerance relative.
        unit = tuple(torch.zeros_like(s) if d is None else d for s, d in zip(state, divided(deltas, size), strict=True))

        def step(adjoint: State) -> State:
            pulled = torch.autograd.grad(swept, state, adjoint, retain_graph=True, allow_unused=True, materialize_grads=True)
            return tuple(d + p for d, p in zip(unit, pulled, strict=True))

        adjoint = unit
        if self.relax.steps > 1:  # the last of the iterations is the pull back to the parameters
            adjoint, residual, _ = iterate(step, unit, self.relax.steps - 1, self.relax.tolerance)
            worst = residual.max().item()
            if not worst <= RUNAWAY:
                raise DivergenceError(energy.label, self.relax.steps, worst, f"This was the adjoint iteration. {ADVICE}")
        with torch.enable_grad():
            pulls = [(per_sample(size, a) * a * s).sum() for a, s in zip(adjoint, swept, strict=True)]
            return differentiate(torch.stack(pulls).sum(), x, energy)
