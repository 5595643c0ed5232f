"""Deep resistive networks: equilibria, gradients, diodes and powers against solvers that know nothing of sweeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from ffebm import (
    Conductance,
    ConvConductance,
    Energy,
    EnergyBlock,
    EquilibriumPropagation,
    Exponential,
    FixedPoint,
    GradientEstimator,
    Ideal,
    RecurrentBackprop,
    Resistive,
    Scale,
    Threshold,
    Unrolled,
)
from ffebm.nudge import Stationary
from ffebm.testing import EnergyConformance, finite_differences
from nets import relative

CONVERGED = FixedPoint(5000, tolerance=1e-14)


@dataclass(frozen=True)
class Net:
    """A small circuit, drawn at random."""

    sizes: tuple[int, ...] = (4, 6, 5, 3)
    held: bool = True
    doubled: bool = False
    gain: tuple[float, float] = (1.0, 1.0)
    rails: str = "half"
    leak: float = 0.0
    seed: int = 0
    options: Any = None

    def build(self, samples: int = 3) -> tuple[Resistive, Tensor]:
        torch.manual_seed(self.seed)
        crossbars = [
            Conductance(below, above, doubled=self.held and self.doubled and number == 0)
            for number, (below, above) in enumerate(zip(self.sizes, self.sizes[1:], strict=False))
        ]
        layers = len(self.sizes) - (1 if self.held else 0)
        energy = Resistive(
            crossbars,
            input="voltage" if self.held else "current",
            gain=self.gain,
            input_gain=2.0 if self.held else 1.0,
            rails=[self.rails] * (layers - 1) + ["free"],
            leak=[self.leak if self.held else 0.5 + self.leak, *[self.leak] * (layers - 1)],
            **(self.options or {}),
        ).double()
        with torch.no_grad():
            for crossbar in energy.crossbars:
                crossbar.weight.uniform_(0.02, 1.0)
                crossbar.bias.normal_()
        return energy, torch.randn(samples, self.sizes[0], dtype=torch.float64)


NETS = st.builds(
    Net,
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=5).map(tuple),
    held=st.booleans(),
    doubled=st.booleans(),
    gain=st.sampled_from([(1.0, 1.0), (4.0, 1.0), (2.0, 2.0), (4.0, 0.25), (0.5, 2.0)]),
    rails=st.sampled_from(["half", "positive", "negative", "free"]),
    leak=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 1000),
)


def flat(state: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([v.flatten(1) for v in state], 1)


def pieces(energy: Energy, x: Tensor, vector: Tensor) -> tuple[Tensor, ...]:
    shapes = [s.shape[1:] for s in energy.init_state(x)]
    parts = vector.split([shape.numel() for shape in shapes], 1)
    return tuple(part.view(len(vector), *shape) for part, shape in zip(parts, shapes, strict=True))


def quadratic(energy: Resistive, x: Tensor) -> tuple[Tensor, Tensor]:
    """K and q of each sample, E = ½ v·K v − q·v + const: read off the energy alone, by autograd."""

    def of(vector: Tensor, sample: Tensor) -> Tensor:
        return energy(pieces(energy, sample, vector.unsqueeze(0)), sample).sum()

    zero = torch.zeros_like(flat(energy.init_state(x))[0])
    matrix = torch.autograd.functional.hessian(lambda v: of(v, x[:1]), zero)
    currents = [-torch.autograd.functional.jacobian(lambda v, s=s: of(v, s.unsqueeze(0)), zero) for s in x]
    return matrix, torch.stack(currents)


def walls(energy: Resistive, x: Tensor) -> Tensor:
    signs = [
        rails.signs(tuple(v.shape[1:]), v).expand(v.shape[1:]).flatten()
        for rails, v in zip(energy.rails, energy.init_state(x), strict=True)
    ]
    return torch.cat(signs)


def settled(energy: Resistive, x: Tensor, **how: Any) -> tuple[Tensor, ...]:
    with torch.no_grad():
        return CONVERGED(energy, x, **how).state


@settings(max_examples=60)
@given(net=NETS)
def test_equilibria_are_those_of_a_solver_for_bounded_least_squares(net: Net) -> None:
    optimize = pytest.importorskip("scipy.optimize")
    energy, x = net.build()
    matrix, currents = quadratic(energy, x)
    signs = walls(energy, x)
    low, high = (torch.where(side * signs > 0, 0.0, -side * torch.inf).double() for side in (1, -1))
    # ½ v·K v − q·v = ½ ‖Rᵀv − R⁻¹q‖² + const with K = R Rᵀ
    factor = torch.linalg.cholesky(matrix)
    found = flat(settled(energy, x))
    for sample, current in zip(found, currents, strict=True):
        target = torch.linalg.solve_triangular(factor, current.unsqueeze(1), upper=False)[:, 0]
        solution = optimize.lsq_linear(factor.T.numpy(), target.numpy(), (low.numpy(), high.numpy()), method="bvls", tol=1e-15)
        scale = max(1.0, float(abs(solution.x).max()))
        assert (sample - torch.from_numpy(solution.x)).abs().max() < 1e-10 * scale


def linearised(energy: Resistive, x: Tensor, deltas: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The exact gradient: nodes at a wall taken out, one linear solve, and products of voltage drops.

    Hardware linearisation, Chaffey 2025: λ = K⁻¹δ over the free nodes, dL/dg = −Δv·Δλ.
    """
    state = settled(energy, x)
    matrix, _ = quadratic(energy, x)
    signs = walls(energy, x)
    adjoint = torch.zeros_like(deltas)
    for number, (voltage, delta) in enumerate(zip(flat(state), deltas, strict=True)):
        free = (signs == 0) | (voltage * signs > 0)
        adjoint[number, free] = torch.linalg.solve(matrix[free][:, free], delta[free])
    moved = pieces(energy, x, adjoint)
    found: dict[str, Tensor] = {}
    of_x = torch.zeros_like(x) if energy.input == "voltage" else energy.layer_weight(0) * moved[0]
    for number, (crossbar, pre, post, forward, _) in enumerate(energy.links):
        below = forward * (x if pre < 0 else state[pre]).flatten(1)
        change = torch.zeros_like(below) if pre < 0 else forward * moved[pre].flatten(1)
        if crossbar.doubled:
            below, change = torch.cat((below, -below), 1), torch.cat((change, -change), 1)
        drop = below.unsqueeze(1) - state[post].unsqueeze(2)
        of_drop = change.unsqueeze(1) - moved[post].unsqueeze(2)
        weight = energy.layer_weight(post)
        found[f"crossbars.{number}.weight"] = -weight * (drop * of_drop).sum(0)
        found[f"crossbars.{number}.bias"] = weight * moved[post].sum(0)
        if pre < 0:
            into = weight * forward * (moved[post] @ crossbar.weight)
            of_x = into[:, : x.shape[1]] - into[:, x.shape[1] :] if crossbar.doubled else into
    return of_x, found


ESTIMATORS: dict[str, GradientEstimator] = {
    "centered": EquilibriumPropagation(replace(CONVERGED, order="output-first"), beta=1e-5),
    "one-sided": EquilibriumPropagation(replace(CONVERGED, order="output-first"), beta=1e-5, variant="one-sided"),
    "small-signal": EquilibriumPropagation(replace(CONVERGED, order="output-first"), variant="small-signal"),
    "recurrent backprop": RecurrentBackprop(replace(CONVERGED, tolerance=1e-14)),
    "implicit differentiation": Unrolled(FixedPoint(300, order="output-last")),
}


def gradient(energy: Resistive, x: Tensor, estimator: GradientEstimator, weights: Tensor) -> dict[str, Tensor]:
    x = x.clone().requires_grad_()
    output = EnergyBlock(energy, CONVERGED, estimator)(x)
    tensors = {"x": x, **dict(energy.named_parameters())}
    found = torch.autograd.grad((weights * output).sum(), list(tensors.values()), materialize_grads=True, allow_unused=True)
    return dict(zip(tensors, found, strict=True))


@pytest.mark.parametrize("name", ESTIMATORS)
@settings(max_examples=12)
@given(net=NETS)
def test_gradients_are_those_of_the_linearised_circuit(name: str, net: Net) -> None:
    energy, x = replace(net, leak=0.3).build()  # settles in few sweeps: one-sided nudges contrast what still moves
    weights = torch.randn(len(x), net.sizes[-1], dtype=torch.float64)
    deltas = torch.cat([torch.zeros_like(flat(energy.init_state(x)))[:, : -net.sizes[-1]], weights], 1)
    of_x, expected = linearised(energy, x, deltas)
    found = gradient(energy, x, ESTIMATORS[name], weights)
    size = max(1.0, *(g.abs().max().item() for g in expected.values()))
    for key, value in {"x": of_x, **expected}.items():
        assert (found[key] - value).abs().max() < 1e-6 * size, key


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("gain", [(1.0, 1.0), (4.0, 1.0), (2.0, 2.0)])
def test_gradients_are_finite_differences_of_the_loss(held: bool, gain: tuple[float, float]) -> None:
    energy, x = Net(held=held, gain=gain, doubled=held).build()
    weights = torch.randn(len(x), 3, dtype=torch.float64)
    found = gradient(energy, x, ESTIMATORS["centered"], weights)

    def loss() -> Tensor:
        return (weights * settled(energy, x)[-1]).sum()

    for name, slope in finite_differences(loss, {"x": x, **dict(energy.named_parameters())}).items():
        assert slope.error(found[name]) < 1e-6, name


@pytest.mark.parametrize("beta", [0.1, 1.0])
def test_equilibrium_propagation_is_exact_at_any_strength_where_no_diode_flips(beta: float) -> None:
    """And not where one does."""
    energy, x = Net(gain=(2.0, 1.0), leak=0.3).build(60)
    weights = nn.functional.normalize(torch.randn(len(x), 3, dtype=torch.float64))
    conducts = [
        [v == 0 for v in settled(energy, x, nudge=Stationary(sign * beta, (None, None, weights)))] for sign in (0, 1, -1)
    ]
    flips = torch.stack(
        [(now != free).any(1) for nudged in conducts[1:] for now, free in zip(nudged, conducts[0], strict=True)]
    )
    flips = flips.any(0)
    assert 0 < flips.sum() < len(x)
    strong = EquilibriumPropagation(replace(CONVERGED, order="output-first"), beta=beta)
    for chosen, exact in ((~flips, True), (flips, False)):
        errors = [
            relative(ours, theirs)
            for ours, theirs in zip(
                gradient(energy, x[chosen], strong, weights[chosen]).values(),
                gradient(energy, x[chosen], ESTIMATORS["small-signal"], weights[chosen]).values(),
                strict=True,
            )
        ]
        assert max(errors) < 1e-9 if exact else max(errors) > 1e-4


def test_without_feedback_it_is_a_feedforward_net_and_equilibrium_propagation_is_backprop() -> None:
    """With B/A towards 0 a node is clip((A x·g + b) / Σ g), and its gradient the one that autograd takes of that."""
    energy, x = Net(sizes=(5, 8, 6, 3), gain=(3.0, 1e-12), doubled=True).build()
    weights = torch.randn(len(x), 3, dtype=torch.float64)
    found = gradient(energy, x, ESTIMATORS["small-signal"], weights)
    tensors = {"x": x.requires_grad_(), **dict(energy.named_parameters())}
    v = x
    for crossbar, pre, post, forward, _ in energy.links:
        wires = torch.cat((v, -v), 1) if crossbar.doubled else v
        v = (forward * wires @ crossbar.weight.T + crossbar.bias) / crossbar.weight.sum(1)
        if post < 2:
            v = torch.cat((v[:, : v.shape[1] // 2].clamp(min=0), v[:, v.shape[1] // 2 :].clamp(max=0)), 1)
        assert pre == post - 1
    expected = torch.autograd.grad((weights * v).sum(), list(tensors.values()))
    for (name, ours), theirs in zip(found.items(), expected, strict=True):
        assert relative(ours, theirs) < 1e-8, name


@settings(max_examples=20)
@given(net=NETS)
def test_the_energy_is_strictly_convex_and_every_start_ends_in_the_same_place(net: Net) -> None:
    energy, x = net.build()
    assert torch.linalg.eigvalsh(quadratic(energy, x)[0]).min() > 0
    energy, x = replace(net, leak=0.3).build()  # which settles sooner
    first = settled(energy, x)
    starts = tuple(10 * torch.randn_like(v) for v in first)
    for ours, theirs in zip(settled(energy, x, start=starts), first, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@settings(max_examples=20)
@given(net=NETS, by=st.sampled_from([1e-3, 7.0]))
def test_scaling_conductances_and_currents_alike_leaves_voltages(net: Net, by: float) -> None:
    energy, x = replace(net, leak=0.3).build()
    first = settled(energy, x)
    with torch.no_grad():
        for p in energy.parameters():
            p.mul_(by)
    energy.leaks = tuple(by * leak for leak in energy.leaks)
    for ours, theirs in zip(settled(energy, x if net.held else by * x), first, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@settings(max_examples=25)
@given(net=NETS, diode=st.sampled_from([Ideal(), Exponential(0.01, 8.0), Threshold(0.2, 3.0, 0.1)]))
def test_sources_deliver_what_resistors_and_diodes_dissipate(net: Net, diode: Any) -> None:
    """Tellegen's theorem, with amplifiers among the sources."""
    scale = Scale(siemens=1e-3, volts=0.5)
    energy, x = replace(net, leak=0.3, options={"diode": diode, "scale": scale}).build()
    state = settled(energy, x)
    delivered = torch.zeros(len(x), dtype=torch.float64)
    if energy.input == "current":
        delivered += (x * state[0]).sum(1)
    for crossbar, pre, post, forward, backward in energy.links:
        below = x if pre < 0 else state[pre]
        wires = forward * (torch.cat((below, -below), 1) if crossbar.doubled else below)
        through = crossbar.weight * (wires.unsqueeze(1) - state[post].unsqueeze(2))  # of every resistor
        drawn = through.sum(1)
        delivered += (wires * drawn).sum(1)  # by what holds its lower end, an amplifier or the input
        if pre >= 0:
            delivered -= backward * (drawn * below).sum(1)  # what the amplifier takes from the node below it
        delivered += state[post] @ crossbar.bias
    block = EnergyBlock(energy, CONVERGED)
    torch.testing.assert_close(block.power(x), 1e-3 * 0.5**2 * delivered, rtol=1e-8, atol=1e-12)
    assert (block.power(x) >= -1e-15).all()


DIODES = [
    Exponential(1e-3, 20.0),
    Exponential(1e-9, 1.0),
    Threshold(),
    Threshold(0.3, 5.0, 0.05),
]


@pytest.mark.parametrize("diode", DIODES, ids=str)
@pytest.mark.parametrize("omega", [1.0, 1.4])
def test_a_node_with_a_diode_rests_where_currents_cancel(diode: Any, omega: float) -> None:
    """Against bisection of Kirchhoff's law at every node of the settled net."""
    energy, x = Net(options={"diode": diode}).build()
    with torch.no_grad():
        state = replace(CONVERGED, omega=omega)(energy, x).state
    for layer, v in enumerate(state):
        signs = energy.rails[layer].signs(tuple(v.shape[1:]), v)
        load = torch.zeros(())
        current = torch.zeros_like(v)
        for crossbar, pre, post, forward, backward in energy.links:
            if post == layer:
                load = load + crossbar.weight.sum(1)
                current = current + forward * (x if pre < 0 else state[pre]) @ crossbar.weight.T + crossbar.bias
            if pre == layer:
                load = load + forward * backward * crossbar.weight.sum(0)
                current = current + backward * state[post] @ crossbar.weight

        def leaving(u: Tensor, load: Tensor = load, current: Tensor = current, signs: Tensor = signs) -> Tensor:
            return load * u - current - diode.current(u, signs)

        low, high = torch.full_like(v, -20.0), torch.full_like(v, 20.0)
        if hasattr(diode, "knee"):
            low, high = low.clamp(min=-40 * diode.knee * 10), high.clamp(max=400 * diode.knee)
        for _ in range(200):
            middle = (low + high) / 2
            above = leaving(middle) > 0
            low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        torch.testing.assert_close(v, (low + high) / 2, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("diode", [DIODES[0], DIODES[3]], ids=str)
@pytest.mark.parametrize("gain", [(1.0, 1.0), (3.0, 0.5)])
def test_with_soft_diodes_all_estimators_agree_with_finite_differences(diode: Any, gain: tuple[float, float]) -> None:
    energy, x = Net(options={"diode": diode}, gain=gain, leak=1.0).build()
    weights = torch.randn(len(x), 3, dtype=torch.float64)

    def loss() -> Tensor:
        return (weights * settled(energy, x)[-1]).sum()

    slopes = finite_differences(loss, {"x": x, **dict(energy.named_parameters())})
    for estimator in ESTIMATORS.values():
        found = gradient(energy, x, estimator, weights)
        assert max(slope.error(found[name]) for name, slope in slopes.items()) < 1e-5


def test_diodes_become_ideal_as_their_ideality_falls() -> None:
    ideal, x = Net().build()
    errors = []
    for ideality in (1e-1, 1e-2, 1e-3):
        energy, _ = Net(options={"diode": Exponential(1e-12, ideality)}).build()
        errors.append((flat(settled(energy, x)) - flat(settled(ideal, x))).abs().max().item())
    assert errors[0] / errors[1] == pytest.approx(10, rel=0.3)
    assert errors[1] / errors[2] == pytest.approx(10, rel=0.3)
    assert errors[2] < 1e-2


class ResistiveConformance(EnergyConformance):
    net: Net

    def make_energy(self) -> Energy:
        return self.net.build()[0]

    def make_input(self) -> Tensor:
        return self.net.build()[1]


class TestHeldVoltages(ResistiveConformance):
    net = Net(sizes=(4, 5, 3), doubled=True, gain=(2.0, 1.0), leak=1.0)


class TestCurrents(ResistiveConformance):
    net = Net(sizes=(4, 5, 3), held=False, gain=(2.0, 0.5), leak=1.0)


class TestExponential(ResistiveConformance):
    net = Net(sizes=(4, 5, 3), options={"diode": Exponential(0.1, 60.0)}, leak=1.0)


class TestThreshold(ResistiveConformance):
    net = Net(sizes=(4, 5, 3), held=False, options={"diode": Threshold(0.1, 2.0, 0.2)}, leak=1.0)


class TestConvolution(EnergyConformance):
    def make_energy(self) -> Energy:
        crossbars = [
            ConvConductance(2, 4, 3, stride=2, padding=1, doubled=True),
            ConvConductance(4, 2, 2, padding=1),
            Conductance(2 * 4 * 4, 3),
        ]
        energy = Resistive(crossbars, input="voltage", gain=[(2.0, 1.0), (1.0, 1.0)], leak=1.0)
        with torch.no_grad():
            for crossbar in energy.crossbars:
                crossbar.weight.add_(0.05)
        return energy

    def make_input(self) -> Tensor:
        return torch.randn(2, 2, 6, 5)


CROSSBARS: list[tuple[Callable[[], Any], tuple[int, ...]]] = [
    (lambda: Conductance(6, 4), (6,)),
    (lambda: Conductance(6, 4, doubled=True), (2, 3, 1)),
    (lambda: ConvConductance(2, 3, 3, padding=1), (2, 5, 4)),
    (lambda: ConvConductance(2, 3, (3, 2), stride=2, padding=(1, 0), doubled=True), (2, 6, 5)),
]


@pytest.mark.parametrize(("make", "shape"), CROSSBARS)
def test_a_crossbar_is_its_resistors_one_by_one(make: Callable[[], Any], shape: tuple[int, ...]) -> None:
    crossbar = make().double()
    with torch.no_grad():
        crossbar.weight.uniform_(0.1, 1)
    below, above = torch.randn(1, *shape).double(), torch.randn(1, *crossbar.out_shape(shape)).double()
    resistors, conductances = crossbar.resistors(shape), crossbar.conductances(shape)
    wires = torch.cat((below, -below), 1) if crossbar.doubled else below
    through = conductances * (wires.flatten()[resistors.below] - above.flatten()[resistors.above])
    dissipated = (through**2 / conductances).sum() / 2
    loads = (above.square() * crossbar.load_above(shape)).sum() + (below.square() * crossbar.load_below(shape)).sum()
    with torch.no_grad():
        torch.testing.assert_close(crossbar(below, above)[0] + loads / 2, dissipated)
        into = torch.zeros(above.numel()).double().index_add_(0, resistors.above, through)
        own = crossbar.up(below) - above * crossbar.load_above(shape)
    torch.testing.assert_close(own.flatten(), into)


def test_conductances_come_back_into_their_bounds_before_the_next_pass() -> None:
    energy = Resistive([Conductance(3, 2)], input="voltage", bounds=(0.1, 0.4))
    block, weight = EnergyBlock(energy), energy.crossbars[0].weight
    with torch.no_grad():
        weight[0, 0], weight[1, 1] = -1.0, 5.0
        kept = weight[0, 1].item()
    block(torch.randn(2, 3))
    assert weight[0, 0].item() == pytest.approx(0.1)
    assert weight[1, 1].item() == pytest.approx(0.4)
    assert weight[0, 1].item() == kept
    version = weight._version
    block(torch.randn(2, 3))
    assert weight._version == version, "what is in place is not touched: autograd may hold it"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Resistive([Conductance(3, 2)], input="volts"), "Unknown input 'volts'"),
        (lambda: Resistive([], input="voltage"), "the first crossbar leads from the input"),
        (lambda: Resistive([Conductance(3, 2, doubled=True)]), "can be doubled"),
        (lambda: Resistive([Conductance(3, 2)], bounds=(0.0, 1.0)), "0 < low < high"),
        (lambda: Resistive([Conductance(3, 2)], leak=0.0), "what flows in must flow out"),
        (lambda: Resistive([Conductance(3, 2)], gain=(1.0, 0.0)), "`gain` must be positive"),
        (lambda: Resistive([Conductance(3, 2)], gain=[(1.0, 1.0)] * 2), "one for each of 1, got 2"),
        (lambda: Resistive([Conductance(3, 2)], rails="both"), "Rails are one of"),
        (lambda: Resistive([Conductance(3, 2)], rails=["free"]), "one for each of 2, got 1"),
        (lambda: Exponential(-1.0), "`saturation` must be positive"),
        (lambda: Threshold(on=0.0), "`on` must be positive"),
        (lambda: Scale(volts=0.0), "`volts` must be positive"),
    ],
)
def test_what_no_circuit_can_be_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
