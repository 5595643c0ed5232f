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
from ffebm.energy import Energy, State
from ffebm.gradient import EquilibriumPropagation
from ffebm.gradient.equilibrium_propagation import LastBlock
from ffebm.model import FFEBM, ReadoutCost
from ffebm.nudge import Nudge
from ffebm.relaxation import Relaxation


@dataclass(frozen=True)
class Visit:
    """One stage and block after inference, ready to be differentiated on their own."""

    stage: nn.Module
    block: EnergyBlock
    s: Tensor  # what went into the stage, a leaf
    x: Tensor  # what came out of it, with the stage's graph
    states: list[State]  # the equilibrium, and the sweeps after it where some were asked for


def visit(model: FFEBM, inputs: Tensor, further: Relaxation | None = None) -> list[Visit]:
    """Inference, block after block; `further` sweeps are made from each equilibrium and kept.

    Paper: Alg. [alg:inference-ff-ebm]; with `further`, the two passes of Alg. [alg:id]
    """
    visits: list[Visit] = []
    s = inputs.detach()
    for stage, block in model.chain:
        s = s.requires_grad_()
        with torch.enable_grad():
            x = stage(s)
        with torch.no_grad():
            equilibrium = block.relax(block.energy, x).state
            states = [equilibrium]
            if further is not None:
                states = []  # the observer sees the starting state first
                further(block.energy, x, start=equilibrium, observer=lambda _, state, kept=states: kept.append(state))
        visits.append(Visit(stage, block, s, x, states))
        s = states[-1][-1].detach()
    return visits


Contrast = Callable[[Tensor], Tensor]  # the scalar to differentiate, as a function of a block's input
Named = dict[str, Tensor]
# (visit, contrast, parameters of the contrast, inputs of the stage) -> the gradients of both
Through = Callable[[Visit, Contrast, Named, Named], Named]


@torch.enable_grad()
def explicit_chain(model: FFEBM, x: Tensor, y: Tensor) -> Named:
    r"""Equilibrium propagation through each block, then backprop through the stage before it.

    EP turns the error $\delta s^k$ at a block's output into $\Delta x^k$ at its input; backprop through $F^k$ turns that
    into $\delta s^{k-1}$ and $g_{\omega^k}$.

    Paper: Alg. [alg:explicit-bp-ep-chain]
    """

    def through(visited: Visit, contrast: Contrast, analog: Named, digital: Named) -> Named:
        x = visited.x.detach().requires_grad_()
        delta_x, *grads = torch.autograd.grad(contrast(x), [x, *analog.values()])  # Δx and g of θ
        backpropagated = torch.autograd.grad(visited.x, list(digital.values()), delta_x)  # ∂F·Δx
        return dict(zip([*analog, *digital], [*grads, *backpropagated], strict=True))

    return _chain(model, x, y, through)


@torch.enable_grad()
def implicit_chain(model: FFEBM, x: Tensor, y: Tensor) -> Named:
    r"""Equilibrium propagation through each block and its stage as one energy $\widetilde E^k(s, \theta^k, s^{k-1}, \omega^k)$.

    The numbers are those of `explicit_chain` at any β, not only as β → 0, by the chain rule: both nudged states see the same
    $x = F(s)$.

    Paper: Alg. [alg:implicit-bp-ep-chain], Alg. [alg:implicit-bp-ep-chain-detailed]
    """

    def through(visited: Visit, contrast: Contrast, analog: Named, digital: Named) -> Named:
        grads = torch.autograd.grad(contrast(visited.x), [*analog.values(), *digital.values()])
        return dict(zip([*analog, *digital], grads, strict=True))

    return _chain(model, x, y, through)


def _chain(model: FFEBM, x: Tensor, y: Tensor, through: Through) -> Named:
    """Walk the blocks from the last to the first, handing the error from each to the one before."""
    parts = [*model.stages, *model.blocks, model.readout]
    if sum(len(list(part.parameters())) for part in parts) > len({p for part in parts for p in part.parameters()}):
        raise ValueError("Chaining names each gradient by its part, got parameters that several parts share: use `backward`.")
    gradients: Named = {}
    cost = ReadoutCost(model.readout, model.criterion)
    readout = named("", cost)
    delta: Tensor | None = None
    for index, visited in reversed(list(enumerate(visit(model, x)))):
        energy, estimator, (state,) = visited.block.energy, visited.block.estimator, visited.states
        if not isinstance(estimator, EquilibriumPropagation):
            raise TypeError(f"Chaining needs EquilibriumPropagation in every block, got {estimator} in {energy.label}.")
        analog = named(f"blocks.{index}.energy", energy)
        if delta is None and model.nudge == "stationary":
            output = state[-1].detach().requires_grad_()
            delta, *grads = torch.autograd.grad(cost(output, y).mean(), [output, *readout.values()])
            gradients |= zip(readout, grads, strict=True)
        if delta is None:
            analog |= readout
            *_, contrast = elastic_contrasts(estimator, visited, LastBlock(energy, cost), y)
        else:
            *_, contrast = stationary_contrasts(estimator, visited, delta)
        digital = named(f"stages.{index}", visited.stage) | {ERROR: visited.s}
        gradients |= through(visited, contrast, analog, digital)
        delta = gradients.pop(ERROR)
    return gradients


ERROR = "error handed to the block before"


def stationary_contrasts(estimator: EquilibriumPropagation, visited: Visit, delta: Tensor) -> list[Contrast]:
    """What EP differentiates after 0, 1, ... nudged sweeps under the error `delta` at the block's output."""
    state = visited.states[0]
    energy = estimator.around(visited.block.energy, state)
    deltas = (*[None] * (len(state) - 1), delta)
    sizes = estimator.sizes(deltas)
    pairs = _nudged_pairs(estimator, energy, visited, estimator.stationary(deltas, sizes))
    return [lambda x, high=high, low=low: estimator.contrast(energy, x, high, low, sizes) for high, low in pairs]


def elastic_contrasts(estimator: EquilibriumPropagation, visited: Visit, last: LastBlock, y: Tensor) -> list[Contrast]:
    """The same under the loss itself, in the last block."""
    weights = visited.x.new_full((len(y),), 1 / len(y))
    around = LastBlock(estimator.around(last.energy, visited.states[0]), last.cost)
    pairs = _nudged_pairs(estimator, around.energy, visited, estimator.elastic(last.cost, y, like=visited.x))
    return [lambda x, high=high, low=low: estimator.elastic_contrast(around, x, y, high, low, weights) for high, low in pairs]


def _nudged_pairs(estimator: EquilibriumPropagation, energy: Energy, visited: Visit, nudge: Nudge) -> list[tuple[State, State]]:
    pairs: list[tuple[State, State]] = []
    estimator.nudged(energy, visited.x.detach(), visited.states[0], nudge, lambda _, high, low: pairs.append((high, low)))
    return pairs


def named(prefix: str, module: nn.Module) -> Named:
    """The parameters that want a gradient, by their name in the model."""
    return {f"{prefix}.{name}".lstrip("."): p for name, p in module.named_parameters() if p.requires_grad}
