"""How far each block's gradient is from that of an ideal block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ffebm.block import EnergyBlock
from ffebm.derivative import pulled_back, wanted
from ffebm.diagnostics import quiet_copy
from ffebm.gradient import RecurrentBackprop
from ffebm.model import FFEBM, per_sample_losses
from ffebm.relaxation import Relaxed
from ffebm.substrate import Readout
from ffebm.system import FREE

__all__ = ["BlockFidelity", "block_fidelities"]
__dir__ = __all__.copy

SETTLING, TOLERANCE = 300, 1e-5  # sweeps at most, and what units may still move by, of what counts as the ideal block


@dataclass(frozen=True)
class BlockFidelity:
    """What a block's hardware makes of its gradient, for the input and the error that it gets."""

    block: str
    cosine: float  # of the gradient of all its parameters with that of the ideal block; NaN where that one vanishes
    ratio: float  # of their lengths
    handed_cosine: float  # likewise, of what it hands back to the digital part
    handed_ratio: float
    saturated: float  # share of nudged read-outs at an end of their range
    unmoved: float  # share of units whose nudged read-outs are all the same


def block_fidelities(model: FFEBM, x: Tensor, y: Tensor) -> list[BlockFidelity]:
    """Hold every block against itself without hardware, settled and differentiated by recurrent backprop.

    Both get the input and the error that they get in this model, so what one block adds is not blamed on another. The last
    block is nudged by its error at equilibrium. The model is left as it was.

    Args:
        x: a few samples; more give smoother numbers.
    """
    model = quiet_copy(model)
    entering: list[Tensor] = []
    outputs: list[Tensor] = []

    def settle(block: EnergyBlock, into: Tensor) -> Relaxed:
        entering.append(into.detach().requires_grad_())
        relaxed = block.equilibrium(entering[-1])
        outputs.append(relaxed.state[block.output_layer])
        return relaxed._replace(state=tuple(s.detach().requires_grad_() for s in relaxed.state))

    with torch.enable_grad():
        visits = list(model.walk(x, settle))
        logits = model.readout(visits[-1].output)
        (error,) = pulled_back([per_sample_losses(model.criterion, logits, y).mean()], [visits[-1].output])
        found: list[BlockFidelity] = []
        for visit, into, output in zip(reversed(visits), reversed(entering), reversed(outputs), strict=True):
            fidelity, handed = _fidelity(visit.block, into, output, error)
            found.append(fidelity)
            if visit.number > 1:
                (error,) = pulled_back([visit.x], [visit.s], [handed])
    return found[::-1]


def _fidelity(block: EnergyBlock, x: Tensor, output: Tensor, error: Tensor) -> tuple[BlockFidelity, Tensor]:
    """Of one block, and what it hands back."""
    parameters = [*wanted(block).values()]
    readouts: list[Readout] = []
    if block.chip is not None:
        block.chip.watch(readouts.append)
    handed, *gradients = pulled_back([output], [x, *parameters], [error])
    ideal = block.put_on(None)
    ideal.relax = replace(block.relax, steps=SETTLING, tolerance=TOLERANCE)
    relaxed = ideal.system.settle(x.detach(), [FREE])[0]
    # The adjoint approaches its end as fast as the block its equilibrium; every layer that an error crosses takes one more.
    adjoint = replace(block.relax, steps=int(relaxed.sweeps.max()) + len(relaxed.state), tolerance=None)
    ideal.estimator = RecurrentBackprop(adjoint)
    settled = ideal.equilibrium(x).state[block.output_layer]
    truly_handed, *true = pulled_back([settled], [x, *parameters], [error])
    last = readouts[-1] if readouts else None
    return (
        BlockFidelity(
            block.label,
            *_compared(gradients, true),
            *_compared([handed], [truly_handed]),
            math.nan if last is None else last.saturated,
            math.nan if last is None else last.unmoved,
        ),
        handed,
    )


def _compared(found: Sequence[Tensor], true: Sequence[Tensor]) -> tuple[float, float]:
    """The cosine of two gradients, and the ratio of their lengths."""
    if not true:
        return math.nan, math.nan
    a, b = (torch.cat([g.detach().flatten().double() for g in gradients]) for gradients in (found, true))
    length, true_length = a.norm().item(), b.norm().item()
    if not (true_length > 0 and math.isfinite(length + true_length)):
        return math.nan, math.nan
    return (a @ b).item() / (length * true_length) if length else 0.0, length / true_length
