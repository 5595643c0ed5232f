"""How well a device does what the block does that it stands in for."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ffebm.block import EnergyBlock, SystemBlock
from ffebm.derivative import pulled_back, wanted
from ffebm.diagnostics import smallest_cosine
from ffebm.gradient import EquilibriumPropagation
from ffebm.hardware.physical import Driver, Physical
from ffebm.model import FFEBM, per_sample_losses
from ffebm.state import State
from ffebm.system import FREE, System

__all__ = ["Agreement", "Errand", "agreement_of", "errands"]
__dir__ = __all__.copy

TIMEOUT = 3600.0  # seconds for all samples and phases together


@dataclass(frozen=True)
class Agreement:
    """What a device and a block differ by, for some inputs and the errors at their outputs; states as the block counts them."""

    free: float  # the largest difference of any state in the free phase
    nudged: float  # and in the nudged ones
    size: float  # the largest state of the block
    cosine: float  # of equilibrium propagation in the device to the block's gradient, of the parameter with the smallest
    parameter: str  # which one that is

    @property
    def relative(self) -> float:
        """The largest difference, as a part of the largest state."""
        return max(self.free, self.nudged) / self.size if self.size else float("inf")


def agreement_of(block: EnergyBlock, x: Tensor, delta: Tensor, driver: Driver) -> Agreement:
    """Hold a device against a block, in double precision: free, nudged, and by the gradients that come of both.

    Args:
        x: inputs of the block.
        delta: the error at its output that the device is nudged by, as strongly as the block is; twice, once in each direction.
        driver: of the device.
    """
    block = deepcopy(block).double()
    x, delta = x.detach().double(), delta.detach().double()
    nudging = replace(block.estimator.nudging or EquilibriumPropagation(), variant="centered", stencil=None)
    device = SystemBlock(Physical(driver, block.energy, timeout=TIMEOUT), nudging, name=f"the device of {block.label}")
    expected, found = (_phases(system, x, delta, nudging) for system in (block.system, device.system))
    differences = [max(_largest(s - t) for s, t in zip(*pair, strict=True)) for pair in zip(expected, found, strict=True)]
    parameters = wanted(block.energy)
    truth, ours = (
        dict(zip(parameters, pulled_back([one(x)], list(parameters.values()), [delta]), strict=True)) for one in (block, device)
    )
    cosine, parameter = smallest_cosine(ours, truth, 16 * torch.finfo(torch.float32).eps)
    size = max(_largest(s) for state in expected for s in state)
    return Agreement(differences[0], max(differences[1:]), size, cosine, parameter)


def _phases(system: System, x: Tensor, delta: Tensor, nudging: EquilibriumPropagation) -> list[State]:
    """The free state, and the nudged ones."""
    (free,) = system.settle(x, [FREE])
    return [free.state, *nudging.trial_by_error(system, x, free.state, delta).read()]


def _largest(s: Tensor) -> float:
    return s.abs().max().item()


class Errand(NamedTuple):
    """What a block of a model gets in training: its input, and the error at its output."""

    block: EnergyBlock
    x: Tensor
    delta: Tensor


def errands(model: FFEBM, x: Tensor, y: Tensor) -> list[Errand]:
    """For every block, with the mean loss of these samples."""
    model = deepcopy(model)  # batch-norm must not move for a look
    with torch.enable_grad():
        visits = list(model.walk(x.detach().requires_grad_(), lambda block, x: block.equilibrium(x)))
        outputs = [visit.output for visit in visits]
        loss = per_sample_losses(model.criterion, model.readout(outputs[-1]), y).mean()
        deltas = pulled_back([loss], outputs)
    return [Errand(visit.block, visit.x.detach(), delta) for visit, delta in zip(visits, deltas, strict=True)]
