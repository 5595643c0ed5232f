"""Blocks that no energy describes: any map repeated to its fixed point, such as attention or a mismatched pair of crossbars."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ffebm.checks import check_type
from ffebm.derivative import Gradients, differentiate, pulled_back
from ffebm.errors import DivergenceError, block_name
from ffebm.relaxation import FixedPoint, PhasesObserver, Relaxation, Relaxed
from ffebm.relaxation.stopping import Sweep, iterate, stopping_rule
from ffebm.state import State, dot
from ffebm.system import Phase, System

__all__ = ["NonReciprocal"]
__dir__ = __all__.copy


class NonReciprocal(System):
    r"""A block given by any map: it settles where $s_\star = f(s_\star, x)$, and what acts need not be acted upon.

    There is no energy to tilt. But nudged sweeps that are corrected by what is not symmetric in the Jacobian $J$ of the map,

    $$s \leftarrow f(s, x) - (J - J^\top)(s - s_\star) - \beta \delta$$

    move away from $s_\star$ by $-\beta (1 - J^\top)^{-1} \delta$ to first order, which is the adjoint: equilibrium propagation
    is exact again. The correction takes one product with $J$ and one with $J^\top$ a sweep.

    Put it into an `SystemBlock` with `EquilibriumPropagation`, whose `relax` says how many nudged sweeps there are.

    Args:
        update: the map $f$, a module that takes a state (a tuple of layers) and an input, and returns the next state. It has to
            contract, and to treat samples on their own.
        start: the state to begin with, for an input; by default one layer of zeros, of the input's shape.
        steps: the most sweeps of the free phase.
        tolerance: a sample has settled once no unit of it moves by more than this.
        corrected: without the correction, the gradient is one of a network that is not there.
    """

    def __init__(
        self,
        update: nn.Module,
        start: Callable[[Tensor], State] | None = None,
        *,
        steps: int = 200,
        tolerance: float = 1e-6,
        corrected: bool = True,
    ) -> None:
        super().__init__()
        check_type("update", update, nn.Module, "one that maps (state, x) to the next state")
        self.relax = FixedPoint(steps, tolerance=tolerance)  # of which only these two count: one sweep is one use of the map
        self.update = update
        self._begin = start
        self.corrected = corrected

    @torch.no_grad()
    def settle(
        self,
        x: Tensor,
        phases: Sequence[Phase],
        *,
        start: State | None = None,
        relax: Relaxation | None = None,
        observer: PhasesObserver | None = None,
    ) -> list[Relaxed]:
        if start is None and any(phase.nudge is not None for phase in phases):
            raise ValueError(
                "A nudged phase of a NonReciprocal needs `start`, its free equilibrium: that is what it is corrected around."
            )
        relax = self.relax if relax is None else relax
        begin = self.start(x) if start is None else start
        sweeps = [self._sweep(x, begin, phase) for phase in phases]
        found = iterate(lambda: (sweeps, begin), stopping_rule(relax.steps, relax.tolerance), observer)
        for relaxed in found:
            if not bool(relaxed.residual.isfinite().all()):
                advice = "The map does not contract: make its weights smaller."
                raise DivergenceError(block_name(), int(relaxed.sweeps.max()), relaxed.residual.max().item(), advice)
        return found

    @property
    def own_way(self) -> Relaxation:
        return self.relax

    def start(self, x: Tensor) -> State:
        return (torch.zeros_like(x),) if self._begin is None else self._begin(x)

    def _sweep(self, x: Tensor, equilibrium: State, phase: Phase) -> Sweep:
        """The map, and for a nudged phase what is added to it around the free equilibrium."""
        nudge = phase.tilt
        if nudge is None:
            return lambda state: self.update(state, x)

        products = _jacobian_products(self.update, equilibrium, x) if self.corrected else None

        def sweep(state: State) -> State:
            swept = self.update(state, x)
            if products is not None:
                moved = tuple(s - s0 for s, s0 in zip(state, equilibrium, strict=True))
                swept = tuple(s - on + back for s, on, back in zip(swept, *products(moved), strict=True))
            forces = [nudge.force(state, layer) for layer in range(len(state))]
            return tuple(s if force is None else s - force for s, force in zip(swept, forces, strict=True))

        return sweep

    def contrast(self, high: State, low: State, x: Tensor, weights: Tensor) -> Gradients:
        r"""The derivative of $-\sum_b w_b\, (high - low)_b \cdot f(s, x)_b$ half-way between the two states."""
        middle = tuple(torch.lerp(a, b, 0.5) for a, b in zip(high, low, strict=True))
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            moved = [dot(a - b, s) for a, b, s in zip(high, low, self.update(middle, x), strict=True)]
            return differentiate(-(weights * torch.stack(moved).sum(0)).sum(), x, self)


@torch.enable_grad()
def _jacobian_products(update: nn.Module, state: State, x: Tensor) -> Callable[[State], tuple[State, State]]:
    r"""The products $J v$ and $J^\top v$ of the map's Jacobian with a vector, from one recorded evaluation of the map."""
    state = tuple(s.detach().requires_grad_() for s in state)
    swept = update(state, x)
    any_vector = tuple(torch.zeros_like(s).requires_grad_() for s in swept)
    transposed = pulled_back(swept, state, any_vector, create_graph=True)  # linear in that vector

    def products(v: State) -> tuple[State, State]:
        return pulled_back(transposed, any_vector, v, again=True), pulled_back(swept, state, v, again=True)

    return products
