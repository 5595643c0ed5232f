"""Blocks on hardware: ideal where everything is off, and in every other respect a block like any other."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from ffebm import (
    FFEBM,
    BackpropThroughTime,
    Conductance,
    Converter,
    ConvLayer,
    Dense,
    DenseLayer,
    Device,
    Drift,
    EnergyBlock,
    EquilibriumPropagation,
    FixedPoint,
    Hardware,
    Hopfield,
    Levels,
    MaxPool,
    Mismatch,
    NonReciprocal,
    ProgrammingNoise,
    ReadNoise,
    Resistive,
    SettleTime,
    Simulated,
    Stencil,
    SystemBlock,
    SystemWrapper,
    build,
    calibrate,
    clamp,
    identity,
)
from ffebm.chaining import implicit_chain
from ffebm.diagnostics import converged_gradients, fidelity, gradients

NOISY = Hardware(
    Converter(6, noise=0.01, rounding="stochastic"),
    Converter(8, noise=0.01, offset=0.01, gain=0.01),
    [Levels(64), ProgrammingNoise(0.02), Mismatch(0.05), Drift(0.05, phase=1e-4), ReadNoise(0.01)],
)
# Nothing of which does anything, though all of it is there.
WITHOUT_EFFECT = Hardware(
    Converter(range=1e6),
    Converter(range=1e6),
    [Levels(2**40), ProgrammingNoise(0.0), Mismatch(0.0, "separate"), Drift(0.0), ReadNoise(0.0), SettleTime(10_000)],
)
CENTERED = EquilibriumPropagation(FixedPoint(15, order="output-first"))


def model(hardware: Hardware | None, estimator=CENTERED, nudge: str | None = "stationary", **options) -> FFEBM:
    torch.manual_seed(0)
    layers = [ConvLayer(3), ConvLayer(4, pool=MaxPool()), DenseLayer(8), DenseLayer(6)]
    return build(
        (2, 6, 6), layers, 2, 3, estimator=estimator, relax=FixedPoint(30), nudge=nudge, hardware=hardware, **options
    ).double()


def batch(samples: int = 6) -> tuple[Tensor, Tensor]:
    x = torch.rand(samples, 2, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return x, torch.arange(samples) % 3


def seeded_gradients(net: FFEBM, seed: int = 5) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return gradients(net, *batch())


OFF = [
    Hardware(),
    Hardware(Converter(), Converter()),
    Hardware(Converter(rounding="stochastic"), Converter(average=8), read="output", seed=3),
]


@pytest.mark.parametrize("hardware", OFF)
@pytest.mark.parametrize("stencil", [Stencil.centered(), Stencil.random_sign(), Stencil.small_signal()], ids=lambda s: s.name)
def test_with_everything_off_no_bit_differs(hardware: Hardware, stencil: Stencil) -> None:
    estimator = EquilibriumPropagation(FixedPoint(15, order="output-first"), stencil=stencil)
    expected, found = (seeded_gradients(model(h, estimator, "elastic")) for h in (None, hardware))
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert list(model(hardware).state_dict()) == list(model(None).state_dict())


def test_hardware_without_effect_and_many_bits_is_ideal() -> None:
    expected = seeded_gradients(model(None))
    for hardware in (WITHOUT_EFFECT, Hardware(adc=Converter(range=1e9))):
        found = seeded_gradients(model(hardware))
        for name, g in expected.items():
            torch.testing.assert_close(found[name], g, rtol=1e-6, atol=1e-9)
    logits = model(None).eval()(batch()[0]).logits
    for hardware in (WITHOUT_EFFECT, Hardware(Converter(24, 8.0), Converter(24, 8.0))):
        torch.testing.assert_close(model(hardware).eval()(batch()[0]).logits, logits, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("nudge", ["elastic", "stationary"])
def test_every_bit_makes_the_gradient_better(nudge: str) -> None:
    expected = seeded_gradients(model(None, nudge=nudge))

    def error(bits: int) -> float:
        found = seeded_gradients(model(Hardware(adc=Converter(bits)), nudge=nudge))
        return sum((found[name] - g).square().sum().item() for name, g in expected.items()) ** 0.5

    errors = [error(bits) for bits in (6, 10, 14, 18)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-3 * errors[0]


def test_what_is_handed_back_to_the_digital_part_is_that_of_the_block() -> None:
    """Infinite read-outs behind a coarse converter: the error at the input is that of an ideal block at the rounded input."""
    net, x = Hopfield([Dense(8, 6)], [clamp(0.5), identity()]).double(), 0.5 * torch.randn(5, 8, dtype=torch.float64)
    estimator = EquilibriumPropagation(FixedPoint(40), beta=1e-4)
    noisy = EnergyBlock(net, FixedPoint(60), estimator, hardware=Hardware(dac=Converter(4, 3.0)))
    x.requires_grad_()
    noisy(x).square().sum().backward()
    rounded = (torch.round(x.detach() * 7 / 3) * 3 / 7).requires_grad_()
    EnergyBlock(net, FixedPoint(60), estimator)(rounded).square().sum().backward()
    torch.testing.assert_close(x.grad, rounded.grad, rtol=1e-5, atol=1e-8)


def test_errors_of_an_ideal_block_and_of_one_with_a_written_weight_reach_the_weight_as_they_are() -> None:
    """Straight through: with levels, the gradient is that of the rounded weights, given to those behind them."""
    torch.manual_seed(0)
    energy = Hopfield([Dense(8, 6)], identity(0.5)).double()
    rounded = copy.deepcopy(energy)
    weight = energy.edges[0].weight
    with torch.no_grad():
        largest = weight.abs().max()
        rounded.edges[0].weight.copy_(torch.round(weight / largest * 7) / 7 * largest)
    x = torch.randn(5, 8, dtype=torch.float64)
    found = []
    for net, hardware in ((energy, Hardware(devices=[Levels(8)])), (rounded, None)):
        block = EnergyBlock(net, FixedPoint(60), CENTERED, hardware=hardware)
        found.append(torch.autograd.grad(block(x).square().sum(), net.edges[0].weight)[0])
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-14)


def test_noise_repeats_with_torchs_seed_and_only_with_it() -> None:
    net = model(NOISY)
    first, again, other = (seeded_gradients(copy.deepcopy(net), seed) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first if "interactions" in name)


def test_tests_repeat_whatever_the_seed() -> None:
    net = model(NOISY)
    net(batch()[0])  # learns ranges
    net.eval()
    torch.manual_seed(1)
    expected = net(batch()[0]).logits
    torch.manual_seed(2)
    assert torch.equal(net(batch()[0]).logits, expected)


def test_portions_of_a_batch_have_noise_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two equal samples are read with different noise, also where the batch is cut between them."""
    from ffebm import portions

    monkeypatch.setattr(portions, "CACHE", 1)
    torch.manual_seed(0)
    energy = Hopfield([Dense(8, 6)], identity(0.5)).double()
    block = EnergyBlock(energy, FixedPoint(20), CENTERED, hardware=Hardware(adc=Converter(noise=0.1)))
    x = torch.ones(2, 8, dtype=torch.float64, requires_grad=True)
    block(x).sum().backward()
    assert not torch.allclose(x.grad[0], x.grad[1])


def test_two_chips_are_two_pieces_and_one_seed_makes_the_same() -> None:
    torch.manual_seed(0)
    energy, x = Hopfield([Dense(8, 6)], identity(0.5)).double(), torch.randn(3, 8, dtype=torch.float64)

    def output(name: str, seed: int = 0) -> Tensor:
        hardware = Hardware(devices=[Mismatch(0.1)], seed=seed)
        return EnergyBlock(energy, FixedPoint(20), CENTERED, name=name, hardware=hardware)(x)

    assert torch.equal(output("one"), output("one"))
    assert not torch.allclose(output("one"), output("two"))
    assert not torch.allclose(output("one"), output("one", seed=1))


def test_learned_ranges_follow_free_read_outs_in_training_and_are_kept() -> None:
    net = model(Hardware(Converter(8), Converter(8)))
    chip = net.blocks[0].chip
    assert not bool(chip.seen_in_layers.any())
    x, _ = batch()
    net.eval()(x)
    assert not bool(chip.seen_at_input.any()) or not net.training
    net.train()(x)
    state = net.blocks[0].settle(net.stages[0](x)).state
    widest = torch.stack([s.amax() for s in state])
    assert chip.seen_in_layers[:, 1].tolist() == pytest.approx(widest.tolist(), rel=0.05)
    kept = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    net.eval()(10 * x)
    assert all(torch.equal(tensor, kept[name]) for name, tensor in net.state_dict().items())
    other = model(Hardware(Converter(8), Converter(8)))
    other.load_state_dict(kept)
    assert torch.equal(other.blocks[1].chip.seen_in_layers, net.blocks[1].chip.seen_in_layers)
    net.train()(10 * x)
    assert net.blocks[0].chip.seen_at_input.abs().max() >= chip.seen_at_input.abs().max() - 1e-6


def test_outputs_alone_may_be_read_out() -> None:
    torch.manual_seed(0)
    energy = Hopfield([Dense(8, 6)], identity(0.5)).double()
    x = torch.randn(30, 8, dtype=torch.float64)
    block = EnergyBlock(energy, FixedPoint(30), CENTERED, hardware=Hardware(adc=Converter(3, 1.0), read="output"))
    state = block.equilibrium(x).state
    assert len(state[1].unique()) <= 7 < len(state[0].unique())


def test_other_systems_run_on_hardware_too() -> None:
    """One that is disturbed already, and a map without an energy."""
    torch.manual_seed(0)
    energy = Hopfield([Dense(8, 6)], identity(0.5)).double()
    wrapped = SystemWrapper(Simulated(energy, FixedPoint(30)))

    class Map(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = nn.Linear(8, 8).double()

        def forward(self, state, x):
            return (torch.tanh(0.3 * self.inside(state[0]) + x),)

    x = torch.randn(4, 8, dtype=torch.float64)
    for system in (wrapped, NonReciprocal(Map())):
        parameters = [*system.parameters()]
        found = []
        for hardware in (None, Hardware(Converter(16), Converter(16)), Hardware(devices=[ProgrammingNoise(0.1)])):
            block = SystemBlock(system, EquilibriumPropagation(FixedPoint(40)), hardware=hardware, name="the chip")
            found.append(torch.cat([g.flatten() for g in torch.autograd.grad(block(x).square().sum(), parameters)]))
        ideal, fine, rough = found
        assert torch.cosine_similarity(ideal, fine, 0) > 0.999
        assert not torch.allclose(ideal, rough, rtol=1e-3)
        assert torch.cosine_similarity(ideal, rough, 0) > 0.9


def test_read_noise_is_in_units_of_currents_whatever_the_feedback() -> None:
    """A force on a layer counts by its weight, and noise must not."""
    for feedback in (1.0, 0.1):
        torch.manual_seed(0)
        energy = Hopfield([Dense(50, 2, bias=False)], identity(1.0), feedback=feedback).double()
        with torch.no_grad():
            energy.edges[0].weight.zero_()
        hardware = Hardware(devices=[ReadNoise(0.2)])
        block = EnergyBlock(energy, FixedPoint(3), CENTERED, hardware=hardware, unsettled="ignore")
        (first, second) = block.equilibrium(torch.zeros(500, 50, dtype=torch.float64)).state
        assert first.std().item() == pytest.approx(0.2, rel=0.02)
        assert second.std().item() == pytest.approx(0.2, rel=0.1)


def test_a_shorter_phase_is_the_relaxation_with_fewer_sweeps() -> None:
    torch.manual_seed(0)
    energy, x = Hopfield([Dense(8, 6)], identity(0.5)).double(), torch.randn(3, 8, dtype=torch.float64)
    short = EquilibriumPropagation(FixedPoint(2))
    expected = EnergyBlock(energy, FixedPoint(2), short, unsettled="ignore")
    found = EnergyBlock(energy, FixedPoint(30), CENTERED, hardware=Hardware(devices=[SettleTime(2)]), unsettled="ignore")
    found.estimator = EquilibriumPropagation(FixedPoint(15))
    grads = [torch.autograd.grad(block(x).square().sum(), energy.edges[0].weight)[0] for block in (expected, found)]
    assert torch.equal(*grads)


def test_diagnostics_and_calibration_hold_against_the_ideal_block() -> None:
    x, y = batch(8)
    plain, noisy = model(None), model(NOISY)
    assert all(torch.equal(a, b) for a, b in zip(*(converged_gradients(m, x, y).values() for m in (plain, noisy)), strict=True))
    assert fidelity(noisy, x, y).cosine < 0.95 < fidelity(plain, x, y).cosine
    assert calibrate(noisy, x, y) == calibrate(plain, x, y)
    assert noisy.blocks[0].hardware == NOISY, "calibration looked at a copy"


def test_limits_start_with_finite_nudges_on_hardware() -> None:
    hardware = Hardware(adc=Converter(8))
    net = model(hardware, None, None, max_contraction=0.5)
    assert net.blocks[0].estimator.chosen == Stencil.centered()
    assert net.nudge == "stationary"
    assert model(None, None, None, max_contraction=0.5).blocks[0].estimator.chosen.small
    assert model(None, nudge=None).nudge == "elastic"


def test_hardware_refuses_what_only_a_simulation_can_do() -> None:
    small = EquilibriumPropagation(variant="small-signal")
    with pytest.raises(ValueError, match=r"block 1 of 2 runs on hardware, got small signal nudges: .*variant=.centered."):
        model(NOISY, small)
    net = model(NOISY)
    net.use(small)
    with pytest.raises(ValueError, match="runs on hardware, got small signal nudges"):
        net(batch()[0])
    with pytest.raises(TypeError, match="BackpropThroughTime differentiates the sweeps of a simulation"):
        net.use(BackpropThroughTime())(batch()[0])
    roots = EnergyBlock(Hopfield([Dense(4, 3)], identity()), FixedPoint(9), EquilibriumPropagation(stencil=Stencil.roots(3)))
    roots.put_on(NOISY)
    with pytest.raises(TypeError, match="runs on hardware, and settles under real nudges only"):
        roots(torch.rand(2, 4)).sum().backward()
    with pytest.raises(TypeError, match=r"runs on hardware, whose draws .* `block\.put_on\(None\)`"):
        torch.export.export(model(NOISY).eval(), (batch()[0],))
    with pytest.raises(ValueError, match="block 1 of 2 runs on hardware, and the algorithms that are spelled out here"):
        implicit_chain(model(NOISY), *batch())
    with pytest.raises(TypeError, match="begins where its system begins"):
        model(NOISY).blocks[1].float()(torch.rand(2, 36), start=())


def test_mismatch_of_two_crossbars_needs_an_energy_that_has_some() -> None:
    system = SystemWrapper(NonReciprocal(nn.Bilinear(1, 1, 1)))
    with pytest.raises(TypeError, match=r'NonReciprocal uses the same devices both ways, .* `crossbars="shared"`'):
        system.returning(system)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Hardware(adc=8), r"`adc` must be a Converter such as Converter\(bits=8\), got 8"),
        (lambda: Hardware(devices=[0.01]), r"`devices` must be a Device such as ReadNoise\(0.01\), got 0.01"),
        (lambda: Hardware(devices=ReadNoise(0.1)), r"`devices` must be a list of devices such as .*, got ReadNoise"),
        (
            lambda: EnergyBlock(Hopfield([Dense(4, 3)]), hardware=Converter(8)),
            r"`hardware` must be a Substrate such as Hardware",
        ),
    ],
)
def test_unknown_devices_are_refused(make, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make()


def test_unknown_ways_to_read_are_refused() -> None:
    with pytest.raises(ValueError, match="Unknown read 'some'; choose one of 'all', 'output'"):
        Hardware(read="some")


def test_a_device_of_ones_own_takes_two_lines() -> None:
    from dataclasses import dataclass
    from typing import ClassVar

    @dataclass(frozen=True)
    class Half(Device):
        writes: ClassVar[bool] = True

        def check(self) -> None: ...

        def written(self, cells, draws, name):
            return cells._replace(plus=cells.plus / 2, minus=cells.minus / 2)

    energy = Hopfield([Dense(8, 6, bias=False)], identity(0.5)).double()
    x = torch.randn(3, 8, dtype=torch.float64)
    found = EnergyBlock(energy, FixedPoint(60), hardware=Hardware(devices=[Half()]))(x)
    with torch.no_grad():
        energy.edges[0].weight.div_(2)
    torch.testing.assert_close(found, EnergyBlock(energy, FixedPoint(60))(x))


def test_a_model_moves_onto_hardware_and_off_again() -> None:
    net = model(None)
    expected = seeded_gradients(copy.deepcopy(net))
    assert net.put_on(NOISY).blocks[1].hardware == NOISY
    assert net.put_on(None).blocks[1].hardware is None
    found = seeded_gradients(net)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def _same(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_models_on_hardware_are_copied_pickled_and_trained() -> None:
    import pickle

    net = model(NOISY)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    before = [p.detach().clone() for p in net.parameters()]
    net(*batch()).losses.mean().backward()
    optimiser.step()
    assert not _same(before, [*net.parameters()])
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        found, expected = seeded_gradients(other), seeded_gradients(copy.deepcopy(net))
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_resistive_networks_run_on_hardware() -> None:
    """Their weights are conductances, single cells without a sign, whatever the noise of writing."""
    torch.manual_seed(0)
    crossbars = [Conductance(12, 8, doubled=True), Conductance(8, 3)]
    energy = Resistive(crossbars, input="voltage", input_gain=3.0, gain=(2.0, 1.0)).double()
    x = torch.rand(20, 12, dtype=torch.float64)
    parameters = [p for p in energy.parameters() if p.dim() > 1]

    def found(hardware: Hardware | None) -> Tensor:
        estimator = EquilibriumPropagation(FixedPoint(60, order="output-first"), beta=0.02)
        block = EnergyBlock(energy, FixedPoint(60), estimator, hardware=hardware)
        return torch.cat([g.flatten() for g in torch.autograd.grad(block(x).square().sum(), parameters)])

    ideal = found(None)
    assert torch.cosine_similarity(ideal, found(Hardware(adc=Converter(16), pairs=False)), 0) > 0.999
    for device in (ProgrammingNoise(0.05), Levels(12), ReadNoise(1e-4)):
        noisy = found(Hardware(devices=[device], pairs=False))
        assert 0.8 < torch.cosine_similarity(ideal, noisy, 0) < 1 - 1e-7
    with pytest.raises(TypeError, match="Resistive sends currents both ways through the same devices, which cannot differ"):
        found(Hardware(devices=[Mismatch(0.1, "separate")], pairs=False))
