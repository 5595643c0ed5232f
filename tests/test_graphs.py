"""Energies on graphs: skip connections inside a block, which layers move together, and gradients through them."""

from __future__ import annotations

import copy
from itertools import combinations

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor, nn

from ffebm import (
    FFEBM,
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
    MaxPool,
    RecurrentBackprop,
    Stencil,
    Unrolled,
    clamp,
    identity,
    sigmoid,
)
from ffebm.diagnostics import converged_gradients, gradients, trace, transients
from ffebm.relaxation import Order
from ffebm.testing import EnergyConformance, finite_differences
from nets import CONVERGED, worst


def residual_block(feedback: float = 1.0) -> Hopfield:
    """Two convolutions, the second with a stride, and a 1 × 1 convolution around both."""
    edges = [Convolution(2, 2, padding=1), Convolution(2, 3, stride=2, padding=1), Edge(0, 2, Convolution(2, 3, 1, stride=2))]
    return Hopfield(edges, [clamp(0.5), clamp(0.5), identity()], feedback=feedback)


class TestResidualBlock(EnergyConformance):
    def make_energy(self) -> Hopfield:
        return residual_block()

    def make_input(self) -> Tensor:
        return torch.rand(3, 2, 6, 6)


class TestPooledSkips(EnergyConformance):
    def make_energy(self) -> Hopfield:
        edges: list[Interaction | Edge] = [
            Convolution(2, 2, padding=1, pool=MaxPool()),
            Dense(18, 5),
            Dense(5, 4),
            Edge(0, -1, Dense(72, 4, bias=False)),
            Edge(0, 2, Dense(72, 5)),
        ]
        return Hopfield(edges, [clamp(0.5), clamp(0.5), clamp(0.5), identity()], feedback=0.6)

    def make_input(self) -> Tensor:
        return torch.rand(3, 2, 6, 6)


def model(feedback: float = 1.0) -> FFEBM:
    """Two residual blocks with convolutions and batch-norm before them."""
    torch.manual_seed(0)
    stages = [nn.Sequential(nn.Conv2d(channels, 2, 3, padding=1, bias=False), nn.BatchNorm2d(2)) for channels in (1, 3)]
    blocks = [EnergyBlock(residual_block(feedback), CONVERGED) for _ in stages]
    readout = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    return FFEBM(stages, blocks, readout, input_shape=(1, 8, 8)).double()


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(4, 1, 8, 8, generator=generator, dtype=torch.float64), torch.arange(4)


@pytest.mark.parametrize("feedback", [1.0, 0.4])
@pytest.mark.parametrize("order", ["odd-even", "even-odd", "output-first", "output-last", "upward", "synchronous"])
def test_ep_equals_id_at_every_step_with_colours_in_reverse(order: str, feedback: float) -> None:
    found = transients(model(feedback), *batch(), FixedPoint(7, order=order), beta=1e-4)
    assert {t.name for t in found} == {name for name, _ in model().named_parameters()}
    for transient in found:
        assert transient.id[-1].norm() > 0
        assert transient.deviation.max() < 1e-6, transient.name


@pytest.mark.parametrize(
    "stencil", [Stencil.centered(), Stencil.one_sided(), Stencil.random_sign()], ids=lambda stencil: stencil.name
)
def test_skip_connections_train_through_a_model(stencil: Stencil) -> None:
    net, (x, y) = model(), batch()
    nudged = FixedPoint(3000, order="output-first", tolerance=1e-13)
    found = gradients(net.use(EquilibriumPropagation(nudged, beta=1e-4, stencil=stencil)), x, y)
    assert worst(found, converged_gradients(net, x, y)) < 1e-6


def test_gradients_of_skip_connections_match_finite_differences() -> None:
    net, (x, y) = model(), batch()
    slopes = finite_differences(lambda: net(x, y).losses.mean(), dict(net.named_parameters()), directions=2)
    for name, gradient in converged_gradients(net, x, y).items():
        assert slopes[name].error(gradient) < 1e-5, name


def wires(layers: int, skips: list[tuple[int, int]]) -> Hopfield:
    return Hopfield([*(Dense(3, 3) for _ in range(layers - 1)), *(Edge(pre, post, Dense(3, 3)) for pre, post in skips)])


@given(data=st.data(), layers=st.integers(1, 7))
def test_layers_of_a_colour_have_no_edge_between_them(data: st.DataObject, layers: int) -> None:
    pairs = [(pre, post) for post in range(layers) for pre in range(post)]
    skips = data.draw(st.lists(st.sampled_from(pairs), max_size=6)) if pairs else []
    colours = wires(layers, skips).colours()
    assert sorted(layer for colour in colours for layer in colour) == list(range(layers))
    chain = [(layer, layer + 1) for layer in range(layers - 1)]
    for colour in colours:
        assert not any(pre in colour and post in colour for pre, post in chain + skips)
    if not skips:
        assert colours == (tuple(range(0, layers, 2)), tuple(range(1, layers, 2)))[: min(layers, 2)], "odd and even"


def swept_in_turn(energy: Hopfield, order: str) -> list[tuple[int, ...]]:
    """The layers that a sweep moves together."""
    moved: list[tuple[int, ...]] = []
    seen: list[int] = []
    states: list[object] = [None]

    class Watching(Hopfield.__mro__[1]):  # an energy that only notes who is asked
        def forward(self, state, x):
            raise AssertionError

        def colours(self):
            return energy.colours()

        def minimise(self, layer, state, x, force=None, omega=1.0):
            if states[0] is not state:
                moved.append(tuple(seen))
                seen.clear()
                states[0] = state
            seen.append(layer)
            return state[layer]

    watching = Watching(energy.activations)
    x = torch.zeros(1, 3)
    FixedPoint(1, order=order).sweep(watching, tuple(x.clone() for _ in energy.activations), x)
    return [*moved[1:], tuple(seen)]


@pytest.mark.parametrize(
    ("layers", "skips", "expected"),
    [
        (4, [], {"odd-even": [(0, 2), (1, 3)], "output-first": [(1, 3), (0, 2)], "output-last": [(0, 2), (1, 3)]}),
        (3, [], {"odd-even": [(0, 2), (1,)], "output-first": [(0, 2), (1,)], "output-last": [(1,), (0, 2)]}),
        (3, [(0, 2)], {"odd-even": [(0,), (1,), (2,)], "output-first": [(2,), (1,), (0,)], "output-last": [(0,), (1,), (2,)]}),
        (4, [(0, 2)], {"odd-even": [(0, 3), (1,), (2,)], "output-first": [(0, 3), (2,), (1,)]}),
        (4, [(0, 2)], {"upward": [(0,), (1,), (2,), (3,)], "downward": [(3,), (2,), (1,), (0,)]}),
    ],
)
def test_orders_of_a_sweep(layers: int, skips: list[tuple[int, int]], expected: dict[str, list[tuple[int, ...]]]) -> None:
    energy = wires(layers, skips)
    for order, groups in expected.items():
        assert swept_in_turn(energy, order) == groups
        assert swept_in_turn(energy, FixedPoint(order=order).transposed.order) == groups[::-1]
    assert swept_in_turn(energy, "synchronous") == [tuple(range(layers))]


def test_negative_numbers_count_from_the_last_layer() -> None:
    energy = Hopfield([Dense(3, 3), Dense(3, 3), Edge(-3, -1, Dense(3, 3))], [clamp(0.5)] * 3)
    assert [edge[:2] for edge in energy.graph] == [(0, 1), (1, 2), (0, 2)]
    assert "edges=[(0, 1), (1, 2), (0, 2)]" in repr(energy)


def test_edges_alone_make_a_network() -> None:
    energy = Hopfield([Edge(0, 2, Dense(3, 4)), Edge(0, 1, Dense(3, 2)), Edge(1, 2, Dense(2, 4))])
    assert energy.layer_shapes((3,)) == [(3,), (2,), (4,)]
    assert energy.sweep_macs((3,)) == 2 * (12 + 6 + 8)


@pytest.mark.parametrize(
    ("edges", "activations", "message"),
    [
        ([Dense(3, 3), Edge(1, 0, Dense(3, 3))], clamp(0.5), r"Edge\(1, 0, …\) must go from a lower to a higher of 2 layers"),
        ([Dense(3, 3), Edge(0, 0, Dense(3, 3))], clamp(0.5), r"Edge\(0, 0, …\) must go from a lower to a higher"),
        ([Dense(3, 3), Edge(0, -3, Dense(3, 3))], clamp(0.5), r"Edge\(0, -3, …\) must go"),
        ([Edge(0, 2, Dense(3, 3))], clamp(0.5), r"No edge reaches layer 1 of 3 \(counted from 0\) from below"),
        ([Dense(3, 3), Edge(0, 4, Dense(3, 3))], [clamp(0.5)] * 3, "2 interactions make 5 layers, got 3 activations"),
    ],
)
def test_impossible_graphs_are_refused(edges: list[Interaction | Edge], activations, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Hopfield(edges, activations)


def test_edges_that_end_in_different_shapes_are_refused() -> None:
    energy = Hopfield([Convolution(2, 3, padding=1), Convolution(3, 4, stride=2), Edge(0, 2, Convolution(2, 4, 1))])
    with pytest.raises(
        ValueError, match=r"Layer 2 \(counted from 0\) gets \(4, 3, 3\) from layer 1 and \(4, 8, 8\) from layer 0"
    ):
        FixedPoint(1)(energy, torch.rand(1, 2, 8, 8))


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
