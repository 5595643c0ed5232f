"""When a relaxation ends: after so many sweeps, when nothing moves, or sample by sample within a tolerance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ffebm.state import State, change, per_sample

__all__ = [
    "AfterSweeps",
    "AtStandstill",
    "Observer",
    "PhasesObserver",
    "Relaxed",
    "Sweep",
    "WithinTolerance",
    "iterate",
    "stopping_rule",
]
__dir__ = __all__.copy

Sweep = Callable[[State], State]
Observer = Callable[[int, State], None]  # called with the number of sweeps done, from 0, and the state
PhasesObserver = Callable[[int, list[State]], None]  # likewise, with the state of each phase


class Relaxed(NamedTuple):
    """Where a relaxation ended, or what was read at the end of a phase."""

    state: State
    residual: Tensor  # (B,) the largest change of any unit in the last sweep of that sample; NaN where nobody measured it
    sweeps: Tensor  # (B,) how many sweeps that sample took


class AfterSweeps:
    """A fixed number of sweeps; other rules end sooner.

    A rule watches the phases of one relaxation: when to compare their states with those before, and what follows from it.

    Args:
        measured: whether anybody wants to know the residual: it takes time.
    """

    def __init__(self, steps: int, *, measured: bool = True) -> None:
        self.steps = steps
        self.measured = measured

    def looks(self, done: int) -> bool:
        """Whether states after this many sweeps are to be compared with those before; they always are after the last."""
        return False

    def ends(self, states: list[State], previous: list[State]) -> bool:
        """Whether nothing is left to do, after a sweep that it looks at; puts samples back that had settled before it."""
        return False

    def relaxed(self, states: list[State], previous: list[State], done: int) -> list[Relaxed]:
        """The end of every phase."""
        first = states[0][0]
        sweeps = torch.full((len(first),), done, device=first.device)
        if not self.measured:
            return [Relaxed(state, first.real.new_full(sweeps.shape, torch.nan), sweeps) for state in states]
        return [Relaxed(state, change(state, before), sweeps) for state, before in zip(states, previous, strict=True)]


class AtStandstill(AfterSweeps):
    """As soon as no unit of any sample moves by more than a few units of rounding."""

    FIRST, EVERY = 8, 2  # the sweeps after which to look: it takes time, and waits for the device

    def __init__(self, steps: int, limit: float) -> None:
        super().__init__(steps)
        self.limit = limit

    def looks(self, done: int) -> bool:
        return done >= self.FIRST and done % self.EVERY == 0

    @torch.no_grad()
    def ends(self, states: list[State], previous: list[State]) -> bool:
        layers = [pair for phase in zip(states, previous, strict=True) for pair in zip(*phase, strict=True)]
        # As long as an output moves, the others need no look.
        return all(bool((new - old).abs_().amax() <= self.limit) for new, old in reversed(layers))


class WithinTolerance(AfterSweeps):
    """Each sample on its own, as soon as it moves by less than a tolerance in every phase.

    Its phases stop together: only if both nudged phases of a contrast made as many sweeps does what the free phase left
    unsettled cancel.
    """

    def __init__(self, steps: int, tolerance: float) -> None:
        super().__init__(steps)
        self.tolerance = tolerance
        self._settled: Tensor | None = None  # which samples have; None while none has
        self._residual = torch.empty(0)  # (phases, B)
        self._sweeps = torch.zeros(1, dtype=torch.long)

    def looks(self, done: int) -> bool:
        return True

    def ends(self, states: list[State], previous: list[State]) -> bool:
        settled = self._settled
        if settled is not None:
            for phase, (state, before) in enumerate(zip(states, previous, strict=True)):
                states[phase] = tuple(torch.where(per_sample(settled, s), b, s) for s, b in zip(state, before, strict=True))
        moved = torch.stack([change(*pair) for pair in zip(states, previous, strict=True)])
        self._residual = moved if settled is None else torch.where(settled, self._residual, moved)
        self._sweeps = self._sweeps.to(moved.device) + (1 if settled is None else ~settled)
        calm = (self._residual <= self.tolerance).all(0)
        self._settled = calm if bool(calm.any()) else None
        return self._settled is not None and bool(calm.all())

    def relaxed(self, states: list[State], previous: list[State], done: int) -> list[Relaxed]:
        sweeps = self._sweeps.expand_as(self._residual[0])
        return [Relaxed(state, residual, sweeps) for state, residual in zip(states, self._residual, strict=True)]


def iterate(
    begin: Callable[[], tuple[Sequence[Sweep], State]], stopping: AfterSweeps, observer: PhasesObserver | None = None
) -> list[Relaxed]:
    """Sweep through all phases in turn until `stopping` ends it; the one loop of the library.

    Args:
        begin: makes the sweep of every phase, and the state that all start from. Nobody else holds that, so its memory is free
            once it is left.
    """
    done = 0
    sweeps, start = begin()
    states = [start] * len(sweeps)
    previous, start = states.copy(), ()
    if observer is not None:
        observer(0, states.copy())
    for done in range(1, stopping.steps + 1):
        looks = stopping.looks(done)
        # Held only where it is compared: the less there is, the more the cache holds.
        previous = states.copy() if looks or (stopping.measured and done == stopping.steps) else []
        for phase, sweep in enumerate(sweeps):
            states[phase] = sweep(states[phase])
        ended = looks and stopping.ends(states, previous)
        if observer is not None:
            observer(done, states.copy())
        if ended:
            break
    return stopping.relaxed(states, previous, done)


def stopping_rule(steps: int, tolerance: float | None, *, measured: bool = True) -> AfterSweeps:
    return AfterSweeps(steps, measured=measured) if tolerance is None else WithinTolerance(steps, tolerance)
