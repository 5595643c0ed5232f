"""The one loop of the library: a sweep, repeated until nothing moves or a number of times."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ffebm.energy import State, per_sample

Sweep = Callable[[State], State]
Observer = Callable[[int, State], None]  # called with the number of sweeps done, from 0, and the state

LOOKS = range(8, 1_000_000, 2)  # the sweeps after which to look for a standstill: it takes time, and waits for the device


class Relaxed(NamedTuple):
    """Where a relaxation ended."""

    state: State
    residual: Tensor  # (B,) the largest change of any unit in the last sweep of that sample
    sweeps: Tensor  # (B,) how many sweeps that sample took


def iterate(
    step: Sweep,
    state: State,
    steps: int,
    tolerance: float | None,
    observer: Observer | None = None,
    copies: int = 1,
    *,
    standstill: float | None = None,
) -> Relaxed:
    """Apply `step` up to `steps` times, each sample until all copies of it settle; the one loop of the library.

    Args:
        standstill: all stop when no unit of any sample moves by more than this.
    """
    batch = state[0].shape[0]
    done = 0
    previous: State = state
    settled: Tensor | None = None  # which samples have; None while none has
    residual = state[0].new_full((batch,), math.inf)
    sweeps = torch.zeros(batch, dtype=torch.long, device=state[0].device)
    if observer is not None:
        observer(0, state)
    for done in range(1, steps + 1):
        looks = tolerance is not None or done == steps or (standstill is not None and done in LOOKS)
        previous = state if looks else ()  # held only where it is compared: the less there is, the more the cache holds
        state = step(state)
        if tolerance is not None:
            if settled is None:
                residual = change(state, previous)
                sweeps += 1
            else:
                pairs = zip(previous, state, strict=True)
                state = tuple(torch.where(per_sample(settled, new), old, new) for old, new in pairs)
                residual = torch.where(settled, residual, change(state, previous))
                sweeps += ~settled
            calm = residual <= tolerance
            if copies > 1:
                calm = calm.view(copies, -1).all(0).repeat(copies)
            settled = calm if bool(calm.any()) else None
        if observer is not None:
            observer(done, state)
        if settled is not None and bool(settled.all()):
            break
        if standstill is not None and done in LOOKS and _stands_still(state, previous, standstill):
            break
    if tolerance is None:
        # Copies are nudged from an equilibrium: the layer that feels it first tells enough of whether they run away.
        last = 0 if copies == 1 else -1
        return Relaxed(state, change(state[last:], previous[last:]), torch.full_like(sweeps, done))
    return Relaxed(state, residual, sweeps)


@torch.no_grad()
def _stands_still(state: State, previous: State, limit: float) -> bool:
    """Whether no unit of any sample moved by more than this. Output first: as long as that moves, the others need no look."""
    return all(bool((new - old).abs_().amax() <= limit) for new, old in reversed(list(zip(state, previous, strict=True))))


@torch.no_grad()
def change(state: State, previous: State) -> Tensor:
    """The largest change of any unit, for every sample, shape (B,)."""
    layers = [(new - old).abs_().amax(tuple(range(1, new.dim()))) for new, old in zip(state, previous, strict=True)]
    return torch.stack(layers).amax(0)
