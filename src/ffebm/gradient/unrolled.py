"""Automatic differentiation through recorded sweeps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from ffebm.checks import check_type
from ffebm.energy import Energy
from ffebm.gradient.estimator import GradientEstimator
from ffebm.relaxation import FixedPoint, Relaxation, Relaxed
from ffebm.state import State
from ffebm.system import FREE, Simulated

__all__ = ["BackpropThroughTime", "Unrolled"]
__dir__ = __all__.copy


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

    def equilibrium(self, energy: Energy, x: Tensor, relax: Relaxation, start: State | None = None) -> Relaxed:
        (free,) = Simulated(energy, relax).settle(x.detach(), [FREE], start=start)
        # Forward mode heeds no `no_grad`: it would follow the way there, too, and not give what `backward` does.
        start = tuple(s.detach() for s in free.state)
        recorded = _reaching(self.relax(energy, x, start=start), energy, x)
        return Relaxed(recorded.state, free.residual, free.sweeps)  # these tell whether it was an equilibrium


@dataclass(frozen=True)
class BackpropThroughTime(GradientEstimator):
    """Autograd through the whole relaxation: exact for the sweeps that were made, settled or not.

    Memory grows with their number. Second derivatives work.

    Paper: appendix A.5, the gradient that Eq. [eq:gdd] truncates
    """

    assumes_equilibrium: ClassVar[bool] = False

    def equilibrium(self, energy: Energy, x: Tensor, relax: Relaxation, start: State | None = None) -> Relaxed:
        return _reaching(relax(energy, x, start=start), energy, x)


def _reaching(relaxed: Relaxed, energy: Energy, x: Tensor) -> Relaxed:
    """The same, with a gradient of zero for whatever few sweeps did not carry the error to: DDP waits for every parameter."""
    state = _Reach.apply(len(relaxed.state), *relaxed.state, x, *energy.parameters())
    return relaxed._replace(state=state)


class _Reach(torch.autograd.Function):
    """The identity on a state, formally a function of more than that."""

    generate_vmap_rule = True

    @staticmethod
    def forward(layers: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(s.view_as(s) for s in tensors[:layers])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.layers = len(output)
        ctx.save_for_backward(*inputs[1 + len(output) :])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *grads, *(torch.zeros_like(t) for t in ctx.saved_tensors))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, ...]:
        return tuple(t.view_as(t) for t in tangents[1 : 1 + ctx.layers])
