r"""The paper's two algorithms for chaining backprop and equilibrium propagation, spelled out.

`loss.backward()` on a model does the same in fewer words. These functions are for reading, for teaching, and for testing the
rest: each returns the gradient of the mean loss for every parameter, by name, and leaves `.grad` alone. No parameter may be
shared between blocks or stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ffebm.block import EnergyBlock
from ffebm.derivative import Gradients, differentiate, pulled_back, wanted
from ffebm.gradient import EquilibriumPropagation
from ffebm.gradient.equilibrium_propagation import LastBlock
from ffebm.model import FFEBM, ReadoutCost
from ffebm.relaxation import Relaxation, Relaxed
from ffebm.state import State
from ffebm.walk import Visit

__all__ = [
    "Contrast",
    "Named",
    "Passage",
    "Through",
    "contrasts",
    "explicit_chain",
    "implicit_chain",
    "passages",
    "through_readout",
]
__dir__ = __all__.copy

Named = dict[str, Tensor]


@dataclass(frozen=True)
class Passage:
    """One stage and block after inference, ready to be differentiated on their own."""

    visit: Visit  # what went into the stage is a leaf, and what came out of it has the stage's graph
    states: list[State]  # the equilibrium, and the sweeps after it where some were asked for

    @property
    def digital(self) -> Named:
        """The parameters of the stage, by their names in the model."""
        return wanted(self.visit.stage, f"stages.{self.visit.number - 1}.")

    def through_stage(self, delta: Tensor) -> Gradients:
        """Backprop of an error behind the stage: the error handed to the block before, and the gradients of the stage."""
        digital = self.digital
        s, *found = pulled_back([self.visit.x], [self.visit.s, *digital.values()], [delta], again=True)
        return Gradients(s, dict(zip(digital, found, strict=True)))


def passages(model: FFEBM, inputs: Tensor, further: Relaxation | None = None) -> list[Passage]:
    """Inference, block after block; `further` sweeps are made from each equilibrium and kept.

    Paper: Alg. [alg:inference-ff-ebm]; with `further`, the two passes of Alg. [alg:id]
    """
    for _, block in model.chain:
        if block.hardware is not None:
            raise ValueError(
                f"{block.label} runs on hardware, and the algorithms that are spelled out here are those of ideal blocks: look "
                "at a copy without it, `copy.deepcopy(model).put_on(None)`."
            )
    kept: list[list[State]] = []

    def settle(block: EnergyBlock, x: Tensor) -> Relaxed:
        relaxed = block.settle(x)
        states = [relaxed.state]
        if further is not None:
            states = []  # the observer sees the starting state first
            with torch.no_grad():
                relaxed = further(block.energy, x, start=relaxed.state, observer=lambda _, state: states.append(state))
        kept.append(states)
        return relaxed._replace(state=tuple(s.detach().requires_grad_() for s in relaxed.state))  # leaves, for the next stage

    with torch.enable_grad():
        visits = list(model.walk(inputs.detach().requires_grad_(), settle))
    return list(map(Passage, visits, kept))


Through = Callable[[Passage, "Contrast"], Gradients]  # the error handed to the block before, and all gradients


@torch.enable_grad()
def explicit_chain(model: FFEBM, x: Tensor, y: Tensor) -> Named:
    r"""Equilibrium propagation through each block, then backprop through the stage before it.

    EP turns the error $\delta s^k$ at a block's output into $\Delta x^k$ at its input; backprop through $F^k$ turns that
    into $\delta s^{k-1}$ and $g_{\omega^k}$.

    Paper: Alg. [alg:explicit-bp-ep-chain]
    """

    def through(passage: Passage, contrast: Contrast) -> Gradients:
        delta, of_stage = passage.through_stage(contrast.gradients.x)  # ∂F·Δx
        return Gradients(delta, contrast.gradients.parameters | of_stage)

    return _chain(model, x, y, through)


@torch.enable_grad()
def implicit_chain(model: FFEBM, x: Tensor, y: Tensor) -> Named:
    r"""Equilibrium propagation through each block and its stage as one energy $\widetilde E^k(s, \theta^k, s^{k-1}, \omega^k)$.

    The numbers are those of `explicit_chain` at any β, not only as β → 0, by the chain rule: both nudged states see the same
    $x = F(s)$.

    Paper: Alg. [alg:implicit-bp-ep-chain], Alg. [alg:implicit-bp-ep-chain-detailed]
    """
    parameters = wanted(model)

    def through(passage: Passage, contrast: Contrast) -> Gradients:
        inputs = {name: parameters[name] for name in contrast.gradients.parameters} | passage.digital
        delta, *found = pulled_back([contrast.value(passage.visit.x)], [passage.visit.s, *inputs.values()])
        return Gradients(delta, dict(zip(inputs, found, strict=True)))

    return _chain(model, x, y, through)


def _chain(model: FFEBM, x: Tensor, y: Tensor, through: Through) -> Named:
    """Walk the blocks from the last to the first, handing the error from each to the one before."""
    parts = [*model.stages, *model.blocks, model.readout]
    if sum(len(list(part.parameters())) for part in parts) > len({p for part in parts for p in part.parameters()}):
        raise ValueError("Chaining names each gradient by its part, got parameters that several parts share: use `backward`.")
    gradients: Named = {}
    delta: Tensor | None = None
    for passage in reversed(passages(model, x)):
        block = passage.visit.block
        estimator = block.estimator.nudging
        if estimator is None:
            raise TypeError(f"Chaining needs EquilibriumPropagation in every block, got {block.estimator} in {block.label}.")
        if delta is None and (model.nudge == "stationary" or estimator.chosen.linearised):
            delta, of_readout = through_readout(model, passage, y)
            gradients |= of_readout
        *_, contrast = contrasts(model, passage, estimator, delta, y)
        delta, found = through(passage, contrast)
        gradients |= found
    return gradients


class Contrast(NamedTuple):
    """What EP makes of nudged states: the gradients, and the scalar that they are the gradients of, as a function of x."""

    gradients: Gradients  # in closed form, by the model's names for its parameters
    value: Callable[[Tensor], Tensor]  # as the paper writes it, energies subtracted: fewer digits


def contrasts(
    model: FFEBM, passage: Passage, estimator: EquilibriumPropagation, delta: Tensor | None, y: Tensor
) -> Iterator[Contrast]:
    """What EP makes of a block after 0, 1, ... nudged sweeps.

    Args:
        delta: the error at the block's output; without one it is nudged by the loss, and the readout belongs to it.
    """
    block, free, x = passage.visit.block, passage.states[0], passage.visit.x.detach()
    if delta is None:
        last = LastBlock(block.system, ReadoutCost(model.readout, model.criterion), y)
        weights = x.new_full((len(y),), 1 / len(y))
        trial = estimator.trial(block.system, x, free, estimator.phases(last.nudge(x), x), weights, last)
    else:
        trial = estimator.trial_by_error(block.system, x, free, delta)
    energy = block.energy.latched(free) if estimator.hold_pooling or estimator.chosen.small else block.energy

    def value(x: Tensor, readings: list[State]) -> Tensor:
        high, low, weights = trial.contrast(readings)
        total = (weights * energy.contrast(high, low, x)).sum()
        return total if trial.last is None else total + trial.cost(readings)

    inside = "" if trial.last is None else "system."
    swept: list[list[State]] = []
    trial.read(lambda _, states: swept.append(states))
    for readings in swept:
        found = trial.gradients(readings).renamed(inside, f"blocks.{passage.visit.number - 1}.").renamed("cost.", "")
        yield Contrast(found, partial(value, readings=readings))


def through_readout(model: FFEBM, passage: Passage, y: Tensor) -> Gradients:
    """The error at the output of the last block, and the readout's gradients."""
    output = passage.states[-1][passage.visit.block.output_layer].detach().requires_grad_()
    cost = ReadoutCost(model.readout, model.criterion)
    return differentiate(cost(output, y).mean(), output, cost)
