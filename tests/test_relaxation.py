from __future__ import annotations

import math
import pickle
from itertools import pairwise
from typing import get_args

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from ffebm import AveragePool, Convolution, Dense, DivergenceError, EnergyBlock, FixedPoint, Hopfield, clamp, identity, sigmoid
from ffebm.diagnostics import trace
from ffebm.errors import naming
from ffebm.nudge import Elastic, Stationary
from ffebm.relaxation import Order

ORDERS: list[Order] = list(get_args(Order))


def dense(*sizes: int, scale: float = 1.0, activation=clamp(0.5)) -> Hopfield:
    energy = Hopfield([Dense(a, b) for a, b in pairwise(sizes)], activation).double()
    with torch.no_grad():
        for edge in energy.edges:
            edge.weight.mul_(scale)
    return energy


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_finds_the_same_equilibrium(order: Order) -> None:
    energy, x = dense(6, 5, 4), torch.rand(3, 6, dtype=torch.float64)
    state, residual, _ = FixedPoint(200, order=order)(energy, x)
    assert residual.max() < 1e-15
    for layer, s in enumerate(state):
        torch.testing.assert_close(s, energy.activations[layer].sigma(energy.drive(state, x, layer)))
    torch.testing.assert_close(state, FixedPoint(200)(energy, x).state)


@pytest.mark.parametrize(
    ("order", "layers", "groups"),
    [
        ("odd-even", 4, [[0, 2], [1, 3]]),
        ("even-odd", 4, [[1, 3], [0, 2]]),
        ("output-first", 4, [[1, 3], [0, 2]]),
        ("output-first", 3, [[0, 2], [1]]),
        ("output-last", 4, [[0, 2], [1, 3]]),
        ("output-last", 3, [[1], [0, 2]]),
        ("upward", 3, [[0], [1], [2]]),
        ("downward", 3, [[2], [1], [0]]),
        ("synchronous", 3, [[0, 1, 2]]),
        ("even-odd", 1, [[0]]),
    ],
)
def test_each_order_moves_its_groups_of_layers_in_turn(order: Order, layers: int, groups: list[list[int]]) -> None:
    """Seen from outside: the first half-sweep reads the old state, the second the new one."""
    energy = dense(*[4] * layers)
    x = torch.rand(2, 4, dtype=torch.float64)
    state = tuple(torch.rand(2, 4, dtype=torch.float64) for _ in range(layers))
    expected = list(state)
    for group in groups:
        read = tuple(expected)
        for layer in group:
            expected[layer] = energy.activations[layer].sigma(energy.drive(read, x, layer))
    assert all(torch.equal(a, b) for a, b in zip(FixedPoint(1, order=order).sweep(energy, state, x), expected, strict=True))


@pytest.mark.parametrize("order", ORDERS)
def test_transposing_twice_changes_nothing(order: Order) -> None:
    relax = FixedPoint(7, order=order, tolerance=1e-3)
    assert relax.transposed.transposed == relax
    assert relax.transposed.steps == 7
    assert (relax.transposed == relax) == (order == "synchronous")


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    scale=st.floats(0.1, 6),
    slope=st.floats(0.1, 3),
    order=st.sampled_from(["odd-even", "even-odd", "output-first", "output-last", "upward", "downward"]),
    smooth=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_alternating_sweeps_never_raise_the_energy(
    sizes: list[int], scale: float, slope: float, order: Order, smooth: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    energy = dense(*sizes, scale=scale, activation=sigmoid() if smooth else clamp(slope))
    energies = trace(energy, FixedPoint(15, order=order), torch.randn(3, sizes[0], dtype=torch.float64)).energy
    assert (energies.diff(dim=0) <= 1e-12 * (1 + energies.abs().max())).all()


@given(scale=st.floats(0.1, 4), pooled=st.booleans(), seed=st.integers(0, 1000))
def test_sweeps_of_convolutions_and_average_pooling_never_raise_the_energy(scale: float, pooled: bool, seed: int) -> None:
    torch.manual_seed(seed)
    edges = [Convolution(2, 3, padding=1, pool=AveragePool() if pooled else None), Convolution(3, 2, stride=2, padding=1)]
    energy = Hopfield(edges, clamp(1)).double()
    with torch.no_grad():
        for edge in edges:
            edge.weight.mul_(scale)
    energies = trace(energy, FixedPoint(10), torch.randn(2, 2, 6, 6, dtype=torch.float64)).energy
    assert (energies.diff(dim=0) <= 1e-12 * (1 + energies.abs().max())).all()


@given(seed=st.integers(0, 1000), tolerance=st.sampled_from([None, 1e-2, 1e-6]))
def test_a_sample_relaxes_alone_as_it_does_in_any_batch(seed: int, tolerance: float | None) -> None:
    """Permuting a batch permutes the result, and a sample alone relaxes as it does in company, stopping rule included."""
    torch.manual_seed(seed)
    energy, x = dense(5, 6, 4, scale=2.0), 2 * torch.randn(4, 5, dtype=torch.float64)
    relax = FixedPoint(30, tolerance=tolerance)
    state, residual, sweeps = relax(energy, x)
    order = torch.randperm(4)
    permuted = relax(energy, x[order])
    torch.testing.assert_close(permuted.state, tuple(s[order] for s in state), rtol=0, atol=1e-14)
    assert torch.equal(permuted.sweeps, sweeps[order])
    for i in range(4):
        alone = relax(energy, x[i : i + 1])
        torch.testing.assert_close(alone.state, tuple(s[i : i + 1] for s in state), rtol=0, atol=1e-14)
        torch.testing.assert_close(alone.residual, residual[i : i + 1], rtol=0, atol=1e-14)


def test_tolerance_stops_each_sample_on_its_own() -> None:
    energy, x = dense(6, 5, 4, scale=3.0), torch.rand(8, 6, dtype=torch.float64) * torch.arange(8).double().view(-1, 1)
    state, residual, sweeps = FixedPoint(500, tolerance=1e-6)(energy, x)
    assert (residual <= 1e-6).all()
    assert sweeps.min() < sweeps.max() < 500
    exact = FixedPoint(500)(energy, x).state
    torch.testing.assert_close(state, exact, rtol=0, atol=1e-5)


def test_tolerance_out_of_reach_stops_after_the_maximum_of_sweeps() -> None:
    relaxed = FixedPoint(3, tolerance=1e-12)(dense(6, 5, 4), torch.rand(2, 6, dtype=torch.float64))
    assert relaxed.sweeps.tolist() == [3, 3]
    assert (relaxed.residual > 1e-12).all()


def test_observer_sees_every_state() -> None:
    energy, x = dense(6, 5), torch.rand(2, 6, dtype=torch.float64)
    seen: list[tuple[int, float]] = []
    relaxed = FixedPoint(4)(energy, x, observer=lambda sweeps, state: seen.append((sweeps, state[-1].sum().item())))
    assert [sweeps for sweeps, _ in seen] == [0, 1, 2, 3, 4]
    assert seen[0][1] == 0
    assert seen[-1][1] == relaxed.state[-1].sum().item()


def test_start_is_left_unchanged() -> None:
    energy, x = dense(6, 5), torch.rand(2, 6, dtype=torch.float64)
    start = energy.init_state(x)
    copy = tuple(s.clone() for s in start)
    FixedPoint(3)(energy, x, start=start)
    torch.testing.assert_close(start, copy, rtol=0, atol=0)


def test_stationary_nudge_minimises_the_tilted_energy() -> None:
    """With sigmoids: ∇E(s_β) + β δ = 0."""
    energy, x = dense(6, 5, 4, activation=sigmoid()), torch.randn(3, 6, dtype=torch.float64)
    delta, beta = torch.randn(3, 4, dtype=torch.float64), torch.tensor([0.3, -0.2, 0.0], dtype=torch.float64)
    state = FixedPoint(300)(energy, x, nudge=Stationary(beta, (None, None, delta))).state
    leaves = tuple(s.clone().requires_grad_() for s in state)
    tilted = energy(leaves, x).sum() + (beta.view(-1, 1) * leaves[-1] * delta).sum()
    for slope in torch.autograd.grad(tilted, leaves):
        torch.testing.assert_close(slope, torch.zeros_like(slope), rtol=0, atol=1e-12)


def test_elastic_nudge_minimises_the_augmented_energy() -> None:
    energy, x = dense(6, 5, 4, activation=sigmoid()), torch.randn(3, 6, dtype=torch.float64)
    y, beta = torch.rand(3, 4, dtype=torch.float64), torch.full((3,), 0.4, dtype=torch.float64)

    def cost(output: Tensor, y: Tensor) -> Tensor:
        return (output - y).square().sum(1)

    state = FixedPoint(300)(energy, x, nudge=Elastic(beta, cost, y)).state
    leaves = tuple(s.clone().requires_grad_() for s in state)
    for slope in torch.autograd.grad(energy(leaves, x).sum() + (beta * cost(leaves[-1], y)).sum(), leaves):
        torch.testing.assert_close(slope, torch.zeros_like(slope), rtol=0, atol=1e-12)


def test_a_network_of_one_layer_is_its_activation() -> None:
    x = torch.randn(3, 2, 4, 4)
    assert torch.equal(FixedPoint(1)(Hopfield([], clamp(0.5)), x).state[0], (0.5 * x).clamp(0, 1))


DIVERGED = r"{} diverged: residual .* at sweep \d+\. .*lower"


def test_divergence_names_block_sweep_and_residual() -> None:
    energy, x = dense(4, 4, scale=1e9, activation=identity()), torch.rand(2, 4, dtype=torch.float64)
    with naming("block 3 of 6"), pytest.raises(DivergenceError, match=DIVERGED.format("block 3 of 6")) as caught:
        FixedPoint(60)(energy, x)
    assert caught.value.block == "block 3 of 6"
    assert 1 < caught.value.sweep < 60
    assert not math.isfinite(caught.value.residual)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.sweep, str(copy)) == (caught.value.sweep, str(caught.value))
    with pytest.raises(DivergenceError, match=DIVERGED.format("The relaxation of the block")):
        FixedPoint(60)(energy, x)  # on its own, without a block that has a name
    with pytest.raises(DivergenceError, match=DIVERGED.format("the third")):
        EnergyBlock(energy, FixedPoint(60), name="the third")(x)


def test_a_growing_state_raises_divergence_before_it_overflows() -> None:
    energy = Hopfield([Dense(4, 4, bias=False)], identity()).double()
    with torch.no_grad():
        energy.edges[0].weight.copy_(1.15 * torch.eye(4))  # each sweep multiplies the state by 1.32
    with pytest.raises(DivergenceError) as caught:
        FixedPoint(20)(energy, torch.rand(2, 4, dtype=torch.float64))
    assert math.isfinite(caught.value.residual)
    assert caught.value.sweep == 20


def test_large_states_that_settle_raise_no_divergence() -> None:
    relaxed = FixedPoint(2)(dense(4, 4, activation=identity()), 1e6 * torch.ones(2, 4, dtype=torch.float64))
    assert (relaxed.residual > 1e3).all()  # still moving, by less than its own scale


@pytest.mark.parametrize("steps", [0, -3, 2.5, True])
def test_refuses_steps_that_are_no_positive_integer(steps: int) -> None:
    with pytest.raises(ValueError, match="`steps`"):
        FixedPoint(steps)


@pytest.mark.parametrize("tolerance", [0.0, -1e-3, math.nan, math.inf])
def test_refuses_a_tolerance_that_is_not_positive(tolerance: float) -> None:
    with pytest.raises(ValueError, match="`tolerance`"):
        FixedPoint(5, tolerance=tolerance)


def test_refuses_unknown_order() -> None:
    with pytest.raises(ValueError, match=r"Unknown order 'upwards'; choose one of 'odd-even'"):
        FixedPoint(5, order="upwards")


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.rand(0, 4), "at least one sample"),
        (torch.rand(4), "Add a batch dimension"),
        (torch.tensor([[0.0, math.nan, 1.0, 2.0]]), "1 non-finite values among 4"),
    ],
)
def test_refuses_input_without_samples_or_numbers(x: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FixedPoint(5)(dense(4, 3).float(), x)


def test_names_the_parameter_that_is_not_finite() -> None:
    energy = dense(4, 3)
    with torch.no_grad():
        energy.edges[0].weight[0, 0] = math.nan
    with pytest.raises(ValueError, match=r"The interactions\.0\.weight of .* has 1 non-finite"):
        FixedPoint(5)(energy, torch.rand(2, 4, dtype=torch.float64))


def test_refuses_an_input_of_integers() -> None:
    with pytest.raises(TypeError, match=r"got torch\.int64"):
        FixedPoint(5)(dense(4, 3), torch.ones(2, 4, dtype=torch.long))


def test_refuses_an_input_of_the_wrong_shape() -> None:
    energy, x = Hopfield([Convolution(3, 4, padding=1)]), torch.rand(1, 2, 8, 8)
    with pytest.raises(ValueError, match=r"\(1, 2, 8, 8\) does not fit the block\. .* got \(2, 8, 8\)"):
        FixedPoint(5)(energy, x)
    with pytest.raises(ValueError, match=r"\(1, 2, 8, 8\) does not fit an unnamed Hopfield block\. .* got \(2, 8, 8\)"):
        EnergyBlock(energy)(x)
    with pytest.raises(ValueError, match=r"\(1, 2, 8, 8\) does not fit the first\. .* got \(2, 8, 8\)"):
        EnergyBlock(energy, name="the first")(x)


def test_refuses_the_wrong_number_of_activations() -> None:
    with pytest.raises(ValueError, match="2 interactions make 3 layers, got 2 activations"):
        Hopfield([Dense(4, 3), Dense(3, 2)], [clamp(), clamp()])
