"""Systems that settle: a simulation behind `SystemBlock`, one that is disturbed, one that is no simulation; and stencils."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from ffebm import (
    FFEBM,
    BackpropThroughTime,
    Dense,
    EquilibriumPropagation,
    FixedPoint,
    GradientEstimator,
    Gradients,
    Hopfield,
    Phase,
    RecurrentBackprop,
    Relaxation,
    Relaxed,
    Simulated,
    State,
    Stencil,
    System,
    SystemBlock,
    SystemWrapper,
    Unrolled,
    calibrate,
    identity,
)
from ffebm.diagnostics import fidelity, gradients, transients
from ffebm.nudge import Stationary
from ffebm.system import FREE
from nets import POOLS, batch, make, relative, worst

NUDGED = FixedPoint(2000, order="output-first", tolerance=1e-14)
EXACT = EquilibriumPropagation(NUDGED, beta=1e-4)


@pytest.mark.parametrize("nudge", ["elastic", "stationary"])
@pytest.mark.parametrize("kind", ["dense", *POOLS])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_model_of_system_blocks_has_the_gradients_of_one_of_energy_blocks(kind: str, nudge: str, wrapped: bool) -> None:
    model = make(kind, 2, EquilibriumPropagation(FixedPoint(8, order="output-first")), relax=FixedPoint(12), nudge=nudge)
    x, y = batch(model)
    expected = gradients(model, x, y)
    systems: list[System] = [block.system for _, block in model.chain]
    systems = [SystemWrapper(system) for system in systems] if wrapped else systems
    analog = FFEBM(list(model.stages), [SystemBlock(s, model.blocks[0].estimator) for s in systems], model.readout, nudge=nudge)
    inside = "system.system." if wrapped else "system."
    found = {name.replace(inside, ""): gradient for name, gradient in gradients(analog, x, y).items()}
    assert worst(found, expected) < 1e-12
    torch.testing.assert_close(analog(x).logits, model(x).logits)


@pytest.mark.parametrize("estimator", [Unrolled(), RecurrentBackprop(), BackpropThroughTime()])
def test_a_system_block_refuses_estimators_that_differentiate_sweeps(estimator: GradientEstimator) -> None:
    block = SystemBlock(Simulated(Hopfield([Dense(4, 3)]), FixedPoint(5)), estimator, name="the chip")
    with pytest.raises(TypeError, match=r"the chip is a Simulated, which only hands out readings: use `EquilibriumProp"):
        block(torch.rand(2, 4))


def test_a_system_block_refuses_what_is_no_system() -> None:
    with pytest.raises(TypeError, match="`system` must be a System such as Simulated"):
        SystemBlock(Hopfield([Dense(4, 3)]))


def test_a_model_of_system_blocks_takes_another_estimator() -> None:
    block = SystemBlock(Simulated(Hopfield([Dense(4, 3)]), FixedPoint(5)))
    model = FFEBM([nn.Linear(4, 4)], [block], nn.Linear(3, 2)).use(EXACT)
    assert block.estimator is EXACT
    model(torch.rand(2, 4)).logits.sum().backward()


class Resistor(System):
    """A physical system of one layer, y = tanh(g x) at rest, of which nothing is known but readings and dE/dg, dE/dx.

    E = atanh-potential(s) − g s x; a force f moves it to tanh(g x − f).
    """

    def __init__(self) -> None:
        super().__init__()
        self.conductance = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    def settle(
        self, x: Tensor, phases: Sequence[Phase], *, start: State | None = None, relax: Relaxation | None = None
    ) -> list[Relaxed]:
        readings = []
        with torch.no_grad():
            for nudge, strength in phases:
                s = torch.tanh(self.conductance * x)
                pull = nudge and nudge.at(strength)
                for _ in range(60 if pull else 0):  # an elastic force depends on where it pulls
                    s = torch.tanh(self.conductance * x - pull.force((s,), 0))
                readings.append(Relaxed((s,), torch.zeros(len(x)), torch.ones(len(x), dtype=torch.long)))
        return readings

    def contrast(self, high: State, low: State, x: Tensor, weights: Tensor) -> Gradients:
        difference = weights.view(-1, 1) * (low[0] - high[0])
        return Gradients(self.conductance.detach() * difference, {"conductance": (difference * x).sum()})


@pytest.mark.parametrize("nudge", ["elastic", "stationary"])
@pytest.mark.parametrize("stencil", [Stencil.centered(), Stencil.one_sided(), Stencil.random_sign()], ids=lambda s: s.name)
def test_a_system_that_is_no_simulation_learns_by_its_readings(nudge: str, stencil: Stencil) -> None:
    torch.manual_seed(0)
    estimator = EquilibriumPropagation(beta=1e-6, stencil=stencil)
    block = SystemBlock(Resistor(), estimator)
    model = FFEBM([nn.Linear(4, 3)], [block], nn.Linear(3, 2), nudge=nudge).double()
    x, y = torch.rand(5, 4, dtype=torch.float64), torch.arange(5) % 2
    plain = nn.functional.cross_entropy(model.readout(torch.tanh(block.system.conductance * model.stages[0](x))), y)
    parameters = list(model.parameters())
    found = torch.autograd.grad(model(x, y).losses.mean(), parameters)
    expected = torch.autograd.grad(plain, parameters)
    assert max(relative(g, e) for g, e in zip(found, expected, strict=True)) < 1e-4


def test_a_system_that_has_no_complex_version_refuses_complex_nudges() -> None:
    block = SystemBlock(Resistor(), EquilibriumPropagation(stencil=Stencil.roots(3)))
    output = block(torch.rand(2, 3, dtype=torch.float64))
    with pytest.raises(TypeError, match="Resistor settles under real nudges only: use another stencil"):
        output.sum().backward()


class Noisy(SystemWrapper):
    """Readings with a little noise."""

    def settle(
        self, x: Tensor, phases: Sequence[Phase], *, start: State | None = None, relax: Relaxation | None = None
    ) -> list[Relaxed]:
        readings = super().settle(x, phases, start=start, relax=relax)
        return [r._replace(state=tuple(s + 1e-4 * torch.randn_like(s) for s in r.state)) for r in readings]


def test_noise_of_readings_enters_the_gradient_by_its_size_over_beta() -> None:
    torch.manual_seed(0)
    energy = Hopfield([Dense(6, 5), Dense(5, 4)], identity(0.5)).double()
    x = torch.rand(8, 6, dtype=torch.float64)

    def error(beta: float) -> float:
        estimator = EquilibriumPropagation(FixedPoint(100), beta=beta)
        found = [
            torch.autograd.grad(SystemBlock(system, estimator)(x).square().sum(), energy.edges[0].weight)[0]
            for system in (Noisy(Simulated(energy, FixedPoint(100))), Simulated(energy, FixedPoint(100)))
        ]
        return relative(*found)

    weak, strong = error(0.01), error(1.0)
    assert weak > 20 * strong > 0
    assert strong < 0.01


def test_an_observer_sees_the_states_of_all_phases_before_the_first_sweep_and_after_each() -> None:
    system, x = Simulated(Hopfield([Dense(4, 3)]), FixedPoint(3)), torch.rand(2, 4)
    nudge = Stationary(torch.ones(2), (None, torch.ones(2, 3)))
    seen: list[tuple[int, list[State]]] = []
    readings = system.settle(x, [FREE, Phase(nudge, 0.2)], observer=lambda done, states: seen.append((done, states)))
    assert [done for done, _ in seen] == [0, 1, 2, 3]
    assert all(len(states) == 2 for _, states in seen)
    torch.testing.assert_close(seen[0][1][0], seen[0][1][1])
    torch.testing.assert_close(seen[-1][1], [reading.state for reading in readings])


def test_a_system_block_keeps_its_parameters_through_copies_and_state_dicts() -> None:
    block = SystemBlock(Noisy(Simulated(Hopfield([Dense(4, 3)]), FixedPoint(5))))
    other = copy.deepcopy(block)
    assert [name for name, _ in block.named_parameters()] == [
        "system.system.energy.interactions.0.weight",
        "system.system.energy.interactions.0.bias",
    ]
    with torch.no_grad():
        next(other.parameters()).zero_()
    other.load_state_dict(block.state_dict())
    torch.testing.assert_close(list(other.parameters()), list(block.parameters()))


def test_a_system_block_says_why_it_cannot_be_calibrated_or_swept_otherwise() -> None:
    block = SystemBlock(Simulated(Hopfield([Dense(4, 3)]), FixedPoint(5)), name="chip 3")
    model = FFEBM([nn.Linear(4, 4)], [block], nn.Linear(3, 2))
    x, y = torch.rand(4, 4), torch.arange(4) % 2
    for ask in (
        lambda: calibrate(model, x, y),
        lambda: transients(model, x, y),
        lambda: fidelity(model, x, y),
        lambda: model.use(EXACT, FixedPoint(7)),
    ):
        with pytest.raises(TypeError, match="chip 3 is known by its readings alone"):
            ask()


def test_a_wrapper_has_the_shapes_and_the_work_of_what_it_wraps() -> None:
    system = Noisy(Simulated(Hopfield([Dense(4, 3)]), FixedPoint(5)))
    assert system.sweep_macs((4,)) == 24
    assert [tuple(s.shape) for s in system.start(torch.rand(2, 4))] == [(2, 4), (2, 3)]
    assert SystemBlock(system).label == "an unnamed Noisy Hopfield block"


def test_a_wrapped_simulation_can_be_watched() -> None:
    seen: list[int] = []
    SystemWrapper(Simulated(Hopfield([Dense(4, 3)]), FixedPoint(3))).settle(
        torch.rand(2, 4), [FREE], observer=lambda done, _: seen.append(done)
    )
    assert seen == [0, 1, 2, 3]
