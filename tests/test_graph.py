"""Hopfield networks that are more than a chain: skip connections, several edges into a layer, and little feedback."""

from __future__ import annotations

import copy
import math
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
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
    GradientEstimator,
    Hopfield,
    Interaction,
    RecurrentBackprop,
    Unrolled,
    clamp,
    identity,
    sigmoid,
)
from ffebm.diagnostics import trace
from ffebm.energy.graph import colouring
from ffebm.relaxation import Order
from ffebm.testing import finite_differences
from nets import CONVERGED, relative

SIZES = (5, 4, 6, 3)
Ties = list[tuple[int, int]]


def network(ties: Ties, *, feedback: float = 1.0, scale: float = 1.0, smooth: bool = False) -> Hopfield:
    edges = [Edge(pre, post, Dense(SIZES[pre], SIZES[post])) for pre, post in ties]
    layers = 1 + max((post for _, post in ties), default=0)
    activations = [sigmoid() if smooth else clamp(0.5)] * (layers - 1) + [sigmoid() if smooth else identity(0.5)]
    energy = Hopfield(edges, activations, feedback=feedback).double()
    with torch.no_grad():
        for edge in energy.edges:
            edge.weight.mul_(scale)
    return energy


@st.composite
def ties(draw: st.DrawFn) -> Ties:
    layers = draw(st.integers(2, 4))
    pairs = list(combinations(range(layers), 2))
    reached = [(draw(st.integers(0, post - 1)), post) for post in range(1, layers)]
    return reached + draw(st.lists(st.sampled_from(pairs), max_size=4))


@given(ties())
def test_layers_of_one_colour_have_no_edge_between_them(ties: Ties) -> None:
    layers = 1 + max(post for _, post in ties)
    colours = colouring([Edge(pre, post, Dense(1, 1)) for pre, post in ties], layers)
    assert sorted(layer for colour in colours for layer in colour) == list(range(layers))
    of = {layer: number for number, colour in enumerate(colours) for layer in colour}
    assert all(of[pre] != of[post] for pre, post in ties)


@pytest.mark.parametrize("layers", [1, 2, 3, 6])
def test_a_chain_has_the_odd_and_the_even_layers_for_colours(layers: int) -> None:
    energy = Hopfield([Dense(3, 3) for _ in range(layers - 1)])
    assert energy.colours() == tuple(tuple(range(start, layers, 2)) for start in range(min(2, layers)))


@given(
    ties=ties(),
    feedback=st.sampled_from([1.0, 0.3, 2.0]),
    scale=st.floats(0.1, 4),
    order=st.sampled_from(["odd-even", "even-odd", "output-first", "output-last"]),
    omega=st.sampled_from([1.0, 0.6, 1.5]),
    seed=st.integers(0, 1000),
)
def test_sweeps_over_a_graph_never_raise_the_energy(
    ties: Ties, feedback: float, scale: float, order: Order, omega: float, seed: int
) -> None:
    torch.manual_seed(seed)
    energy = network(ties, feedback=feedback, scale=scale)
    energies = trace(energy, FixedPoint(6, order=order, omega=omega), torch.randn(3, 5, dtype=torch.float64)).energy
    assert (energies.diff(dim=0) <= 1e-12 * (1 + energies.abs().max())).all()


@pytest.mark.parametrize("feedback", [1.0, 0.3])
def test_a_linear_graph_settles_where_its_linear_system_is_solved(feedback: float) -> None:
    """Layers move by up + ε^(distance) · down; all side by side, (1/a − θ) s = (x, b)."""
    energy, slope = network([(0, 1), (1, 2), (0, 2), (2, 3), (0, 3)], feedback=feedback), 0.5
    energy.activations = (identity(slope),) * 4
    ends = [0, 5, 9, 15, 18]
    theta, biases = torch.zeros(18, 18, dtype=torch.float64), torch.zeros(18, dtype=torch.float64)
    for pre, post, edge in energy.graph:
        below, above = slice(ends[pre], ends[pre + 1]), slice(ends[post], ends[post + 1])
        theta[above, below] += edge.weight.detach()
        theta[below, above] += feedback ** (post - pre) * edge.weight.detach().T
        biases[above] += edge.bias.detach()
    x = torch.randn(2, 5, dtype=torch.float64)
    current = biases.repeat(2, 1)
    current[:, :5] += x
    expected = torch.linalg.solve(torch.eye(18, dtype=torch.float64) / slope - theta, current.T).T
    found = torch.cat(FixedPoint(500)(energy, x).state, 1).detach()
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


SETTLED = FixedPoint(2000, order="output-first", tolerance=1e-14)
EXACT: dict[str, GradientEstimator] = {
    "EP": EquilibriumPropagation(SETTLED, beta=1e-4),
    "ID": Unrolled(FixedPoint(150, order="output-last")),
    "recurrent backprop": RecurrentBackprop(SETTLED),
    "BPTT": BackpropThroughTime(),
}


@pytest.mark.parametrize("feedback", [1.0, 0.3])
@pytest.mark.parametrize("smooth", [True, False])
def test_every_estimator_gives_the_gradient_of_finite_differences_on_a_graph(feedback: float, smooth: bool) -> None:
    energy = network([(0, 1), (1, 2), (2, 3), (0, 2), (0, 3), (0, 1)], feedback=feedback, smooth=smooth)
    x = torch.rand(3, 5, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(3, sum(SIZES), dtype=torch.float64)

    def loss(estimator: GradientEstimator) -> Tensor:
        """Of all layers: errors that enter below the output are felt by as much as the layer weighs."""
        return (weights * torch.cat(EnergyBlock(energy, CONVERGED, estimator).equilibrium(x).state, 1)).sum()

    parameters = {"x": x, **dict(energy.named_parameters())}
    slopes = finite_differences(lambda: loss(BackpropThroughTime()), parameters)
    for name, estimator in EXACT.items():
        found = torch.autograd.grad(loss(estimator), list(parameters.values()))
        for parameter, gradient in zip(parameters, found, strict=True):
            assert slopes[parameter].error(gradient) < 1e-5, f"{name}, {parameter}"


def test_convolutional_skip_connections_have_the_gradient_of_recurrent_backprop() -> None:
    skip = Edge(0, -1, Convolution(2, 4, 1, pool=AveragePool()))
    edges = [Convolution(2, 3, padding=1, pool=AveragePool()), Convolution(3, 4, padding=1), skip]
    energy = Hopfield(edges, [clamp(0.5), clamp(0.5), identity(0.5)], feedback=0.5).double()
    x = torch.rand(3, 2, 6, 6, dtype=torch.float64)
    assert energy.layer_shapes((2, 6, 6)) == [(2, 6, 6), (3, 3, 3), (4, 3, 3)]
    found = []
    for name in ("EP", "recurrent backprop"):
        output = EnergyBlock(energy, CONVERGED, EXACT[name])(x)
        found.append(torch.autograd.grad(output.square().sum(), list(energy.parameters())))
    assert all(relative(ours, expected) < 1e-6 for ours, expected in zip(*found, strict=True))


def test_one_interaction_between_several_pairs_of_layers_gets_the_sum_of_its_gradients() -> None:
    shared = Dense(4, 4).double()
    tied = Hopfield([shared, shared, Edge(0, 2, shared)], identity(0.3))
    untied = copy.deepcopy(tied)
    untied.interactions = nn.ModuleList(copy.deepcopy(shared) for _ in range(3))
    x = torch.rand(2, 4, dtype=torch.float64)
    for energy in (tied, untied):
        EnergyBlock(energy, CONVERGED, EXACT["EP"])(x).square().sum().backward()
    expected = sum(edge.weight.grad for edge in untied.edges)
    torch.testing.assert_close(shared.weight.grad, expected, rtol=1e-6, atol=1e-9)


def test_with_little_feedback_ep_becomes_backprop_through_a_feedforward_net() -> None:
    energy = network([(0, 1), (1, 2), (0, 2)], feedback=1e-3)
    x = torch.rand(3, 5, dtype=torch.float64)
    parameters = list(energy.parameters())
    output = EnergyBlock(energy, CONVERGED, EXACT["EP"])(x)
    first, second, skip = energy.edges
    a, b, c = energy.activations
    bottom = a.sigma(x)
    plain = c.sigma(second.up(b.sigma(first.up(bottom))) + skip.up(bottom))
    torch.testing.assert_close(output, plain, rtol=0, atol=0.01)
    ours, expected = (torch.autograd.grad(y.square().sum(), parameters) for y in (output, plain))
    assert all(relative(g, e) < 0.01 for g, e in zip(ours, expected, strict=True))


def test_negative_ends_count_from_the_last_layer() -> None:
    edges: list[Interaction | Edge] = [Dense(4, 4), Dense(4, 4), Edge(-3, -1, Dense(4, 4))]
    assert [(edge.pre, edge.post) for edge in Hopfield(edges, [clamp()] * 3).graph] == [(0, 1), (1, 2), (0, 2)]
    assert "edges=[(0, 1), (1, 2), (0, 2)]" in repr(Hopfield(edges, [clamp()] * 3, feedback=0.25))
    assert "feedback=0.25" in repr(Hopfield(edges, [clamp()] * 3, feedback=0.25))


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([Edge(1, 0, Dense(4, 4))], r"Edge\(1, 0, …\) must go from a lower to a higher of 2 layers"),
        ([Dense(4, 4), Edge(1, 1, Dense(4, 4))], r"Edge\(1, 1, …\) must go from a lower to a higher"),
        ([Dense(4, 4), Edge(-3, 1, Dense(4, 4))], r"Edge\(-3, 1, …\) must go from a lower to a higher of 2 layers"),
        ([Edge(0, 2, Dense(4, 4))], r"No edge reaches layer 1 of 3 \(counted from 0\) from below: add one"),
    ],
)
def test_edges_that_make_no_network_are_refused(edges: list[Interaction | Edge], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Hopfield(edges)


def test_edges_into_a_layer_that_disagree_on_its_shape_are_refused() -> None:
    energy = Hopfield([Convolution(2, 3, padding=1), Convolution(3, 3, stride=2, padding=1), Edge(0, 2, Convolution(2, 3, 1))])
    with pytest.raises(ValueError, match=r"Layer 2 .* gets \(3, 2, 2\) from layer 1 and \(3, 4, 4\) from layer 0: choose"):
        energy.layer_shapes((2, 4, 4))
    with pytest.raises(ValueError, match=r"does not fit the third\. Layer 2 .* gets"):
        EnergyBlock(energy, name="the third")(torch.rand(1, 2, 4, 4))


@pytest.mark.parametrize("feedback", [0.0, -0.5, math.nan, math.inf])
def test_feedback_that_is_not_positive_and_finite_is_refused(feedback: float) -> None:
    with pytest.raises(ValueError, match="`feedback` must be positive, got"):
        Hopfield([Dense(4, 4)], feedback=feedback)
