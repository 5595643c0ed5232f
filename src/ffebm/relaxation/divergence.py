"""Relaxations that run away: found from their last sweep, and explained."""

from __future__ import annotations

import math
from typing import NoReturn

import torch
from torch import Tensor, nn

from ffebm.errors import DivergenceError, block_name
from ffebm.relaxation.stopping import Relaxed, Sweep
from ffebm.state import State, change

RUNAWAY = 10  # sweeps that move units by this many times what the first did, and ever more, will not come back

ADVICE = (
    "The weights inside the block are too large for its activations: lower their initial scale or the learning rate, "
    "clamp the output layer, or use a smaller slope."
)


def check_divergence(relaxed: Relaxed, sweep: Sweep, start: State, steps: int, energy: nn.Module, x: Tensor) -> None:
    """Raise where a relaxation that ended like this ran away; it is replayed only where its last sweep looks like it."""
    # Clamped units move by 1 at most, and settling ones by less and less. NaN fails the comparison too.
    if not bool((relaxed.residual <= 1).all()):  # the only wait for the device
        _explain(sweep, start, steps, energy, x)


@torch.no_grad()
def _explain(sweep: Sweep, start: State, steps: int, energy: nn.Module, x: Tensor) -> None:
    """Replay a suspicious relaxation, sweep by sweep, and raise unless large numbers are simply its scale."""
    for name, tensor in (("input", x), *energy.named_parameters()):
        if not bool(tensor.isfinite().all()):
            _refuse(name, tensor)
    state, residuals = start, [0.0]
    for done in range(1, steps + 1):
        previous, state = state, sweep(state)
        residuals.append(change(state, previous).max().item())
        if not math.isfinite(residuals[-1]):
            raise DivergenceError(block_name(), done, residuals[-1], ADVICE)
    growing = residuals[-3:] == sorted(residuals[-3:])
    if growing and residuals[-1] > RUNAWAY * max(1.0, residuals[1]):
        raise DivergenceError(block_name(), steps, residuals[-1], ADVICE)


def _refuse(name: str, tensor: Tensor) -> NoReturn:
    bad = int((~tensor.isfinite()).sum())
    raise ValueError(
        f"The {name} of {block_name()} has {bad} non-finite values among {tensor.numel()}: nothing can relax from that. "
        "Look for NaN in the data, or for a learning rate that blew up the layer before."
    )
