"""The fast path against the slow one: remembered currents, phases in turn and portions against one drive after the other."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from math import prod
from typing import get_args

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from ffebm import (
    BackpropThroughTime,
    Convolution,
    Dense,
    Edge,
    Energy,
    EnergyBlock,
    EquilibriumPropagation,
    FixedPoint,
    GradientEstimator,
    Hopfield,
    RecurrentBackprop,
    Stencil,
    Unrolled,
    clamp,
    identity,
    portions,
    sigmoid,
    tanh,
)
from ffebm.diagnostics import gradients
from ffebm.interaction import Interaction, Shape
from ffebm.nudge import Elastic, Nudge, Stationary
from ffebm.relaxation import Order, Relaxation, Relaxed
from ffebm.state import State, change, per_sample
from ffebm.system import FREE, Phase, Simulated
from nets import POOLS, batch, make, worst

SAMPLES = 3
NETS = ["dense", "convolution", "strided", "mixed", *POOLS]
ACTIVATIONS = {"clamp": clamp(0.5), "steep": clamp(1.0), "box": clamp(0.7, -0.5, 2.0), "sigmoid": sigmoid(), "tanh": tanh()}
PRECISIONS = {torch.float64: 1e-12, torch.float32: 1e-5}
SIGNS = torch.tensor([1.0, -1.0, 1.0])  # of a strength that every sample has its own of


@dataclass(frozen=True)
class Case:
    """A network, the phases that it settles in and how; its numbers follow from the seed."""

    net: str
    ties: tuple[tuple[int, int], ...]  # the layers that edges tie, at least one into every layer but the first
    from_end: bool  # whether skip connections count layers from the end
    feedback: float
    inner: str
    clamped: bool  # the output, too
    relax: FixedPoint
    nudge: str
    strengths: tuple[float | None, ...]  # one for each phase, None for a free one
    signed: bool  # whether samples have strengths of their own
    started: bool
    latched: bool
    cache: int
    dtype: torch.dtype
    channels_last: bool
    seed: int

    @property
    def layers(self) -> int:
        return 1 + max((post for _, post in self.ties), default=0)

    @property
    def precision(self) -> float:
        return PRECISIONS[self.dtype]

    def shape(self, layer: int) -> Shape:
        if self.net == "dense":
            return ((5, 4, 6, 3)[layer],)
        if self.net == "strided":
            return (2, 7, 6) if layer == 0 else (2, 4, 3)
        if self.net == "mixed" and layer == self.layers - 1 > 0:
            return (4,)
        return (2, 2, 2) if self.net in POOLS and layer > 0 else (2, 4, 4)

    def edge(self, pre: int, post: int) -> Interaction:
        below, above = self.shape(pre), self.shape(post)
        if len(above) == 1:
            return Dense(prod(below), *above)
        pool = POOLS[self.net]() if self.net in POOLS and below != above else None
        return Convolution(2, 2, stride=2 if self.net == "strided" and below != above else 1, padding=1, pool=pool)

    def build(self) -> Built:
        torch.manual_seed(self.seed)
        parts: list[Interaction | Edge] = []
        chain = 0  # the link that an interaction without an edge around it would be
        for pre, post in self.ties:
            offset = self.layers if self.from_end else 0
            if (pre, post) == (chain, chain + 1):
                parts.append(self.edge(pre, post))
                chain += 1
            else:
                parts.append(Edge(pre - offset, post - offset, self.edge(pre, post)))
        outputs = ACTIVATIONS[self.inner] if self.clamped else identity()
        activations = [*[ACTIVATIONS[self.inner]] * (self.layers - 1), outputs]
        energy = Hopfield(parts, activations, feedback=self.feedback).to(self.dtype)
        for edge in energy.edges:
            edge.weight.data.div_(2)  # over-relaxed, many edges between unclamped layers would run away
        x = torch.randn(SAMPLES, *self.shape(0), dtype=self.dtype)
        if self.channels_last and x.dim() == 4:
            energy, x = energy.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
        zeros = energy.init_state(x)
        start = tuple(torch.rand_like(s) for s in zeros) if self.started else None
        system = Simulated(energy, self.relax)
        if self.latched:
            system = system.latched(tuple(torch.randn_like(s) for s in zeros))
        nudge = self._nudge(zeros)
        phases = [FREE if s is None else Phase(nudge, s * SIGNS.to(x) if self.signed else s) for s in self.strengths]
        return Built(system, x, start, phases)

    def _nudge(self, zeros: State) -> Nudge:
        ones = torch.linspace(0.5, 1.5, SAMPLES, dtype=self.dtype)
        if self.nudge == "elastic":
            return Elastic(ones, cost, torch.rand(SAMPLES, dtype=self.dtype))
        if self.nudge == "own":
            return Spring()
        at = {self.layers - 1, self.seed % self.layers}
        return Stationary(ones, tuple(torch.randn_like(s) if layer in at else None for layer, s in enumerate(zeros)))


@dataclass(frozen=True)
class Built:
    system: Simulated
    x: Tensor
    start: State | None
    phases: list[Phase]

    @property
    def energy(self) -> Energy:
        return self.system.energy

    def plain(self) -> list[Relaxed]:
        return plain(self.system.relax, self.energy, self.x, self.phases, self.start)


def cost(output: Tensor, y: Tensor) -> Tensor:
    return (output.flatten(1).mean(1) - y).square()


class Spring(Nudge):
    """A nudge of somebody's own, which knows nothing of portions and phases."""

    def force(self, state: State, layer: int) -> Tensor | None:
        return state[-1] - 0.3 if layer == len(state) - 1 else None


@st.composite
def ties(draw: st.DrawFn) -> tuple[tuple[int, int], ...]:
    """A chain, a chain with skip connections, or any layers on any others below."""
    layers = draw(st.integers(1, 4))
    below = [draw(st.sampled_from([post - 1, *range(post)])) for post in range(1, layers)]
    pairs = [(pre, post) for post in range(1, layers) for pre in range(post)]
    skips = draw(st.lists(st.sampled_from(pairs), max_size=3)) if layers > 1 else []
    return (*((pre, post) for post, pre in enumerate(below, 1)), *skips)


CASES = st.builds(
    Case,
    net=st.sampled_from(NETS),
    ties=ties(),
    from_end=st.booleans(),
    feedback=st.sampled_from([1.0, 0.3]),
    inner=st.sampled_from(list(ACTIVATIONS)),
    clamped=st.booleans(),
    relax=st.builds(
        FixedPoint,
        st.just(6),
        order=st.sampled_from(get_args(Order)),
        omega=st.sampled_from([0.6, 1.0, 1.1, 1.5]),
        tolerance=st.sampled_from([None, 1e-2]),
    ),
    nudge=st.sampled_from(["stationary", "elastic", "own"]),
    strengths=st.lists(st.sampled_from([None, 0.2, -0.2, 0.05]), min_size=1, max_size=3).map(tuple),
    signed=st.booleans(),
    started=st.booleans(),
    latched=st.booleans(),
    cache=st.sampled_from([1, 2000, 2**22]),
    dtype=st.sampled_from(list(PRECISIONS)),
    channels_last=st.booleans(),
    seed=st.integers(0, 1000),
)


def fast(case: Case, built: Built) -> list[Relaxed]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(portions, "CACHE", case.cache)
        return built.system.settle(built.x, built.phases, start=built.start)


@torch.no_grad()
def plain(relax: Relaxation, energy: Energy, x: Tensor, phases: list[Phase], start: State | None = None) -> list[Relaxed]:
    """What the paper writes: each phase on its own, one drive after the other, all samples at once, nothing overwritten.

    With a tolerance, a sample stops at the first sweep that moves it by less in every phase.
    """
    begin = energy.init_state(x) if start is None else start
    courses: list[list[State]] = []
    for phase in phases:
        nudge = phase.nudge and Scaled(phase.nudge, phase.strength)
        states = [begin]
        for _ in range(relax.steps):
            states.append(relax.sweep(energy, states[-1], x, nudge))
        courses.append(states)
    moves = torch.stack([torch.stack([change(*pair) for pair in zip(c[1:], c[:-1], strict=True)]) for c in courses])
    calm = (moves <= (-1 if relax.tolerance is None else relax.tolerance)).all(0)
    calm[-1] = True
    last = calm.int().argmax(0)  # the first
    samples = torch.arange(len(x))
    readings = []
    for states, moved in zip(courses, moves, strict=True):
        state = tuple(torch.stack(layer)[last, samples] for layer in zip(*states[1:], strict=True))
        readings.append(Relaxed(state, moved[last, samples], last + 1))
    return readings


@dataclass(frozen=True)
class Scaled(Nudge):
    nudge: Nudge
    strength: float | Tensor

    def force(self, state: State, layer: int) -> Tensor | None:
        force = self.nudge.force(state, layer)
        if force is None or not isinstance(self.strength, Tensor):
            return None if force is None else self.strength * force
        return per_sample(self.strength, force) * force


@settings(max_examples=300)
@given(CASES)
def test_phases_settle_together_where_plain_sweeps_of_each_do(case: Case) -> None:
    built = case.build()
    for found, alone in zip(fast(case, built), built.plain(), strict=True):
        torch.testing.assert_close(found.state, alone.state, rtol=case.precision, atol=case.precision)


@settings(max_examples=50)
@given(CASES)
def test_residuals_and_sweeps_are_those_of_plain_sweeps(case: Case) -> None:
    case = replace(case, dtype=torch.float64)
    built = case.build()
    for found, alone in zip(fast(case, built), built.plain(), strict=True):
        assert torch.equal(found.sweeps, alone.sweeps)
        if case.started and case.relax.tolerance is None and any(strength is not None for strength in case.strengths):
            assert found.residual.isnan().all(), "nobody measures what a fixed number of nudged sweeps leaves"
        else:
            torch.testing.assert_close(found.residual, alone.residual, rtol=0, atol=1e-11)


@settings(max_examples=50)
@given(CASES)
def test_start_input_and_errors_are_not_overwritten(case: Case) -> None:
    case = replace(case, started=True)
    built = case.build()
    forces = [d for phase in built.phases for d in getattr(phase.nudge, "deltas", ()) if d is not None]
    given = [built.x, *(built.start or ()), *forces, *built.energy.parameters()]
    kept = [tensor.detach().clone() for tensor in given]
    fast(case, built)
    assert all(torch.equal(a, b) for a, b in zip(kept, given, strict=True))


@settings(max_examples=50)
@given(CASES)
def test_a_relaxation_called_on_its_own_settles_where_plain_sweeps_do(case: Case) -> None:
    built = replace(case, signed=False).build()
    phase = built.phases[0]
    nudge = phase.nudge and Scaled(phase.nudge, phase.strength)
    with torch.no_grad():
        found = case.relax(built.energy, built.x, start=built.start, nudge=nudge)
    (expected,) = plain(case.relax, built.energy, built.x, [phase], built.start)
    torch.testing.assert_close(found.state, expected.state, rtol=case.precision, atol=case.precision)


@pytest.mark.parametrize("dtype", list(PRECISIONS), ids=str)
@pytest.mark.parametrize(
    "edges",
    [
        lambda: [Dense(32, 5), Dense(5, 4)],
        lambda: [Convolution(2, 2, padding=1), Convolution(2, 2, padding=1)],
        lambda: [Convolution(2, 2, padding=1, pool=POOLS["average"]()), Dense(8, 3)],
    ],
    ids=["dense", "convolution", "average"],
)
def test_sweeps_that_change_nothing_are_skipped(edges: Callable[[], list[Interaction]], dtype: torch.dtype) -> None:
    energy = Hopfield(edges(), [clamp(0.5), clamp(0.5), identity()]).to(dtype)
    x = torch.randn(3, 2, 4, 4, dtype=dtype)
    relax = FixedPoint(300)
    with torch.no_grad():
        found = relax(energy, x)
    (expected,) = plain(relax, energy, x, [FREE])
    torch.testing.assert_close(found.state, expected.state, rtol=PRECISIONS[dtype], atol=PRECISIONS[dtype])
    assert (found.sweeps < 300).all()
    assert (found.residual <= 4 * torch.finfo(dtype).eps).all()
    watched: list[int] = []
    relax(energy, x, observer=lambda sweeps, _: watched.append(sweeps))
    assert watched[-1] == 300, "an observer sees all"


ESTIMATORS: dict[str, Callable[[], GradientEstimator]] = {
    "centered": lambda: EquilibriumPropagation(FixedPoint(4, order="output-first", omega=1.1)),
    "positive": lambda: EquilibriumPropagation(FixedPoint(4), variant="positive"),
    "one-sided": lambda: EquilibriumPropagation(FixedPoint(4), stencil=Stencil.one_sided()),
    "paper": lambda: EquilibriumPropagation(FixedPoint(4), scale="paper", hold_pooling=False),
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
    """Fast: portions of two samples, remembered currents, closed-form contrasts. Slow: none of that."""
    model = make(kind, 2, ESTIMATORS[estimator](), relax=FixedPoint(7, omega=1.1), nudge=nudge).to(dtype)
    x, y = batch(model, samples=5)
    sample = sum(s[0].nbytes for s in model.chain[0][1].energy.init_state(model.chain[0][0](x)))
    monkeypatch.setattr(portions, "CACHE", 6 * sample)
    found = gradients(model, x, y)
    take_the_slow_path(monkeypatch)
    # A contrast of float32 states divides their rounding by β.
    assert worst(found, gradients(model, x, y)) < (1e-11 if dtype == torch.float64 else 2e-4)


@settings(max_examples=50)
@given(CASES)
def test_drives_in_closed_form_are_those_of_autograd(case: Case) -> None:
    built = replace(case, dtype=torch.float64, inner="box").build()
    state = tuple(torch.rand_like(s) for s in built.energy.init_state(built.x))
    for layer in range(case.layers):
        expected = Energy.drive(built.energy, state, built.x, layer)
        torch.testing.assert_close(built.energy.drive(state, built.x, layer), expected)


@settings(max_examples=50)
@given(CASES)
def test_contrasts_in_closed_form_are_those_of_autograd(case: Case) -> None:
    built = replace(case, dtype=torch.float64).build()
    high, low = (tuple(torch.rand_like(s) for s in built.energy.init_state(built.x)) for _ in range(2))
    weights = torch.randn(SAMPLES, dtype=torch.float64)
    found = built.energy.contrast_gradient(high, low, built.x, weights)
    torch.testing.assert_close(found, Energy.contrast_gradient(built.energy, high, low, built.x, weights))


def take_the_slow_path(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(portions, "CACHE", 2**40)
    patch.setattr(Hopfield, "session", Energy.session)
    patch.setattr(Hopfield, "contrast_gradient", contrast_gradient_of_energies)


def contrast_gradient_of_energies(
    energy: Hopfield, high: State, low: State, x: Tensor, weights: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """By autograd, in float64: in float32 the difference of two energies has lost the digits that are to be compared."""
    wide = deepcopy(energy).double()
    states = (tuple(s.double() for s in state) for state in (high, low))
    grad_x, grads = Energy.contrast_gradient(wide, *states, x.double(), weights.double())
    return grad_x.to(x), {name: gradient.to(x) for name, gradient in grads.items()}


def test_a_latched_batch_is_not_cut_into_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its positions belong to all of its images."""
    energy, x = Hopfield([Convolution(2, 2, padding=1, pool=POOLS["max"]())]), torch.rand(5, 2, 4, 4)
    system = Simulated(energy, FixedPoint(3))
    free = system.settle(x, [FREE])[0].state
    whole = system.latched(free).settle(x, [FREE, FREE], start=free)
    monkeypatch.setattr(portions, "CACHE", 1)
    torch.testing.assert_close(system.latched(free).settle(x, [FREE, FREE], start=free), whole)


class Wire(Interaction):
    """A connection that returns its argument: whoever writes into that writes into the state."""

    def up(self, pre: Tensor) -> Tensor:
        return pre

    def down(self, pre: Tensor, post: Tensor) -> Tensor:
        return post

    def out_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape


def test_currents_returned_by_a_custom_interaction_are_not_written_into() -> None:
    energy, x = Hopfield([Wire(), Wire()], clamp(0.3)), torch.rand(2, 4)
    with torch.no_grad():
        torch.testing.assert_close(FixedPoint(5)(energy, x).state, plain(FixedPoint(5), energy, x, [FREE])[0].state)


class Halfway(FixedPoint):
    def sweep(self, energy, state, x, nudge=None):
        return tuple((a + b) / 2 for a, b in zip(state, super().sweep(energy, state, x, nudge), strict=True))


def test_a_custom_sweep_is_not_replaced_by_the_fast_one() -> None:
    energy, x = Hopfield([Dense(4, 3)]), torch.rand(2, 4)
    with torch.no_grad():
        torch.testing.assert_close(Halfway(3)(energy, x).state, plain(Halfway(3), energy, x, [FREE])[0].state)
        assert not torch.allclose(Halfway(3)(energy, x).state[0], FixedPoint(3)(energy, x).state[0])


@given(samples=st.integers(1, 300), units=st.integers(1, 50), cache=st.integers(1, 2000))
def test_portions_take_every_sample_once_and_fit_the_cache(samples: int, units: int, cache: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(portions, "CACHE", cache)
        sample = [torch.zeros(1, units)]
        parts = portions.portions(samples, sample)
        assert [i for part in parts for i in range(samples)[part]] == list(range(samples))
        sizes = [part.stop - part.start for part in parts]
        assert max(sizes) - min(sizes) <= 1
        assert max(sizes) == 1 or 4 * units * max(sizes) <= cache
        assert all(len(portions.portions(size, sample)) == 1 for size in sizes), "cutting again changes nothing"


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


@dataclass(frozen=True)
class Descending(Relaxation):
    """Somebody's own sweep, which looks at the input itself, and at currents."""

    def sweep(self, energy, state, x, nudge=None):
        first = energy.drive(state, x, 0) - x + x
        moved = [energy.activations[0].sigma(first), energy.minimise(1, state, x, nudge and nudge.force(state, 1))]
        return tuple(moved)

    @property
    def transposed(self):
        return self


def test_a_sweep_of_somebody_elses_gets_the_input_of_every_phase() -> None:
    torch.manual_seed(0)
    energy, x = Hopfield([Dense(5, 4)], clamp(0.5)).double(), torch.rand(3, 5, dtype=torch.float64)
    found = [
        torch.autograd.grad(
            EnergyBlock(energy, relax, EquilibriumPropagation(relax))(x).square().sum(), list(energy.parameters())
        )
        for relax in (Descending(100), FixedPoint(100, order="synchronous"))
    ]
    torch.testing.assert_close(*found)

    class Further(FixedPoint):
        def sweep(self, energy, state, x, nudge=None):
            return super().sweep(energy, state, x + 0, nudge)

    further = Further(100, order="synchronous")
    again = torch.autograd.grad(
        EnergyBlock(energy, further, EquilibriumPropagation(further))(x).square().sum(), list(energy.parameters())
    )
    torch.testing.assert_close(again, found[1])
