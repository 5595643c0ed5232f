"""Circuits among the blocks of a model: built, trained, certified, set by settings."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

from ffebm import (
    Conductance,
    ConvLayer,
    DenseLayer,
    EnergyBlock,
    EquilibriumPropagation,
    FixedPoint,
    MaxPool,
    RecurrentBackprop,
    Resistive,
    Wiring,
    build,
    clamp,
    start_from_data,
)
from ffebm.diagnostics import converged_gradients, gradients
from ffebm.energy import Certificate
from ffebm.relaxation import Order
from ffebm.state import State
from nets import CONVERGED, worst
from test_resistive import NETS, Net, settled

SMALL = EquilibriumPropagation(FixedPoint(2000, order="output-first", tolerance=1e-14), variant="small-signal")
MIXED = [None, Wiring(gain=(4.0, 1.0)), None]


def mixed(**options: Any) -> Any:
    torch.manual_seed(0)
    layers = [ConvLayer(3), ConvLayer(4, pool=MaxPool()), ConvLayer(4), ConvLayer(6), DenseLayer(8), DenseLayer(6)]
    chosen: dict[str, Any] = {"wiring": MIXED, "activation": clamp(0.5), "max_contraction": 0.5} | options
    return build((1, 8, 8), layers, 2, 5, **chosen)


def batch(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return torch.randn(6, 1, 8, 8, dtype=dtype), torch.arange(6) % 5


@pytest.mark.parametrize("wiring", [MIXED, [Wiring("voltage", gain=(2.0, 1.0)), None, Wiring()]], ids=["current", "voltage"])
def test_gradients_of_a_mixed_model_are_the_converged_ones(wiring: Any) -> None:
    layers = [ConvLayer(3), ConvLayer(4, stride=2), ConvLayer(4), ConvLayer(6), DenseLayer(8), DenseLayer(6)]
    model = build((1, 8, 8), layers, 2, 5, wiring=wiring, max_contraction=0.5, relax=CONVERGED, estimator=SMALL).double()
    x, y = batch()
    model(x)  # brings weights within their limits
    assert worst(gradients(model, x, y), converged_gradients(model, x, y)) < 1e-7


def test_a_mixed_model_learns_and_its_conductances_stay_positive() -> None:
    model = mixed()
    x, y = batch(torch.float32)
    start_from_data(model, x)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(30):
        loss = model(x, y).losses.mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 3
    model(x)
    crossbars = list(model.blocks[1].energy.crossbars)
    assert crossbars
    assert all(bool((crossbar.weight >= 1e-6).all()) for crossbar in crossbars)


def test_the_first_connection_is_a_crossbar_where_voltages_enter() -> None:
    model = build((1, 4, 4), [DenseLayer(7), DenseLayer(5)], 2, 5, wiring=Wiring("voltage"), batch_norm=False, readout="direct")
    assert isinstance(model.stages[0], nn.Identity)
    assert [p.shape for p in model.parameters()] == [(7, 32), (7,), (5, 7), (5,)]
    x = torch.rand(3, 1, 4, 4)
    torch.testing.assert_close(model(x).logits, settled(model.blocks[0].energy, x)[-1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": [ConvLayer(3), ConvLayer(3, pool=MaxPool())]}, "cannot be made of resistors"),
        (
            {"layers": [ConvLayer(3), ConvLayer(3), ConvLayer(3, skip=2)], "split": 3},
            "skip connections: its crossbars are a chain",
        ),
        ({"readout": "direct"}, "the last layer is the logits: it has 192 units, and there are 5 classes"),
        ({"readout": "none"}, "Unknown readout 'none'"),
        ({"wiring": [Wiring()] * 2}, "`wiring` must be one value for all 1 blocks"),
    ],
)
def test_models_that_cannot_be_made_of_circuits_are_refused(options: dict[str, Any], message: str) -> None:
    chosen = {"layers": [ConvLayer(3), ConvLayer(3)], "split": 2, "wiring": Wiring()} | options
    with pytest.raises((TypeError, ValueError), match=message):
        build((1, 8, 8), chosen.pop("layers"), chosen.pop("split"), 5, **chosen)


def test_a_limit_on_gain_is_refused_for_a_circuit_which_settles_without() -> None:
    block = EnergyBlock(Resistive([Conductance(4, 3)]), max_contraction=0.5)
    with pytest.raises(TypeError, match="Nothing can be promised of Resistive"):
        block(torch.randn(2, 4))


def test_energies_that_are_no_circuits_have_no_power() -> None:
    with pytest.raises(TypeError, match="Hopfield describes no circuit, so it has no power"):
        mixed().blocks[0].power(torch.randn(2, 3, 8, 8))


def test_a_parametrised_or_pruned_crossbar_trains_like_any_other() -> None:
    """Conductances by parametrisation, as exponentials, need no bounds; pruned ones are cut."""
    energy, x = Net(leak=0.3).build()
    with torch.no_grad():
        free = deepcopy(energy)
    parametrize.register_parametrization(energy.crossbars[0], "weight", Exponentials())
    prune.l1_unstructured(energy.crossbars[1], "weight", 3)
    found = []
    for estimator in (SMALL, RecurrentBackprop(CONVERGED)):
        output = EnergyBlock(energy, CONVERGED, estimator)(x)
        found.append(torch.autograd.grad(output.square().sum(), list(energy.parameters())))
    for ours, exact in zip(*found, strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-7, atol=1e-9)
    assert (energy.crossbars[1].weight == 0).sum() == 3
    assert not torch.allclose(settled(energy, x)[-1], settled(free, x)[-1])


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_a_run_that_goes_on_from_a_state_dict_takes_the_same_steps(kind: str) -> None:
    """Conductances may be saved out of bounds, before the pass that brings them back."""
    x, y = torch.rand(32, 6), torch.arange(32) % 3

    def fresh() -> tuple[EnergyBlock, torch.optim.Optimizer]:
        torch.manual_seed(0)
        block = EnergyBlock(Net(sizes=(6, 8, 3)).build()[0].float(), estimator=SMALL)
        parameters = block.parameters()
        return block, torch.optim.Adam(parameters, lr=0.1) if kind == "adam" else torch.optim.SGD(parameters, 5.0, 0.9)

    def steps(block: EnergyBlock, optimiser: torch.optim.Optimizer, count: int) -> None:
        for _ in range(count):
            optimiser.zero_grad()
            nn.functional.cross_entropy(block(x), y).backward()
            optimiser.step()

    whole, optimiser = fresh()
    steps(whole, optimiser, 3)
    assert any((p < 0).any() for name, p in whole.named_parameters() if "weight" in name), "a step went too far"
    saved = deepcopy((whole.state_dict(), optimiser.state_dict()))
    steps(whole, optimiser, 3)
    resumed, optimiser = fresh()
    resumed.load_state_dict(saved[0])
    optimiser.load_state_dict(saved[1])
    steps(resumed, optimiser, 3)
    for ours, theirs in zip(resumed.parameters(), whole.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_an_exported_circuit_says_the_same() -> None:
    block = EnergyBlock(Net(leak=0.3).build()[0].float(), FixedPoint(5)).eval()
    x = torch.rand(4, 4)
    program = torch.export.export(block, (x,))
    torch.testing.assert_close(program.module()(x), block(x))


class Exponentials(nn.Module):
    def forward(self, logarithm: Tensor) -> Tensor:
        return logarithm.exp()

    def right_inverse(self, weight: Tensor) -> Tensor:
        return weight.log()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("resistive.blocks=[3]", "names block 3, and there are 2"),
        ("resistive.blocks=[0]", "blocks are numbered from 1"),
        ("resistive.highest=1e-7", "`highest` must be more than `lowest`"),
        ("resistive.leak=0", "need a way to ground"),
        ("resistive.volts=2.0", "`resistive.volts` has no effect here: no block is a circuit"),
        ("resistive.input_gain=2.0", "no block is a circuit"),
    ],
)
def test_impossible_circuits_in_settings_are_refused(override: str, message: str) -> None:
    reading = pytest.importorskip("ffebm.experiment.settings")
    with pytest.raises(reading.SettingsError, match=message):
        reading.settings_from({}, [override])


def test_settings_make_the_circuits_that_they_name() -> None:
    reading = pytest.importorskip("ffebm.experiment.settings")
    architectures = pytest.importorskip("ffebm.experiment.architectures")
    circuit = {"blocks": [2], "forward": 4.0, "backward": 2.0, "diode": "exponential", "ideality": 3.0, "siemens": 1e-4}
    chosen = reading.settings_from({"model": {"channels": [2, 2, 2, 2], "pooled": []}, "resistive": circuit})
    assert not chosen.settles
    first, second = (block.energy for block in architectures.build_model(chosen, (1, 8, 8), 10).blocks)
    assert not first.always_settles
    assert (second.gains, second.scale.siemens, second.diode.ideality) == (((4.0, 2.0),), 1e-4, 3.0)
    everywhere = reading.settings_from({"resistive": {"blocks": "all"}})
    assert everywhere.settles
    assert everywhere.effective[1].variant == "small-signal"
    assert everywhere.effective[0].order == "upward"


def certified(energy: Resistive, x: Tensor) -> Certificate:
    certificate = EnergyBlock(energy).certify(x.shape[1:])
    assert certificate is not None
    return certificate


def loads(energy: Resistive, x: Tensor) -> list[Tensor]:
    state = energy.init_state(x)
    session: Any = energy.session(x, state)
    return [energy.layer_weight(layer) * session.load(layer, state) for layer in range(len(state))]


def apart(energy: Resistive, x: Tensor, state: State, goal: State) -> Tensor:
    """In the norm of the certificate, over all layers of a row."""
    squares = [(load * (v - w).square()).sum(1) for load, v, w in zip(loads(energy, x), state, goal, strict=True)]
    return torch.stack([sum(squares[first::2], torch.zeros(len(x)).double()) for first in (0, 1)]).sqrt()


@settings(max_examples=40)
@given(
    net=NETS.filter(lambda net: len(net.sizes) > 2), omega=st.sampled_from([1.0, 1.3]), order=st.sampled_from([None, "upward"])
)
def test_no_sweep_leaves_more_than_is_certified(net: Net, omega: float, order: Order | None) -> None:
    energy, x = replace(net, leak=0.1).build()
    certificate, goal = certified(energy, x), settled(energy, x)
    assert certificate.unique
    start = tuple(v + torch.randn_like(v) for v in goal)
    with torch.no_grad():
        swept = FixedPoint(1, order=order or "odd-even", omega=omega)(energy, x, start=start).state
    turns = None if order is None else tuple((layer,) for layer in range(len(goal)))
    bound = certificate.sweep_bound(omega, turns) @ apart(energy, x, start, goal)
    assert (apart(energy, x, swept, goal) <= bound * (1 + 1e-9) + 1e-9).all()
    moves = [(new - old).norm().item() for new, old in zip(FixedPoint(1)(energy, x, start=start).state, start, strict=True)]
    far = certificate.distances(moves)
    assert all((v - w).norm() <= (1 + 1e-6) * most for v, w, most in zip(start, goal, far, strict=True))


def test_the_certified_contraction_is_reached_where_no_diode_conducts() -> None:
    energy, x = Net(sizes=(4, 5, 3, 4), rails="free").build()
    certificate = certified(energy, x)
    goal = settled(energy, x)
    state = tuple(v + 1 for v in goal)
    for _ in range(60):
        before = apart(energy, x, state, goal).norm(dim=0)
        with torch.no_grad():
            state = FixedPoint(1)(energy, x, start=state).state
        ratio = apart(energy, x, state, goal).norm(dim=0) / before
    assert ratio.max().item() == pytest.approx(certificate.contraction, rel=2e-3)
    assert ratio.max().item() <= certificate.contraction


def test_a_circuit_of_one_layer_settles_at_once() -> None:
    block = EnergyBlock(Resistive([Conductance(4, 3)], input="voltage"))
    certificate = block.certify((4,))
    assert certificate is not None
    assert certificate.sweeps(1e-9) == 1
    assert math.isclose(block.relax(block.energy, torch.randn(2, 4)).residual.max().item(), 0.0, abs_tol=1e-6)
