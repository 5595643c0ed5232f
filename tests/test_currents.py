"""The fast path against the slow one: unrecorded sweeps, in portions, against plain sweeps from `Energy.drive`."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ffebm import (
    BackpropThroughTime,
    Convolution,
    Dense,
    EquilibriumPropagation,
    FixedPoint,
    GradientEstimator,
    Hopfield,
    RecurrentBackprop,
    Unrolled,
    clamp,
    identity,
    portions,
    sigmoid,
    tanh,
)
from ffebm.diagnostics import gradients
from ffebm.gradient.estimator import differentiate
from ffebm.interaction import Interaction
from ffebm.iteration import iterate
from ffebm.nudge import Elastic, Nudge, Stationary
from ffebm.relaxation import Order, Relaxation
from nets import POOLS, batch, make, worst

ORDERS: list[Order] = list(get_args(Order))
NETS = ["dense", "convolution", "strided", "mixed", *POOLS]
ACTIVATIONS = {"clamp": clamp(0.5), "steep": clamp(1.0), "box": clamp(0.7, -0.5, 2.0), "sigmoid": sigmoid(), "tanh": tanh()}
PRECISIONS = {torch.float64: 1e-12, torch.float32: 1e-5}


def edges(net: str, layers: int) -> tuple[list[Interaction], tuple[int, ...]]:
    if net == "dense":
        return [Dense(5, 5) for _ in range(layers - 1)], (5,)
    if net == "strided":
        return [Convolution(2, 2, stride=2 if i == 0 else 1, padding=1) for i in range(layers - 1)], (2, 7, 6)
    if net == "mixed" and layers > 1:
        return [*(Convolution(2, 2, padding=1) for _ in range(layers - 2)), Dense(32, 4)], (2, 4, 4)
    pool = POOLS.get(net)
    return [Convolution(2, 2, padding=1, pool=pool() if pool and i == 0 else None) for i in range(layers - 1)], (2, 4, 4)


def slow(relax: Relaxation, energy: Hopfield, x: Tensor, nudge: Nudge | None, start: tuple[Tensor, ...] | None):
    """What the paper writes: one drive after the other, all samples at once, a new tensor for everything."""
    begin = energy.init_state(x) if start is None else start
    return iterate(lambda state: relax.sweep(energy, state, x, nudge), begin, relax.steps, relax.tolerance)


def cost(output: Tensor, y: Tensor) -> Tensor:
    return (output.flatten(1).mean(1) - y).square()


@settings(max_examples=150)
@given(
    net=st.sampled_from(NETS),
    layers=st.integers(1, 4),
    order=st.sampled_from(ORDERS),
    omega=st.sampled_from([0.6, 1.0, 1.1, 1.5]),
    inner=st.sampled_from(list(ACTIVATIONS)),
    clamped=st.booleans(),
    kind=st.sampled_from(["none", "stationary", "elastic"]),
    started=st.booleans(),
    tolerance=st.sampled_from([None, 1e-3]),
    cache=st.sampled_from([1, 2000, 2**22]),
    dtype=st.sampled_from(list(PRECISIONS)),
    channels_last=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_fast_and_slow_sweeps_agree(
    net, layers, order, omega, inner, clamped, kind, started, tolerance, cache, dtype, channels_last, seed
) -> None:
    torch.manual_seed(seed)
    parts, shape = edges(net, layers)
    outputs = ACTIVATIONS[inner] if clamped else identity()
    energy = Hopfield(parts, [*[ACTIVATIONS[inner]] * (layers - 1), outputs]).to(dtype)
    x = torch.randn(3, *shape, dtype=dtype)
    if channels_last and x.dim() == 4:
        energy, x = energy.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    start = tuple(torch.rand_like(s) for s in energy.init_state(x)) if started else None
    beta = torch.tensor([0.2, -0.2, 0.1], dtype=dtype)
    nudge: Nudge | None = None
    if kind == "stationary":
        nudge = Stationary(beta, (*[None] * (layers - 1), torch.randn_like(energy.init_state(x)[-1])))
    elif kind == "elastic":
        nudge = Elastic(beta, cost, torch.rand(3, dtype=dtype))
    relax = FixedPoint(6, order=order, omega=omega, tolerance=tolerance)
    kept = [s.clone() for s in start or ()]
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(portions, "CACHE", cache)
        fast = relax(energy, x, start=start, nudge=nudge)
        obvious = slow(relax, energy, x, nudge, start)
    precise = PRECISIONS[dtype]
    torch.testing.assert_close(fast.state, obvious.state, rtol=precise, atol=precise)
    assert all(torch.equal(a, b) for a, b in zip(kept, start or (), strict=True)), "the starting state was overwritten"
    if dtype == torch.float64:
        torch.testing.assert_close(fast.residual, obvious.residual, rtol=0, atol=1e-11)
        if tolerance is not None:  # without one, those that change nothing but rounding are skipped
            assert torch.equal(fast.sweeps, obvious.sweeps)


@pytest.mark.parametrize("dtype", list(PRECISIONS), ids=str)
@pytest.mark.parametrize("net", ["dense", "convolution", "average"])
def test_sweeps_that_change_nothing_are_skipped(net: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    parts, shape = edges(net, 3)
    energy = Hopfield(parts, [clamp(0.5), clamp(0.5), identity()]).to(dtype)
    x = torch.randn(3, *shape, dtype=dtype)
    relax = FixedPoint(300)
    with torch.no_grad():
        fast, obvious = relax(energy, x), slow(relax, energy, x, None, None)
    precise = PRECISIONS[dtype]
    torch.testing.assert_close(fast.state, obvious.state, rtol=precise, atol=precise)
    assert (fast.sweeps < 300).all()
    assert (fast.residual <= 4 * torch.finfo(dtype).eps).all()
    watched: list[int] = []
    relax(energy, x, observer=lambda sweeps, _: watched.append(sweeps))
    assert watched[-1] == 300, "an observer sees all"


ESTIMATORS: dict[str, Callable[[], GradientEstimator]] = {
    "centered": lambda: EquilibriumPropagation(FixedPoint(4, order="output-first", omega=1.1)),
    "positive": lambda: EquilibriumPropagation(FixedPoint(4), variant="positive"),
    "paper": lambda: EquilibriumPropagation(FixedPoint(4), scale="paper"),
    "recurrent": lambda: RecurrentBackprop(FixedPoint(5, omega=1.1)),
    "unrolled": lambda: Unrolled(FixedPoint(4, omega=1.1)),
    "bptt": BackpropThroughTime,
}


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("nudge", ["elastic", "stationary"])
@pytest.mark.parametrize("kind", ["dense", *POOLS])
@pytest.mark.parametrize("dtype", list(PRECISIONS), ids=str)
def test_gradients_by_the_fast_path_are_those_by_the_slow_one(
    estimator: str, nudge: str, kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fast: portions of two samples, cached currents, closed-form contrasts. Slow: none of that."""
    model = make(kind, 2, ESTIMATORS[estimator](), relax=FixedPoint(7, omega=1.1), nudge=nudge).to(dtype)
    x, y = batch(model, samples=5)
    sample = sum(s[0].nbytes for s in model.chain[0][1].energy.init_state(model.chain[0][0](x)))
    monkeypatch.setattr(portions, "CACHE", 6 * sample)
    fast = gradients(model, x, y)
    monkeypatch.setattr(portions, "CACHE", 2**40)
    monkeypatch.setattr(FixedPoint, "unrecorded", Relaxation.unrecorded)
    monkeypatch.setattr(Hopfield, "contrast_gradient", _by_autograd)
    obvious = gradients(model, x, y)
    # A contrast of float32 states divides their rounding by β.
    assert worst(fast, obvious) < (1e-11 if dtype == torch.float64 else 2e-4)


def _by_autograd(energy: Hopfield, high, low, x: Tensor, weights: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return differentiate((weights * energy.contrast(high, low, x)).sum(), x, energy)


def test_copies_of_the_same_samples_share_what_they_have_in_common() -> None:
    torch.manual_seed(0)
    energy = Hopfield([Dense(5, 4), Dense(4, 3)]).double()
    x, state = torch.rand(2, 5, dtype=torch.float64), None
    with torch.no_grad():
        state = FixedPoint(3)(energy, x).state
        twice, start = torch.cat([x, x]), tuple(torch.cat([s, s]) for s in state)
        nudge = Stationary(torch.tensor([0.1, 0.1, -0.1, -0.1], dtype=torch.float64), (None, None, torch.ones(4, 3)))
        for order in ORDERS:
            relax = FixedPoint(3, order=order)
            shared = relax(energy, x, start=state, nudge=nudge, copies=2).state
            torch.testing.assert_close(shared, slow(relax, energy, twice, nudge, start).state, rtol=0, atol=1e-14)


class Wire(Interaction):
    """A connection that returns its argument: whoever writes into that writes into the state."""

    def up(self, pre: Tensor) -> Tensor:
        return pre

    def down(self, pre: Tensor, post: Tensor) -> Tensor:
        return post

    def out_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape


def test_an_interaction_of_somebody_elses_is_not_written_into() -> None:
    energy, x = Hopfield([Wire(), Wire()], clamp(0.3)), torch.rand(2, 4)
    with torch.no_grad():
        torch.testing.assert_close(FixedPoint(5)(energy, x).state, slow(FixedPoint(5), energy, x, None, None).state)


class Halfway(FixedPoint):
    def sweep(self, energy, state, x, nudge=None):
        return tuple((a + b) / 2 for a, b in zip(state, super().sweep(energy, state, x, nudge), strict=True))


def test_a_sweep_of_somebody_elses_is_not_passed_over() -> None:
    energy, x = Hopfield([Dense(4, 3)]), torch.rand(2, 4)
    with torch.no_grad():
        torch.testing.assert_close(Halfway(3)(energy, x).state, slow(Halfway(3), energy, x, None, None).state)
        assert not torch.allclose(Halfway(3)(energy, x).state[0], FixedPoint(3)(energy, x).state[0])


@given(batch_size=st.integers(1, 300), bytes_each=st.integers(1, 10**6))
def test_portions_take_every_sample_once_and_fit(batch_size: int, bytes_each: int) -> None:
    sample = [torch.empty(bytes_each, dtype=torch.uint8)]
    parts = portions.portions(batch_size, sample)
    assert [i for part in parts for i in range(batch_size)[part]] == list(range(batch_size))
    sizes = [part.stop - part.start for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) == 1 or max(sizes) * bytes_each <= portions.CACHE + bytes_each


@given(omega=st.floats(0.1, 1.9), scale=st.floats(0.1, 3), seed=st.integers(0, 1000))
def test_over_relaxed_sweeps_never_raise_the_energy(omega: float, scale: float, seed: int) -> None:
    torch.manual_seed(seed)
    energy = Hopfield([Dense(5, 4), Dense(4, 6)], [clamp(0.5), clamp(1), identity()]).double()
    energies = []
    with torch.no_grad():
        for edge in energy.edges:
            edge.weight.mul_(scale)
        x = torch.randn(3, 5, dtype=torch.float64)
        FixedPoint(12, omega=omega)(energy, x, observer=lambda _, state: energies.append(energy(state, x)))
    changes = torch.stack(energies).diff(dim=0)
    assert (changes <= 1e-12 * (1 + torch.stack(energies).abs().max())).all()


@pytest.mark.parametrize("omega", [0.0, 2.0, -1.0, float("nan")])
def test_omega_out_of_range_is_refused(omega: float) -> None:
    with pytest.raises(ValueError, match="omega"):
        FixedPoint(5, omega=omega)
