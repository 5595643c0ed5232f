r"""The paper's two algorithms for chaining backprop and equilibrium propagation, spelled out.

`loss.backward()` on a model does the same in fewer words. These functions are for reading, for teaching, and for testing the
rest: each returns the gradient of the mean loss for every parameter, by name, and leaves `.grad` alone. No parameter may be
shared between blocks or stages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ffebm.block import EnergyBlock
from ffebm.gradient import EquilibriumPropagation
from ffebm.model import FFEBM, ReadoutCost
from ffebm.nudge import Cost
from ffebm.relaxation import Relaxation, Relaxed
from ffebm.state import State, error_at
from ffebm.system import Phase


@dataclass(frozen=True)
class Passage:
    """One stage and block after inference, ready to be differentiated on their own."""

    stage: nn.Module
    block: EnergyBlock
    s: Tensor  # what went into the stage, a leaf
    x: Tensor  # what came out of it, with the stage's graph
    states: list[State]  # the equilibrium, and the sweeps after it where some were asked for


def passages(model: FFEBM, inputs: Tensor, further: Relaxation | None = None) -> list[Passage]:
    """Inference, block after block; `further` sweeps are made from each equilibrium and kept.

    Paper: Alg. [alg:inference-ff-ebm]; with `further`, the two passes of Alg. [alg:id]
    """
    kept: list[list[State]] = []

    def settle(block: EnergyBlock, x: Tensor) -> Relaxed:
        relaxed = block.settle(x)
        states = [relaxed.state]
        if further is not None:
            states = []  # the observer sees the starting state first
            with torch.no_grad():
                relaxed = further(block.energy, x, start=relaxed.state, observer=lambda _, state: states.append(state))
        kept.append(states)
        state = list(relaxed.state)
        state[block.output] = state[block.output].detach().requires_grad_()  # a leaf, for the stage that it goes into
        return relaxed._replace(state=tuple(state))

    with torch.enable_grad():
        visits = list(model.walk(inputs.detach().requires_grad_(), settle))
    return [Passage(v.stage, v.block, v.s, v.x, states) for v, states in zip(visits, kept, strict=True)]


Contrast = Callable[[Tensor], Tensor]  # the scalar to differentiate, as a function of a block's input
Named = dict[str, Tensor]


@torch.enable_grad()
def explicit_chain(model: FFEBM, x: Tensor, y: Tensor) -> Named:
    r"""Equilibrium propagation through each block, then backprop through the stage before it.

    EP turns the error $\delta s^k$ at a block's output into $\Delta x^k$ at its input; backprop through $F^k$ turns that
    into $\delta s^{k-1}$ and $g_{\omega^k}$.

    Paper: Alg. [alg:explicit-bp-ep-chain]
    """

    def through(passage: Passage, contrast: Contrast, analog: Named, digital: Named) -> Named:
        x = passage.x.detach().requires_grad_()
        delta_x, *grads = torch.autograd.grad(contrast(x), [x, *analog.values()])  # Δx and g of θ
        backpropagated = torch.autograd.grad(passage.x, list(digital.values()), delta_x)  # ∂F·Δx
        return dict(zip([*analog, *digital], [*grads, *backpropagated], strict=True))

    return _chain(model, x, y, through)


@torch.enable_grad()
def implicit_chain(model: FFEBM, x: Tensor, y: Tensor) -> Named:
    r"""Equilibrium propagation through each block and its stage as one energy $\widetilde E^k(s, \theta^k, s^{k-1}, \omega^k)$.

    The numbers are those of `explicit_chain` at any β, not only as β → 0, by the chain rule: both nudged states see the same
    $x = F(s)$.

    Paper: Alg. [alg:implicit-bp-ep-chain], Alg. [alg:implicit-bp-ep-chain-detailed]
    """

    def through(passage: Passage, contrast: Contrast, analog: Named, digital: Named) -> Named:
        grads = torch.autograd.grad(contrast(passage.x), [*analog.values(), *digital.values()])
        return dict(zip([*analog, *digital], grads, strict=True))

    return _chain(model, x, y, through)


# (passage, contrast, parameters of the contrast, inputs of the stage) -> the gradients of both
Through = Callable[[Passage, Contrast, Named, Named], Named]


def _chain(model: FFEBM, x: Tensor, y: Tensor, through: Through) -> Named:
    """Walk the blocks from the last to the first, handing the error from each to the one before."""
    parts = [*model.stages, *model.blocks, model.readout]
    if sum(len(list(part.parameters())) for part in parts) > len({p for part in parts for p in part.parameters()}):
        raise ValueError("Chaining names each gradient by its part, got parameters that several parts share: use `backward`.")
    gradients: Named = {}
    cost = ReadoutCost(model.readout, model.criterion)
    readout = named("", cost)
    delta: Tensor | None = None
    for index, passage in reversed(list(enumerate(passages(model, x)))):
        block, (state,) = passage.block, passage.states
        estimator = block.estimator.nudging
        if estimator is None:
            raise TypeError(f"Chaining needs EquilibriumPropagation in every block, got {block.estimator} in {block.label}.")
        analog = named(f"blocks.{index}.energy", block.energy)
        if delta is None and (model.nudge == "stationary" or estimator.points.linearised):
            output = state[block.output].detach().requires_grad_()
            delta, *grads = torch.autograd.grad(cost(output, y).mean(), [output, *readout.values()])
            gradients |= zip(readout, grads, strict=True)
        if delta is None:
            analog |= readout
        contrast = _contrast(estimator, passage, delta, cost, y)
        digital = named(f"stages.{index}", passage.stage) | {ERROR: passage.s}
        gradients |= through(passage, contrast, analog, digital)
        delta = gradients.pop(ERROR)
    return gradients


ERROR = "error handed to the block before"


def _contrast(estimator: EquilibriumPropagation, passage: Passage, delta: Tensor | None, cost: Cost, y: Tensor) -> Contrast:
    r"""What EP differentiates: the contrast of two nudged states under the error `delta` at the block's output.

    Without one it is nudged by the loss, and the energy is augmented by it: $E + \beta \ell$.
    """
    block, state, x = passage.block, passage.states[0], passage.x.detach()
    weights, phases = nudge_of(estimator, passage, delta, cost, y)
    around = estimator.around(block.system, state)
    readings = estimator.read(around, x, state, phases)
    high, low = estimator.points.pair(state, readings)

    def contrast(x: Tensor) -> Tensor:
        total = (weights / estimator.reach(phases) * around.energy.contrast(high, low, x)).sum()
        if delta is not None:
            return total
        return total + (weights * estimator.points.mean([cost(s[block.output], y) for s in readings])).sum()

    return contrast


def nudge_of(
    estimator: EquilibriumPropagation, passage: Passage, delta: Tensor | None, cost: Cost, y: Tensor
) -> tuple[Tensor, list[Phase]]:
    """How much each sample counts, and the phases that nudge it: by an error at the block's output, or by the loss itself."""
    block, x = passage.block, passage.x.detach()
    if delta is None:
        weights = x.new_full((len(y),), 1 / len(y))
        return weights, estimator.phases(estimator.elastic(cost, y, x, block.output), x)
    deltas = error_at(block.output, delta, len(passage.states[0]))
    sizes = estimator.sizes(deltas)
    return sizes, estimator.phases(estimator.stationary(deltas, sizes), x)


def named(prefix: str, module: nn.Module) -> Named:
    """The parameters that want a gradient, by their name in the model."""
    return {f"{prefix}.{name}".lstrip("."): p for name, p in module.named_parameters() if p.requires_grad}
