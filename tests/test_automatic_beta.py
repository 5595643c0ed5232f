"""The strength of nudges that read-outs choose, and the meter that holds blocks against ideal ones."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from ffebm import (
    FFEBM,
    AutomaticBeta,
    Converter,
    Dense,
    EnergyBlock,
    EquilibriumPropagation,
    FixedPoint,
    Hardware,
    Hopfield,
    ReadNoise,
    RecurrentBackprop,
    Stencil,
    clamp,
    identity,
)
from ffebm.hardware import block_fidelities
from ffebm.nudge import Stationary

DOUBLE = torch.float64
NUDGED = FixedPoint(30, order="downward")


def energy() -> Hopfield:
    torch.manual_seed(0)
    return Hopfield([Dense(32, 32), Dense(32, 24)], [clamp(0.5), clamp(0.5), identity()]).double()


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = 1 + 0.5 * torch.randn(64, 32, dtype=DOUBLE, generator=generator)
    return x, torch.randn(64, 24, dtype=DOUBLE, generator=generator)


def handed_back(estimator, hardware: Hardware | None) -> Tensor:
    block = EnergyBlock(energy(), FixedPoint(60, order="upward"), estimator, max_contraction=0.6, hardware=hardware)
    x, error = batch()
    x.requires_grad_()
    torch.manual_seed(2)
    return torch.autograd.grad((block(x) * error).sum(), x)[0]


def chosen(hardware: Hardware | None, automatic: AutomaticBeta = AutomaticBeta()) -> float:
    block = EnergyBlock(energy(), FixedPoint(60, order="upward"), max_contraction=0.6, hardware=hardware)
    x, error = batch()
    estimator = EquilibriumPropagation(NUDGED, automatic=automatic)
    with torch.no_grad():
        free = block.equilibrium(x).state
        system = block._on_chip(block.system)
        return estimator.trial_by_error(system, x, free, error).estimator.beta


def cosine(a: Tensor, b: Tensor) -> float:
    return torch.cosine_similarity(a.flatten(), b.flatten(), 0).item()


def test_the_coarser_the_converter_the_stronger_the_nudge() -> None:
    found = [chosen(Hardware(adc=Converter(bits))) for bits in (14, 11, 8, 5)]
    assert found == sorted(found)
    assert found[0] < 0.2 < found[-1]
    assert chosen(None) == min(AutomaticBeta().strengths)
    assert chosen(Hardware(devices=[ReadNoise(0.03)])) > chosen(Hardware(devices=[ReadNoise(1e-4)]))


@pytest.mark.parametrize(
    "hardware", [Hardware(adc=Converter(bits)) for bits in (6, 8, 10)] + [Hardware(adc=Converter(noise=0.01))]
)
def test_the_chosen_strength_is_as_good_as_the_best_fixed_one(hardware: Hardware) -> None:
    exact = handed_back(RecurrentBackprop(FixedPoint(200)), None)
    fixed = [cosine(handed_back(EquilibriumPropagation(NUDGED, beta=b), hardware), exact) for b in AutomaticBeta().strengths]
    automatic = cosine(handed_back(EquilibriumPropagation(NUDGED, automatic=AutomaticBeta()), hardware), exact)
    assert automatic > fixed[1] + 0.02, "the default β"
    assert automatic > max(fixed) - 0.03


def test_the_end_of_a_range_keeps_nudges_weak() -> None:
    """The output moves by up to β: a strong nudge takes it out of a narrow range, one way more than the other."""
    x, _ = batch()
    with torch.no_grad():
        block = EnergyBlock(energy(), FixedPoint(60, order="upward"), max_contraction=0.6)
        widest = block.settle(x).state[-1].abs().max().item()
    strengths = AutomaticBeta((0.05, 5.0))
    assert chosen(Hardware(adc=Converter(9, 20 * widest)), strengths) >= chosen(
        Hardware(adc=Converter(9, 1.05 * widest)), strengths
    )


def test_a_choice_is_an_even_part_over_all() -> None:
    """Of a layer that is clamped on one side, half of the response is even: worked out by hand."""

    class Straight(nn.Module):
        def settle(self, x, phases, *, start, relax):
            from ffebm import Relaxed

            forces = [phase.tilt.force(start, 0) for phase in phases]
            return [Relaxed(((start[0] - f).clamp(max=0.4),), f[:, 0], f[:, 0]) for f in forces]

        def latched(self, state):
            return self

    free = (torch.zeros(4, 3, dtype=DOUBLE),)
    nudge = lambda part: Stationary(1.0, (torch.ones(4, 3, dtype=DOUBLE)[part],))  # noqa: E731
    for strengths, best in (((0.1, 0.3), 0.1), ((0.3, 0.9), 0.3), ((0.9, 0.5), 0.5)):
        found = AutomaticBeta(strengths).choose(Straight(), free[0], free, nudge, NUDGED, latched=True)
        assert found == best


def test_where_nothing_moves_the_first_is_as_good_as_any() -> None:
    assert chosen(Hardware(adc=Converter(2, 1000.0))) in AutomaticBeta().strengths


def test_elastic_nudges_have_a_chosen_strength_too() -> None:
    torch.manual_seed(0)
    block = EnergyBlock(
        energy(), FixedPoint(60), EquilibriumPropagation(NUDGED, automatic=AutomaticBeta()), max_contraction=0.6
    )
    model = FFEBM([nn.Identity()], [block], nn.Linear(24, 3).double())
    x, _ = batch()
    y = torch.arange(64) % 3
    found = torch.autograd.grad(model(x, y).losses.mean(), [*model.parameters()])
    block.estimator = EquilibriumPropagation(NUDGED, beta=0.02)
    expected = torch.autograd.grad(model(x, y).losses.mean(), [*model.parameters()])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("strengths", [(0.1,), (0.1, -0.1), [0.1, 0.2], (0.1, math.inf), ()])
def test_impossible_strengths_are_refused(strengths) -> None:
    with pytest.raises(ValueError, match="`strengths` must be two or more positive numbers in a tuple, got"):
        AutomaticBeta(strengths)


@pytest.mark.parametrize("stencil", [Stencil.small_signal(), Stencil.roots(3)], ids=lambda s: s.name)
def test_nudges_without_a_strength_are_refused(stencil: Stencil) -> None:
    with pytest.raises(ValueError, match=rf"`automatic` chooses among real strengths, and {stencil.name} nudges have none"):
        EquilibriumPropagation(stencil=stencil, automatic=AutomaticBeta())
    with pytest.raises(TypeError, match="`automatic` must be a AutomaticBeta such as"):
        EquilibriumPropagation(automatic=True)
    with pytest.raises(ValueError, match="`samples` must be a whole number of at least 1"):
        AutomaticBeta(samples=0)


# The meter


def model(hardware: Hardware | None, **options) -> FFEBM:
    torch.manual_seed(0)
    blocks = [
        EnergyBlock(
            Hopfield([Dense(16, 12)], [clamp(0.5), identity()]),
            FixedPoint(40),
            EquilibriumPropagation(FixedPoint(30), **options),
            hardware=hardware,
        )
        for _ in range(2)
    ]
    stages = [nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16)), nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16))]
    return FFEBM(stages, blocks, nn.Linear(12, 4)).double()


def samples() -> tuple[Tensor, Tensor]:
    return torch.randn(20, 10, dtype=DOUBLE, generator=torch.Generator().manual_seed(3)), torch.arange(20) % 4


def test_an_ideal_block_has_a_fidelity_of_one() -> None:
    for found in block_fidelities(model(None, beta=1e-3), *samples()):
        assert found.cosine == pytest.approx(1, abs=1e-3)
        assert found.ratio == pytest.approx(1, abs=1e-2)
        assert found.handed_cosine == pytest.approx(1, abs=1e-3)
        assert found.handed_ratio == pytest.approx(1, abs=1e-2)
        assert math.isnan(found.saturated)


def test_the_meter_sees_steps_and_ends_of_ranges() -> None:
    fine, coarse, narrow = (
        block_fidelities(model(Hardware(adc=converter)), *samples())[1]
        for converter in (Converter(20), Converter(4), Converter(20, 0.2))
    )
    assert fine.cosine > 0.999 > 0.9 > coarse.cosine
    assert fine.handed_cosine > 0.99 > coarse.handed_cosine
    assert fine.saturated == 0 < narrow.saturated < 1
    assert fine.unmoved < 0.5 < coarse.unmoved <= 1
    silent = block_fidelities(model(Hardware(adc=Converter(4, 1e4))), *samples())[1]
    assert silent.unmoved == 1
    assert (silent.cosine, silent.ratio) == (0, 0)


def test_the_meter_leaves_the_model_as_it_was() -> None:
    net = model(Hardware(adc=Converter(8)))
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    block_fidelities(net, *samples())
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert net.blocks[0].hardware is not None
    assert all(p.grad is None for p in net.parameters())


def test_a_block_is_not_blamed_for_another() -> None:
    """Noise in the first block alone: the second gets another input, and is still ideal."""
    net = model(None, beta=1e-3)
    net.blocks[0].put_on(Hardware(adc=Converter(noise=0.1)))
    first, second = block_fidelities(net, *samples())
    assert first.cosine < 0.9 < 0.9999 < second.cosine
