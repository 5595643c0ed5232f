"""Feedback ε: layers that weigh less the higher they are, so that less of a current comes back."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from ffebm import (
    AveragePool,
    BackpropThroughTime,
    Convolution,
    Dense,
    Edge,
    EnergyBlock,
    EquilibriumPropagation,
    FixedPoint,
    Hopfield,
    MaxPool,
    RecurrentBackprop,
    SoftPool,
    Unrolled,
    clamp,
    identity,
)
from ffebm.diagnostics import trace
from ffebm.testing import EnergyConformance
from nets import CONVERGED, relative

EXACT = RecurrentBackprop(CONVERGED)


def dense(widths: list[int], activations, feedback: float, seed: int = 0, scale: float = 1.0) -> Hopfield:
    torch.manual_seed(seed)
    edges = [Dense(below, above) for below, above in pairwise(widths)]
    energy = Hopfield(edges, activations, feedback=feedback).double()
    with torch.no_grad():
        for parameter in energy.parameters():
            parameter.mul_(scale)
    return energy


def block_gradients(energy, x: Tensor, estimator=EXACT) -> dict[str, Tensor]:
    x = x.detach().requires_grad_()
    output = EnergyBlock(energy, CONVERGED, estimator)(x)
    loss = (output.square() / 2 + output).sum()
    names = ["x", *(name for name, _ in energy.named_parameters())]
    return dict(zip(names, torch.autograd.grad(loss, [x, *energy.parameters()]), strict=True))


@settings(max_examples=25)
@given(
    feedback=st.floats(0.05, 1.5),
    widths=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    slope=st.sampled_from([0.5, 1.0]),
    seed=st.integers(0, 1000),
)
def test_it_is_an_ordinary_network_in_scaled_boxes(feedback: float, widths: list[int], slope: float, seed: int) -> None:
    """With √c s for s, weights are √ε W; boxes, biases and the input are scaled by √c: an independent way to get it."""
    layers = len(widths)
    energy = dense(widths, clamp(slope, -0.3, 1.0), feedback, seed, scale=0.5)
    roots = [feedback ** ((layer - layers + 1) / 2) for layer in range(layers)]
    plain = dense(widths, [clamp(slope, -0.3 * root, root) for root in roots], 1.0, seed, scale=0.5)
    with torch.no_grad():
        for edge, root in zip(plain.edges, roots[1:], strict=True):
            edge.weight.mul_(math.sqrt(feedback))
            edge.bias.mul_(root)
    x = torch.randn(3, widths[0], dtype=torch.float64)
    with torch.no_grad():
        ours, theirs = CONVERGED(energy, x).state, CONVERGED(plain, roots[0] * x).state
    for s, u, root in zip(ours, theirs, roots, strict=True):
        torch.testing.assert_close(s, u / root, rtol=0, atol=1e-11)
    found, expected = block_gradients(energy, x), block_gradients(plain, roots[0] * x)
    scales = {"x": roots[0]}
    for index, root in enumerate(roots[1:]):
        scales |= {f"interactions.{index}.weight": math.sqrt(feedback), f"interactions.{index}.bias": root}
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, scales[name] * expected[name], rtol=1e-7, atol=1e-9)


def test_full_feedback_scales_nothing() -> None:
    energy, x = dense([6, 5, 4], clamp(0.5), 1.0), torch.rand(4, 6, dtype=torch.float64)
    with torch.no_grad():
        state = CONVERGED(energy, x).state
        up, down = energy.edges[0].up(state[0]), energy.edges[1].down(state[1], state[2])
        assert torch.equal(energy.drive(state, x, 1), up + down)
        assert torch.equal(energy.minimise(1, state, x, force=down), energy.activations[1].sigma(up + down - down))


@pytest.mark.parametrize("estimator", [EXACT, EquilibriumPropagation(CONVERGED, beta=1e-3)], ids=["adjoint", "EP"])
def test_without_feedback_it_is_backprop_through_a_feedforward_net(estimator) -> None:
    """The gradient approaches backprop's in proportion to ε."""
    widths, activations = [6, 5, 4, 3], [clamp(1.0, -1, 1)] * 3 + [identity()]
    x = 0.3 * torch.randn(4, 6, dtype=torch.float64)
    off = []
    for feedback in (0.1, 0.01, 0.001):
        energy = dense(widths, activations, feedback, scale=0.7)
        ours = block_gradients(energy, x, estimator)
        s = (entering := x.detach().requires_grad_()).clamp(-1, 1)
        for edge, activation in zip(energy.edges, activations[1:], strict=True):
            s = activation.sigma(edge.up(s))
        loss = (s.square() / 2 + s).sum()
        backprop = dict(zip(ours, torch.autograd.grad(loss, [entering, *energy.parameters()]), strict=True))
        off.append(max(relative(ours[name], backprop[name]) for name in ours))
    assert off[-1] < 2e-3
    assert math.log10(off[0] / off[1]) == pytest.approx(1, abs=0.15)
    assert math.log10(off[1] / off[2]) == pytest.approx(1, abs=0.15)


def test_a_sweep_contracts_in_proportion_to_it() -> None:
    x = torch.randn(1, 6, dtype=torch.float64)

    def contraction(feedback: float) -> float:
        energy = dense([6, 5, 4], identity(1.0), feedback, scale=1.2)
        return trace(energy, FixedPoint(12), x).contraction[8].item()

    assert contraction(0.1) == pytest.approx(contraction(0.5) / 5, rel=1e-2)


POOLS: dict[str, type[nn.Module]] = {"max": MaxPool, "average": AveragePool, "soft": SoftPool}


@pytest.mark.parametrize("pool", POOLS)
def test_every_estimator_agrees_on_it(pool: str) -> None:
    torch.manual_seed(0)
    edges = [Convolution(2, 3, padding=1, pool=POOLS[pool]()), Convolution(3, 2, stride=2, padding=1), Dense(8, 4)]
    energy = Hopfield(edges, [clamp(0.5)] * 3 + [identity()], feedback=0.4).double()
    x = torch.rand(3, 2, 8, 8, dtype=torch.float64)
    exact = block_gradients(energy, x)
    nudged = FixedPoint(3000, order="output-first", tolerance=1e-14)
    estimators = [EquilibriumPropagation(nudged, beta=1e-4), Unrolled(FixedPoint(100)), BackpropThroughTime()]
    for estimator in estimators:
        found = block_gradients(energy, x, estimator)
        assert max(relative(found[name], exact[name]) for name in exact) < 1e-6, estimator


class TestFeedback(EnergyConformance):
    def make_energy(self) -> Hopfield:
        edges = [Dense(6, 5), Dense(5, 4), Edge(0, -1, Dense(6, 4))]
        return Hopfield(edges, [clamp(0.5), clamp(0.5), identity()], feedback=0.3)

    def make_input(self) -> Tensor:
        return torch.rand(3, 6)


@pytest.mark.parametrize("feedback", [0.0, -1.0, math.inf, math.nan])
def test_feedback_must_be_positive(feedback: float) -> None:
    with pytest.raises(ValueError, match="`feedback` must be positive, got"):
        Hopfield([Dense(3, 2)], feedback=feedback)


def test_feedback_shows() -> None:
    assert "feedback=0.3" in repr(Hopfield([Dense(3, 2)], feedback=0.3))
    assert "feedback" not in repr(Hopfield([Dense(3, 2)]))
