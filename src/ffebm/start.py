"""Where training starts: one pass over a batch brings every layer to a set size."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ffebm.block import EnergyBlock
from ffebm.interaction import Interaction
from ffebm.limit import EdgeGains, shares
from ffebm.model import FFEBM
from ffebm.relaxation import Relaxed

__all__ = ["rms", "start_from_data"]
__dir__ = __all__.copy

ROUNDS = 4  # of bringing a layer to its size: clamps make that more than a matter of proportion
SETTLED = 50  # sweeps, enough for blocks that contract


@torch.no_grad()
def start_from_data(model: FFEBM, x: Tensor, size: float = 0.5, contraction: float = 0.5) -> FFEBM:
    """Scale initial weights so that layers have a set size where the blocks settle at these samples; returns the model.

    Layer after layer, from the input on. Stages are scaled until what enters a block has that size; in front of a batch-norm
    they get unit variance. Inside a block the gain of every edge goes to its limit, or to where the layer above has that size
    if that comes first. The readout ends up with logits of that size. Biases start at zero.

    So a block of many layers starts with as much signal as its limit lets through, whatever its weights were drawn from.
    Stages of your own are left as they are, and so are blocks of which nobody can tell what their edges amplify.

    Args:
        x: a few dozen samples, or more.
        size: the root mean square over units and samples.
        contraction: of blocks without a limit, at most.
    """
    mode = model.training
    model.train()  # batch-norms look at this batch, not at statistics that they do not have yet

    def settle(block: EnergyBlock, entering: Tensor) -> Relaxed:
        _start_block(block, entering, size, contraction)
        return _settled(block, entering)

    def run(stage: nn.Module, s: Tensor) -> Tensor:
        scale_to = getattr(stage, "scale_to", None)
        if scale_to is not None:  # a stage that knows how
            scale_to(s, size)
        return stage(s)

    output = x
    for visit in model.walk(x, settle, run=run):
        output = visit.output
    _scale_readout(model.readout, output, size)
    return model.train(mode)


def _start_block(block: EnergyBlock, x: Tensor, size: float, contraction: float) -> None:
    energy = block.energy
    limit = contraction if block.limit is None else block.limit.max_contraction
    try:
        if not (ties := energy.ties(x.shape[1:])):  # a single layer, or an energy of another kind
            return
        gains = EdgeGains().measure(energy, x.shape[1:])
        most = shares(energy, len(ties), limit)
    except TypeError:  # parts of somebody's own do not tell what they amplify
        return
    largest: dict[Interaction, float] = {}  # factor of each: one may serve several edges
    for (edge, _), gain, share in zip(ties, gains, most, strict=True):
        if gain > 0:
            largest[edge.interaction] = min(largest.get(edge.interaction, math.inf), share / gain)
    for interaction, factor in largest.items():
        bias = getattr(interaction, "bias", None)
        if bias is not None:
            bias.zero_()
        interaction.scale_(factor)
    for layer in range(1, len(energy.activations)):
        into = {edge.interaction for edge, _ in ties if edge.post == layer} & largest.keys()
        for _ in range(ROUNDS):
            if (found := rms(_settled(block, x).state[layer])) <= size:  # never up: at the limit they are already
                break
            for interaction in into:
                interaction.scale_(size / found)


def _settled(block: EnergyBlock, x: Tensor) -> Relaxed:
    return block.settle(x, block.relax.tuned(SETTLED, 1.0))


def _scale_readout(readout: nn.Module, output: Tensor, size: float) -> None:
    """Scale the last layer of a readout, where it is a linear one without much between it and the logits."""
    last = [module for module in readout.modules() if isinstance(module, nn.Linear)]
    if last:
        if last[-1].bias is not None:
            last[-1].bias.zero_()
        last[-1].weight.mul_(size / max(rms(readout(output)), torch.finfo(output.dtype).tiny))


def rms(s: Tensor) -> float:
    """The root mean square of all units of all samples."""
    return s.square().mean().sqrt().item()
