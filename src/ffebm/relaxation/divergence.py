"""Relaxations that run away: found from their last sweep, and explained."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from ffebm.errors import DivergenceError, block_name
from ffebm.relaxation.problem import Problem
from ffebm.state import State, change

__all__ = ["raise_if_diverging"]
__dir__ = __all__.copy

RUNAWAY = 10  # sweeps that move units by this many times what the first did, and ever more, will not come back

ADVICE = (
    "The weights inside the block are too large for its activations: lower their initial scale or the learning rate, "
    "clamp the output layer, or use a smaller slope."
)


@torch.no_grad()
def raise_if_diverging(problem: Problem, sweep: Callable[..., State], steps: int) -> None:
    """Replay a suspicious relaxation, sweep by sweep, and raise unless large numbers are simply its scale."""
    energy, x = problem.energy, problem.x
    for name, tensor in (("input", x), *energy.named_parameters()):
        if not bool(tensor.isfinite().all()):
            raise ValueError(
                f"The {name} of {block_name()} has {int((~tensor.isfinite()).sum())} non-finite values among {tensor.numel()}: "
                "nothing can relax from that. Look for NaN in the data, or for a learning rate that blew up the layer before."
            )
    for nudge in problem.nudges:
        state, residuals = problem.begin(), [0.0]
        for done in range(1, steps + 1):
            previous, state = state, sweep(energy, state, x, nudge)
            residuals.append(change(state, previous).max().item())
            if not math.isfinite(residuals[-1]):
                raise DivergenceError(block_name(), done, residuals[-1], ADVICE)
        growing = residuals[-3:] == sorted(residuals[-3:])
        if growing and residuals[-1] > RUNAWAY * max(1.0, residuals[1]):
            raise DivergenceError(block_name(), steps, residuals[-1], ADVICE)
