"""The response to a small signal: exact without a β, at a free phase that has settled and close to it at one that has not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from ffebm import (
    Activation,
    AveragePool,
    Convolution,
    Dense,
    Edge,
    Energy,
    EnergyBlock,
    EquilibriumPropagation,
    FixedPoint,
    GradientEstimator,
    Hopfield,
    Interaction,
    MaxPool,
    NonReciprocal,
    RecurrentBackprop,
    Simulated,
    SoftPool,
    State,
    Stencil,
    SystemBlock,
    SystemWrapper,
    clamp,
    identity,
    portions,
    sigmoid,
    tanh,
)
from ffebm.chaining import explicit_chain, implicit_chain
from ffebm.diagnostics import converged_gradients, gradients
from ffebm.energy.tangent import Tangent
from ffebm.interaction import Shape
from ffebm.pooling import Pool
from ffebm.relaxation import Order
from ffebm.testing import finite_differences
from nets import CONVERGED, batch, make, relative, worst

SETTLED = FixedPoint(300, order="output-first", tolerance=1e-14)
SMALL = EquilibriumPropagation(SETTLED, variant="small-signal")
EXACT = RecurrentBackprop(FixedPoint(2000, tolerance=1e-14))
ACTIVATIONS = {
    "clamp": clamp(0.5),
    "box": clamp(0.7, -0.3, 0.6),
    "sigmoid": sigmoid(),
    "tanh": tanh(),
    "identity": identity(0.4),
}


def after(sweeps: int, order: Order = "output-first", **how: Any) -> EquilibriumPropagation:
    return EquilibriumPropagation(FixedPoint(sweeps, order=order), variant="small-signal", **how)


@pytest.mark.parametrize(
    ("kind", "split", "activation", "feedback"),
    [
        (kind, split, activation, feedback)
        for kind in ("dense", "max", "average")
        for split in (2, 3, 6)
        for activation, feedback in ((clamp(0.5), 1.0), (clamp(0.5), 0.3), (sigmoid(), 1.0), (tanh(), 0.3))
        if not (kind == "max" and activation.signed)  # it would not settle
    ],
)
def test_gradients_of_a_model_are_the_converged_ones(kind: str, split: int, activation: Activation, feedback: float) -> None:
    model = make(kind, split, SMALL, activation=activation, feedback=feedback)
    x, y = batch(model)
    assert worst(gradients(model, x, y), converged_gradients(model, x, y)) < 1e-8


def test_gradients_match_finite_differences() -> None:
    model = make("dense", 3, SMALL, activation=sigmoid(), feedback=0.3)
    x, y = batch(model)
    slopes = finite_differences(lambda: model(x, y).losses.mean(), dict(model.named_parameters()), directions=2)
    for name, gradient in gradients(model, x, y).items():
        assert slopes[name].error(gradient) < 1e-6, name


@pytest.mark.parametrize("nudge", ["elastic", "stationary"])
def test_gradients_by_hand_are_those_by_autograd(nudge: str) -> None:
    """Also where pooling is not held: the tangent holds it anyway."""
    model = make("max", 6, replace(SMALL, hold_pooling=False), activation=clamp(0.5), nudge=nudge)
    x, y = batch(model)
    expected = gradients(model, x, y)
    for chain in (explicit_chain, implicit_chain):
        assert worst(chain(model, x, y), expected) < 1e-9


def test_positions_of_pooling_stay_whatever_is_asked_for() -> None:
    """A response that is not small at all is what stands for a small one, and would take windows to other positions."""
    x, y = batch(make("max", 6, SMALL))
    held, jumping = (gradients(make("max", 6, replace(SMALL, hold_pooling=hold)), x, y) for hold in (True, False))
    assert all(torch.equal(held[name], jumping[name]) for name in held)


@dataclass(frozen=True)
class Case:
    """A network and a state; its numbers follow from the seed."""

    net: str
    ties: tuple[tuple[int, int], ...]
    feedback: float
    inner: str
    outer: str
    seed: int

    @property
    def layers(self) -> int:
        return 1 + max((post for _, post in self.ties), default=0)

    def shape(self, layer: int) -> Shape:
        if self.net == "dense":
            return ((5, 4, 6, 3)[layer],)
        return (2, 6, 5) if layer == 0 else (2, 3, 3) if self.net == "strided" else (2, 3, 2)

    def edge(self, pre: int, post: int) -> Interaction:
        if self.net == "dense":
            return Dense(*self.shape(pre), *self.shape(post))
        if pre > 0:
            return Convolution(2, 2, padding=1)
        if self.net == "strided":
            return Convolution(2, 2, stride=2, padding=1)
        return Convolution(2, 2, padding=1, pool=MaxPool() if self.net == "max" else AveragePool())

    def build(self) -> tuple[Hopfield, Tensor]:
        torch.manual_seed(self.seed)
        edges = [Edge(pre, post, self.edge(pre, post)) for pre, post in self.ties]
        activations = [ACTIVATIONS[self.inner]] * (self.layers - 1) + [ACTIVATIONS[self.outer]]
        energy = Hopfield(edges, activations, feedback=self.feedback).double()
        with torch.no_grad():
            for edge in energy.edges:
                edge.weight.mul_(0.5)
        return energy, torch.randn(3, *self.shape(0), dtype=torch.float64)

    def at(self, energy: Hopfield, x: Tensor) -> State:
        """Some units of it are clamped."""
        return tuple(
            activation.sigma(3 * torch.randn_like(s))
            for activation, s in zip(energy.activations, energy.init_state(x), strict=True)
        )


@st.composite
def ties(draw: st.DrawFn, least: int = 1) -> tuple[tuple[int, int], ...]:
    layers = draw(st.integers(least, 4))
    chain = [(layer, layer + 1) for layer in range(layers - 1)]
    pairs = [(pre, post) for post in range(1, layers) for pre in range(post)]
    return (*chain, *(draw(st.lists(st.sampled_from(pairs), max_size=2)) if chain else []))


def cases(**given: Any) -> st.SearchStrategy[Case]:
    how = {
        "net": st.sampled_from(["dense", "strided", "max", "average"]),
        "ties": ties(),
        "feedback": st.sampled_from([1.0, 0.3]),
        "inner": st.sampled_from(list(ACTIVATIONS)),
        "outer": st.sampled_from(list(ACTIVATIONS)),
        "seed": st.integers(0, 1000),
    }
    return st.builds(Case, **{**how, **given})


def block_gradients(
    energy: Energy, x: Tensor, estimator: GradientEstimator, relax: FixedPoint = CONVERGED
) -> dict[str, Tensor]:
    """Of a loss that is not linear in the output."""
    x = x.detach().requires_grad_()
    output = EnergyBlock(energy, relax, estimator, unsettled="ignore")(x)
    loss = (output.square() / 2 + output).flatten(1).sum()
    named = {"x": x, **dict(energy.named_parameters())}
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


@settings(max_examples=30)
@given(case=cases(net=st.sampled_from(["dense", "strided", "average"])))
def test_gradients_of_any_graph_are_those_of_the_adjoint(case: Case) -> None:
    energy, x = case.build()
    found, expected = block_gradients(energy, x, SMALL), block_gradients(energy, x, EXACT)
    assert worst(found, expected) < 1e-8


def test_errors_may_enter_at_every_layer() -> None:
    energy, x = Case("dense", ((0, 1), (1, 2), (0, 2)), 0.3, "sigmoid", "identity", 0).build()
    pulls = []
    for estimator in (SMALL, EXACT):
        state = EnergyBlock(energy, CONVERGED, estimator).equilibrium(x).state
        loss = torch.stack([(s.square() + s).sum() for s in state]).sum()
        pulls.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(energy.parameters()))]))
    assert relative(*pulls) < 1e-8


@pytest.mark.parametrize("tolerance", [None, 1e-2])
def test_beta_plays_no_part(tolerance: float | None) -> None:
    """Bit for bit, also in when a tolerance is reached: a tangent is nudged by a strength of 1."""
    energy, x = Case("dense", ((0, 1), (1, 2), (0, 2)), 1.0, "tanh", "identity", 0).build()
    relax = FixedPoint(12, order="output-first", tolerance=tolerance)
    first, *others = (
        block_gradients(energy, x, EquilibriumPropagation(relax, beta=beta, variant="small-signal"))
        for beta in (1e-6, 0.05, 1.0, 500.0)
    )
    for other in others:
        assert all(torch.equal(other[name], gradient) for name, gradient in first.items())


def test_faint_layers_that_rounding_would_hide_respond() -> None:
    """Where a nudge of β is refused, because feedback leaves too little of it."""
    energy, x = dense(6, feedback=1e-4, dtype=torch.float32)
    with pytest.raises(ValueError, match="because of its `feedback`"):
        block_gradients(energy, x, EquilibriumPropagation(FixedPoint(20)), FixedPoint(30))
    found = block_gradients(energy, x, after(20), FixedPoint(30))
    wide = block_gradients(energy.double(), x.double(), EXACT)
    assert max(relative(found[name].double(), wide[name]) for name in wide) < 1e-4


def dense(layers: int, feedback: float = 1.0, dtype: torch.dtype = torch.float64) -> tuple[Hopfield, Tensor]:
    torch.manual_seed(0)
    edges = [Dense(5, 5) for _ in range(layers - 1)]
    return Hopfield(edges, [sigmoid()] * (layers - 1) + [identity()], feedback=feedback).to(dtype), torch.randn(
        3, 5, dtype=dtype
    )


@pytest.mark.parametrize("sweeps", [1, 2, 3, 6])
@pytest.mark.parametrize("activation", ["clamp", "sigmoid", "tanh"])
@pytest.mark.parametrize(("order", "opposite"), [("output-first", "output-last"), ("synchronous", "synchronous")])
def test_after_every_sweep_it_is_recurrent_backprop_in_the_opposite_order(
    order: Order, opposite: Order, activation: str, sweeps: int
) -> None:
    for net, feedback in (("dense", 1.0), ("average", 0.3)):
        energy, x = Case(net, ((0, 1), (1, 2), (0, 2)), feedback, activation, "identity", 3).build()
        found = block_gradients(energy, x, after(sweeps, order))
        expected = block_gradients(energy, x, RecurrentBackprop(FixedPoint(sweeps, order=opposite)))
        assert expected["x"].norm() > 0 or sweeps < 3
        assert worst(found, expected) < 1e-9


def test_at_an_unsettled_state_a_linear_network_responds_as_its_adjoint_says() -> None:
    """Its tangent is the same everywhere: that of the input is exact in every order. Weights see the state on the way: they
    agree where all layers move at once, from one state."""
    energy, x = Case("dense", ((0, 1), (1, 2), (0, 2)), 0.3, "identity", "identity", 0).build()
    early = FixedPoint(2)
    for order, opposite in (("output-first", "output-last"), ("synchronous", "synchronous")):
        found = block_gradients(energy, x, after(4, order), early)
        expected = block_gradients(energy, x, RecurrentBackprop(FixedPoint(4, order=opposite)), early)
        assert relative(found["x"], expected["x"]) < 1e-12
        if order == "synchronous":
            assert worst(found, expected) < 1e-12
        else:
            assert worst(found, expected) > 1e-4, "a sweep in turns has moved on before it is differentiated"


@pytest.mark.parametrize("order", ["output-first", "output-last", "odd-even", "synchronous"])
def test_at_an_unsettled_state_every_order_ends_in_the_same_response(order: Order) -> None:
    energy, x = Case("dense", ((0, 1), (1, 2), (0, 2)), 0.3, "sigmoid", "clamp", 0).build()
    found, expected = (block_gradients(energy, x, after(300, o), FixedPoint(2)) for o in (order, "even-odd"))
    assert worst(found, expected) < 1e-10


def slow() -> tuple[Hopfield, Tensor]:
    """A chain that is still on its way after a few sweeps."""
    torch.manual_seed(0)
    energy = Hopfield([Dense(6, 6) for _ in range(3)], [tanh()] * 3 + [identity()]).double()
    with torch.no_grad():
        for edge in energy.edges:
            edge.weight.copy_(0.5 * torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0])
    return energy, torch.randn(4, 6, dtype=torch.float64)


def test_what_an_unsettled_free_phase_still_moves_by_does_not_enter() -> None:
    """A one-sided contrast divides it by β; the tangent has it stand still."""
    energy, x = slow()
    early, nudged = FixedPoint(8), FixedPoint(40, order="output-first")
    settled = together(block_gradients(energy, x, EXACT))
    with torch.no_grad():
        assert 1e-4 < early(energy, x).residual.max() < 0.05
    small = together(block_gradients(energy, x, replace(SMALL, relax=nudged), early))
    one_sided = together(block_gradients(energy, x, EquilibriumPropagation(nudged, beta=1e-3, variant="one-sided"), early))
    assert cosine(small, settled) > 0.99
    assert cosine(one_sided, settled) < 0.8


def together(found: dict[str, Tensor]) -> Tensor:
    return torch.cat([gradient.flatten() for gradient in found.values()])


def cosine(a: Tensor, b: Tensor) -> float:
    return torch.nn.functional.cosine_similarity(a, b, dim=0).item()


@pytest.mark.parametrize("kind", ["dense", "max", "average"])
def test_portions_change_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(kind, 3, after(5), relax=FixedPoint(9), activation=clamp(0.5))
    x, y = batch(model, samples=5)
    whole = gradients(model, x, y)
    for cache in (1, 3000):
        monkeypatch.setattr(portions, "CACHE", cache)
        assert worst(gradients(model, x, y), whole) < 1e-12


@settings(max_examples=40)
@given(case=cases(), omega=st.sampled_from([1.0, 0.6, 1.4]), forced=st.booleans())
def test_one_layer_of_a_tangent_moves_to_its_minimum(case: Case, omega: float, forced: bool) -> None:
    energy, x = case.build()
    at = case.at(energy, x)
    tangent = energy.tangent(at)
    moved = [torch.randn_like(s) for s in at]
    for layer in range(case.layers):
        force = torch.randn_like(at[layer]) if forced else None
        with torch.no_grad():
            found = tangent.minimise(layer, tuple(moved), x, force)
            over = tangent.minimise(layer, tuple(moved), x, force, omega)
        free = energy.activations[layer].respond_(torch.ones_like(found), at[layer]) > 0
        assert not found[~free].any(), "a clamped unit stays"
        inside = torch.where(free, found, 0.0).requires_grad_()
        state = (*moved[:layer], inside, *moved[layer + 1 :])
        total = tangent(state, x).sum() + (0 if force is None else (force * inside).sum())
        (slope,) = torch.autograd.grad(total, inside)
        torch.testing.assert_close(slope[free], torch.zeros_like(slope[free]), rtol=0, atol=1e-9)
        torch.testing.assert_close(over, torch.lerp(moved[layer], found, omega))


@settings(max_examples=40)
@given(case=cases(inner=st.sampled_from(["sigmoid", "tanh", "identity"]), outer=st.sampled_from(["sigmoid", "identity"])))
def test_a_tangent_is_the_second_derivative_of_its_energy(case: Case) -> None:
    energy, x = case.build()
    at = case.at(energy, x)
    latched, tangent = energy.latched(at), energy.tangent(at)
    step = tuple(torch.randn_like(s) for s in at)
    start = tuple(s.detach().requires_grad_() for s in at)
    first = torch.autograd.grad(latched(start, x).sum(), start, create_graph=True)
    along = torch.stack([(g * d).sum() for g, d in zip(first, step, strict=True)]).sum()
    second = torch.autograd.grad(along, start)
    half = torch.stack([(h * d).flatten(1).sum(1) for h, d in zip(second, step, strict=True)]).sum(0) / 2
    torch.testing.assert_close(tangent(step, x), half)


@torch.no_grad()
@settings(max_examples=60)
@given(
    case=cases(),
    order=st.sampled_from(["odd-even", "even-odd", "output-first", "downward", "synchronous"]),
    omega=st.sampled_from([1.0, 0.6, 1.4]),
    fresh=st.booleans(),
    forces=st.integers(0, 15),
)
def test_a_session_gives_the_numbers_of_its_tangent(case: Case, order: Order, omega: float, fresh: bool, forces: int) -> None:
    energy, x = case.build()
    at = case.at(energy, x)
    tangent = energy.tangent(at)
    deltas = [torch.randn_like(s) if forces >> layer & 1 else None for layer, s in enumerate(at)]
    begin = tangent.init_state(x) if fresh else tuple(torch.randn_like(s) for s in at)
    session = tangent.session(x, begin, fresh=fresh)
    assert session is not tangent

    class Pull:
        def force(self, state: State, layer: int) -> Tensor | None:
            return deltas[layer]

    kept = [t.clone() for t in (*begin, *(d for d in deltas if d is not None))]
    slow, fast = begin, begin
    relax = FixedPoint(1, order=order, omega=omega)
    for _ in range(4):
        slow, fast = relax.sweep(tangent, slow, x, Pull()), relax.sweep(session, fast, x, Pull())
        torch.testing.assert_close(fast, slow, rtol=1e-12, atol=1e-12)
    assert all(map(torch.equal, kept, (*begin, *(d for d in deltas if d is not None)))), "nothing of others is overwritten"


@settings(max_examples=40)
@given(case=cases())
def test_responses_of_energies_in_closed_form_are_those_of_autograd(case: Case) -> None:
    energy, x = case.build()
    at = case.at(energy, x)
    energy, moved = energy.latched(at), tuple(torch.randn_like(s) for s in at)
    weights = torch.randn(3, dtype=torch.float64)
    entering = x.clone().requires_grad_()
    wanted = dict(energy.named_parameters())
    high, low = (tuple(s + sign * d / 2 for s, d in zip(at, moved, strict=True)) for sign in (1, -1))
    edges_alone = Hopfield(energy.graph, [identity()] * case.layers, feedback=case.feedback)  # outside of boxes G is infinite
    total = (weights * (edges_alone(high, entering) - edges_alone(low, entering))).sum()
    expected = torch.autograd.grad(total, (entering, *wanted.values()))
    of_x, of_parameters = energy.response_gradient(at, moved, x, weights)
    torch.testing.assert_close((of_x, *(of_parameters[name] for name in wanted)), expected)


class Scaled(Pool):
    """Somebody's own: linear, with a factor that learns."""

    linear = True

    def __init__(self) -> None:
        super().__init__()
        self.inner = AveragePool()
        self.factor = nn.Parameter(torch.tensor(1.5))

    def forward(self, u: Tensor) -> Tensor:
        return self.factor * self.inner(u)

    def transpose(self, u: Tensor, g: Tensor, positions: Tensor | None = None) -> Tensor:
        return self.factor * self.inner.transpose(u, g)


@pytest.mark.parametrize(
    ("make_edge", "shape"),
    [
        (lambda: Dense(6, 4), (6,)),
        (lambda: Dense(12, 4, bias=False), (3, 2, 2)),
        (lambda: parametrizations.weight_norm(Dense(6, 4)), (6,)),
        (lambda: Convolution(2, 3, stride=2, padding=1), (2, 5, 6)),
        (lambda: Convolution(2, 3, padding=1, pool=AveragePool()), (2, 5, 6)),
        (lambda: parametrizations.weight_norm(Convolution(2, 3, pool=MaxPool())), (2, 6, 6)),
        (lambda: Convolution(2, 3, padding=1, pool=Scaled()), (2, 4, 4)),
    ],
    ids=["dense", "flattening", "parametrised", "strided", "average", "parametrised max", "pool that learns"],
)
def test_responses_of_edges_in_closed_form_are_those_of_autograd(make_edge, shape: Shape) -> None:
    edge = make_edge().double()
    pre, step = (torch.randn(3, *shape, dtype=torch.float64) for _ in range(2))
    edge = edge.latched(pre)
    post, rise = (torch.randn(3, *edge.out_shape(shape), dtype=torch.float64) for _ in range(2))
    weights = torch.randn(3, dtype=torch.float64)
    total = (weights * (edge(pre + step / 2, post + rise / 2) - edge(pre - step / 2, post - rise / 2))).sum()
    wanted = dict(edge.named_parameters())
    expected = dict(zip(wanted, torch.autograd.grad(total, list(wanted.values())), strict=True))
    torch.testing.assert_close(edge.response_gradient((pre, post), (step, rise), weights), expected)


class Twice(nn.Module):
    def forward(self, t: Tensor) -> Tensor:
        return 2 * t + 1


@pytest.mark.parametrize("part", ["weight", "bias"])
@pytest.mark.parametrize("kind", ["dense", "convolution"])
def test_parametrised_weights_and_biases_respond(kind: str, part: str) -> None:
    """A bias has no part in a tangent, however it is computed."""
    torch.manual_seed(0)
    edge, shape = (Dense(5, 4), (5,)) if kind == "dense" else (Convolution(1, 2, padding=1, pool=MaxPool()), (1, 4, 4))
    parametrize.register_parametrization(edge, part, Twice())
    energy, x = Hopfield([edge], [clamp(0.5), identity(0.2)]).double(), torch.rand(3, *shape, dtype=torch.float64)
    assert worst(block_gradients(energy, x, SMALL), block_gradients(energy, x, EXACT)) < 1e-8


def test_edges_of_a_tangent_have_no_bias_and_the_same_weights() -> None:
    for edge, shape in ((Dense(5, 4), (5,)), (Convolution(1, 2, 2, stride=2), (1, 5, 4))):
        bare, pre = edge.without_bias(), torch.randn(2, *shape)
        torch.testing.assert_close(bare.up(pre), edge.up(pre) - edge.up(torch.zeros_like(pre)), rtol=0, atol=1e-6)
        assert not bare.up(torch.zeros_like(pre)).any()
        assert edge.bias is not None
        assert bare.weight is edge.weight


@pytest.mark.parametrize("activation", [clamp(0.5), clamp(2.0, -0.3, 0.6), identity(0.4), sigmoid(), tanh()], ids=str)
def test_activations_give_way_by_their_slope(activation: Activation) -> None:
    v = torch.linspace(-2.1, 2.2, 101, dtype=torch.float64).requires_grad_()
    s = activation.sigma(v)
    (slope,) = torch.autograd.grad(s.sum(), v)
    current = torch.randn_like(slope)
    torch.testing.assert_close(activation.respond_(current.clone(), s.detach()), slope * current)
    with torch.inference_mode():
        torch.testing.assert_close(activation.respond_(current.clone(), s.detach().clone()), slope * current)


@pytest.mark.parametrize("activation", [clamp(0.5), clamp(1.0, -0.3, 0.6), sigmoid(), tanh()], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@torch.no_grad()
def test_units_at_a_bound_do_not_respond(activation: Activation, dtype: torch.dtype) -> None:
    bounds = activation.sigma(torch.tensor([-1e6, 1e6], dtype=dtype))
    assert not activation.respond_(torch.ones(2, dtype=dtype), bounds).any()
    energy = Hopfield([Dense(2, 2)], [activation, identity()]).to(dtype)
    tangent = energy.tangent((bounds.unsqueeze(0), torch.rand(1, 2, dtype=dtype)))
    assert isinstance(tangent, Tangent)
    ones = torch.ones(1, 2, dtype=dtype)
    assert not tangent.minimise(0, (ones, ones), ones, ones).any()
    assert tangent.minimise(1, (ones, ones), ones, ones).any()


def test_clamped_units_pass_nothing_on() -> None:
    """Their weights learn nothing from an output that cannot move them."""
    torch.manual_seed(0)
    energy, x = Hopfield([Dense(4, 3)], [clamp(1.0), identity()]).double(), torch.full((2, 4), 50.0, dtype=torch.float64)
    x[:, 0] = 0.5
    with torch.no_grad():
        energy.edges[0].weight.mul_(0.3)
    found = block_gradients(energy, x, SMALL)["x"]
    assert found[:, 0].all()
    assert not found[:, 1:].any()


class Wrapped(SystemWrapper):
    """Changes nothing, and is no simulation for all that anybody knows."""


class Line(nn.Module):
    def forward(self, state: State, x: Tensor) -> State:
        return (state[0] / 2 + x,)


class Bowl(Energy):
    def forward(self, state: State, x: Tensor) -> Tensor:
        return (state[0] - x).square().sum(1) / 2


class Wire(Interaction):
    def up(self, pre: Tensor) -> Tensor:
        return pre

    def out_shape(self, shape: Shape) -> Shape:
        return shape


class Straight(Wire):
    @property
    def linear(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("block", "shape", "message"),
    [
        (
            lambda: EnergyBlock(Hopfield([Convolution(1, 1, pool=SoftPool())]), estimator=SMALL, name="block 2"),
            (1, 6, 6),
            r"SoftPool(.|\n)*of block 2 is curved.*use max or average pooling, or another stencil",
        ),
        (lambda: EnergyBlock(Hopfield([Wire()]), estimator=SMALL, name="block 2"), (3,), r"Wire\(\) of block 2 is curved"),
        (lambda: EnergyBlock(Hopfield([Straight()]), estimator=SMALL), (3,), "Straight cannot be taken without its bias"),
        (lambda: EnergyBlock(Bowl(), estimator=SMALL), (3,), "Bowl has no tangent.*centered.*or override `tangent`"),
        (
            lambda: SystemBlock(Wrapped(Simulated(Hopfield([Dense(3, 2)]), FixedPoint(20))), SMALL),
            (3,),
            "Wrapped is known by its readings alone, not by its tangent: use another stencil",
        ),
        (lambda: SystemBlock(NonReciprocal(Line()), SMALL), (3,), "NonReciprocal is known by its readings alone"),
    ],
    ids=["soft pooling", "own edge", "own linear edge", "own energy", "wrapper", "map"],
)
def test_what_has_no_tangent_is_refused(block, shape: Shape, message: str) -> None:
    output = block()(torch.rand(2, *shape, requires_grad=True))
    with pytest.raises(TypeError, match=message):
        output.sum().backward()


def test_a_system_block_of_a_simulation_responds_as_its_energy_does() -> None:
    energy, x = Case("max", ((0, 1), (1, 2)), 0.3, "clamp", "identity", 0).build()
    x.requires_grad_()
    found = [
        torch.autograd.grad(block(x).square().sum(), [x, *energy.parameters()])
        for block in (SystemBlock(Simulated(energy, CONVERGED), SMALL), EnergyBlock(energy, CONVERGED, SMALL))
    ]
    assert all(map(torch.equal, *found))


def test_an_interaction_of_ones_own_responds_once_it_says_that_it_is_linear() -> None:
    class Mirror(Straight):
        """Turns a layer around, by a strength that learns."""

        def __init__(self) -> None:
            super().__init__()
            self.strength = nn.Parameter(torch.tensor(0.5))

        def up(self, pre: Tensor) -> Tensor:
            return self.strength * pre.flip(1)

        def without_bias(self) -> Interaction:
            return self

    energy, x = Hopfield([Mirror(), Dense(4, 3)], [tanh(), clamp(0.5, -1, 1), identity()]).double(), torch.randn(3, 4).double()
    assert worst(block_gradients(energy, x, SMALL), block_gradients(energy, x, EXACT)) < 1e-8


def test_it_has_a_short_name_and_one_nudge() -> None:
    assert EquilibriumPropagation(variant="small-signal").chosen == Stencil.small_signal()
    assert Stencil.small_signal().strengths(0.05, torch.zeros(3)) == [1.0]
    with pytest.raises(ValueError, match="A variant is a stencil"):
        EquilibriumPropagation(variant="small-signal", stencil=Stencil.small_signal())
