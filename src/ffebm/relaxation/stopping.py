"""When a relaxation ends: after so many sweeps, when nothing moves, or sample by sample within a tolerance."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ffebm.state import State, change, per_sample

Sweep = Callable[[State], State]
Observer = Callable[[int, State], None]  # called with the number of sweeps done, from 0, and the state


class Relaxed(NamedTuple):
    """Where a relaxation ended, or what was read at the end of a phase."""

    state: State
    residual: Tensor  # (B,) the largest change of any unit in the last sweep of that sample; NaN where nobody measured it
    sweeps: Tensor  # (B,) how many sweeps that sample took


class AfterSweeps:
    """A fixed number of sweeps; other rules end sooner.

    A rule watches one relaxation: when to compare a state with the one before, and what follows from it.

    Args:
        measured: whether anybody wants to know the residual: it takes time.
    """

    def __init__(self, steps: int, *, measured: bool = True) -> None:
        self.steps = steps
        self.measured = measured

    def looks(self, done: int) -> bool:
        """Whether the state after this many sweeps is to be compared with the one before; it always is after the last."""
        return False

    def kept(self, state: State, previous: State) -> State:
        """The state to go on from: samples that have settled stay where they were."""
        return state

    def ends(self, state: State, previous: State) -> bool:
        """Whether nothing is left to do; asked only after sweeps that it looks at."""
        return False

    def relaxed(self, state: State, previous: State, done: int) -> Relaxed:
        """The end of it."""
        sweeps = torch.full((len(state[0]),), done, device=state[0].device)
        residual = change(state, previous) if self.measured else state[0].real.new_full(sweeps.shape, torch.nan)
        return Relaxed(state, residual, sweeps)


class AtStandstill(AfterSweeps):
    """As soon as no unit of any sample moves by more than a few units of rounding."""

    FIRST, EVERY = 8, 2  # the sweeps after which to look: it takes time, and waits for the device

    def __init__(self, steps: int, limit: float) -> None:
        super().__init__(steps)
        self.limit = limit

    def looks(self, done: int) -> bool:
        return done >= self.FIRST and done % self.EVERY == 0

    @torch.no_grad()
    def ends(self, state: State, previous: State) -> bool:
        pairs = reversed(list(zip(state, previous, strict=True)))  # as long as the output moves, the others need no look
        return all(bool((new - old).abs_().amax() <= self.limit) for new, old in pairs)


class WithinTolerance(AfterSweeps):
    """Each sample on its own, as soon as all phases of it move by less than a tolerance.

    Args:
        copies: how many phases of the same samples share the batch, one after the other. They stop together: only if both
            nudged phases of a contrast made as many sweeps does what the free phase left unsettled cancel.
    """

    def __init__(self, steps: int, tolerance: float, copies: int = 1) -> None:
        super().__init__(steps)
        self.tolerance = tolerance
        self.copies = copies
        self._settled: Tensor | None = None  # which samples have; None while none has
        self._residual = torch.empty(0)
        self._sweeps = torch.zeros(1, dtype=torch.long)

    def looks(self, done: int) -> bool:
        return True

    def kept(self, state: State, previous: State) -> State:
        if self._settled is None:
            self._residual = change(state, previous)
            self._sweeps = self._sweeps.to(self._residual.device) + 1
        else:
            pairs = zip(previous, state, strict=True)
            state = tuple(torch.where(per_sample(self._settled, new), old, new) for old, new in pairs)
            self._residual = torch.where(self._settled, self._residual, change(state, previous))
            self._sweeps = self._sweeps + ~self._settled
        calm = self._residual <= self.tolerance
        if self.copies > 1:
            calm = calm.view(self.copies, -1).all(0).repeat(self.copies)
        self._settled = calm if bool(calm.any()) else None
        return state

    def ends(self, state: State, previous: State) -> bool:
        return self._settled is not None and bool(self._settled.all())

    def relaxed(self, state: State, previous: State, done: int) -> Relaxed:
        return Relaxed(state, self._residual, self._sweeps.expand_as(self._residual))


def iterate(begin: Callable[[], tuple[Sweep, State]], stopping: AfterSweeps, observer: Observer | None = None) -> Relaxed:
    """Sweep until `stopping` ends it; the one loop of the library.

    Args:
        begin: makes the sweep and the state to start from. Nobody else holds that, so its memory is free once it is left.
    """
    done = 0
    sweep, state = begin()
    previous = state
    if observer is not None:
        observer(0, state)
    for done in range(1, stopping.steps + 1):
        looks = stopping.looks(done)
        # Held only where it is compared: the less there is, the more the cache holds.
        previous = state if looks or (stopping.measured and done == stopping.steps) else ()
        state = sweep(state)
        if looks:
            state = stopping.kept(state, previous)
        if observer is not None:
            observer(done, state)
        if looks and stopping.ends(state, previous):
            break
    return stopping.relaxed(state, previous, done)


def stopping_rule(steps: int, tolerance: float | None, copies: int = 1, *, measured: bool = True) -> AfterSweeps:
    return AfterSweeps(steps, measured=measured) if tolerance is None else WithinTolerance(steps, tolerance, copies)
