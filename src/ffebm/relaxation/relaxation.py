"""What every relaxation is: one sweep, repeated until an equilibrium is reached."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from ffebm.checks import check_size
from ffebm.energy import Energy, Session
from ffebm.errors import block_name
from ffebm.nudge import Nudge
from ffebm.relaxation.divergence import RUNAWAY, raise_if_diverging
from ffebm.relaxation.problem import Problem
from ffebm.relaxation.stopping import (
    AfterSweeps,
    AtStandstill,
    Observer,
    PhasesObserver,
    Relaxed,
    Sweep,
    iterate,
    stopping_rule,
)
from ffebm.state import State, largest
from ffebm.tracing import numberless, transforming, unseen

__all__ = ["Relaxation", "check_input", "check_tensor"]
__dir__ = __all__.copy

STANDSTILL = 4  # units of rounding: a sweep that moves no unit by more has nothing left to do


@dataclass(frozen=True)
class Relaxation(ABC):
    """A map from state to state, one sweep, repeated a fixed number of times or until it changes nothing.

    Args:
        steps: the number of sweeps, or their maximum when there is a tolerance. Without one, a free relaxation that nobody
            records or observes skips those of its sweeps that would change nothing but rounding.
        tolerance: a sample is left as it is once no unit of it moves by more than this in a sweep. Each sample stops
            on its own, so the result never depends on which others share its batch.
    """

    over_relaxes: ClassVar[bool] = False  # whether sweeps can go further than they are drawn, and settle sooner for it

    steps: int = 20
    tolerance: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_size("steps", self.steps)
        if self.tolerance is not None and not (math.isfinite(self.tolerance) and self.tolerance > 0):
            raise ValueError(f"`tolerance` must be positive, got {self.tolerance}; use None for a fixed number of sweeps.")

    @abstractmethod
    def sweep(self, energy: Energy | Session, state: State, x: Tensor, nudge: Nudge | None = None) -> State:
        """One sweep over all layers. Differentiable where gradients are tracked; never changes `state` in place."""

    @property
    @abstractmethod
    def transposed(self) -> Relaxation:
        """The relaxation whose sweep backpropagation through this one performs."""

    def tuned(self, steps: int, omega: float | None = None) -> Self:
        """The same kind of sweeps, so many of them; `omega` is how far each goes, where `over_relaxes`."""
        return replace(self, steps=steps, tolerance=None)

    def crossing(self, layers: int) -> int:
        """How many sweeps pass before a signal has gone through a chain of so many layers, besides the first."""
        return -(-layers // 2) - 1

    def __call__(
        self,
        energy: Energy,
        x: Tensor,
        *,
        start: State | None = None,
        nudge: Nudge | None = None,
        observer: Observer | None = None,
    ) -> Relaxed:
        """Relax from `start` (default: the energy's own), tilted by `nudge`; `observer` sees every state on the way."""
        check_input(block_name(), x)
        given = () if start is None else start
        recorded = torch.is_grad_enabled() and any(t.requires_grad for t in (x, *energy.parameters(), *given))
        watch = None if observer is None else lambda done, states: observer(done, states[0])
        return self.settle(Problem(energy, x, (nudge,), start, recorded=recorded), watch)[0]

    def settle(self, problem: Problem, observer: PhasesObserver | None = None) -> list[Relaxed]:
        """Solve a problem: the end of every phase of it."""

        def begin() -> tuple[list[Sweep], State]:
            start = problem.begin()
            energy = problem.prepared(start)
            return [lambda state, nudge=nudge: self.sweep(energy, state, problem.x, nudge) for nudge in problem.nudges], start

        relaxed = iterate(begin, self._stopping(problem, observer), observer)
        if unseen(problem.x):
            return relaxed
        # Clamped units move by 1 at most, and settling ones by less and less. NaN fails the comparison too.
        if problem.size is None:
            calm = torch.stack([(phase.residual <= 1).all() for phase in relaxed])
        else:
            outputs = torch.stack([largest(phase.state[problem.energy.output_layer]) for phase in relaxed])
            calm = outputs <= RUNAWAY * problem.size.clamp(min=1)
        if not bool(calm.all()):  # the only wait for the device
            raise_if_diverging(problem, self.sweep, self.steps)
        return relaxed

    def _stopping(self, problem: Problem, observer: PhasesObserver | None) -> AfterSweeps:
        dtype = problem.x.dtype
        # A nudge may move units by so little that rounding hides it while they still are on their way.
        watched = problem.recorded or problem.nudged or observer is not None
        if self.tolerance is not None and transforming():
            raise TypeError(
                f"Each sample of {block_name()} stops within a tolerance on its own, and transforms of `torch.func` cannot see "
                f"when: give it a fixed number of sweeps, `FixedPoint({self.steps})`, or an estimator that records none."
            )
        if numberless(problem.x):
            return stopping_rule(1, None, measured=problem.size is None)  # which has all shapes
        watched = watched or transforming()
        if self.tolerance is not None or watched or dtype not in (torch.float32, torch.float64):
            return stopping_rule(self.steps, self.tolerance, measured=problem.size is None)
        return AtStandstill(self.steps, STANDSTILL * torch.finfo(dtype).eps)


def check_tensor(what: str, value: object) -> None:
    """Refuse arrays and lists: most of what they lack would only show far from here."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{what} must be a tensor, got a {type(value).__name__}: convert it by `torch.as_tensor`.")


def check_input(whose: str, x: Tensor, shape: tuple[int, ...] | None = None) -> None:
    """Refuse an input that has no batch of samples, each of this shape."""
    check_tensor(f"The input of {whose}", x)
    if x.dim() < 2 or x.numel() == 0 or (shape is not None and x.shape[1:] != shape):
        expected = "..." if shape is None else ", ".join(map(str, shape))
        raise ValueError(
            f"The input of {whose} has a wrong shape: it takes inputs of shape (batch, {expected}) with at least one sample "
            f"and one unit, got {tuple(x.shape)}. Add a batch dimension to a single sample, skip empty batches, or build the "
            "model for this shape."
        )
    if not x.is_floating_point():
        raise TypeError(
            f"The input of {whose} must be floating point, got {x.dtype}: convert it by `x.float()`, or normalise images."
        )
