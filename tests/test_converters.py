"""Converters: their levels, their noise, their ends, and the way back through them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from ffebm import Converter, EnergyBlock, EquilibriumPropagation, FixedPoint, Hardware, Hopfield, identity
from ffebm.hardware.converter import Range
from ffebm.hardware.draws import Draws


def draws(seed: int = 0, *, training: bool = True) -> Draws:
    torch.manual_seed(seed)
    return Draws(0, "a chip", training=training)


def span(low: float, high: float) -> Range:
    return Range(torch.tensor(low, dtype=torch.float64), torch.tensor(high, dtype=torch.float64))


def converted(converter: Converter, values: Tensor, given_draws: Draws | None = None) -> Tensor:
    ends = converter.span(values.amin().detach(), values.amax().detach())
    return converter.convert(values, ends, given_draws or draws(), "here")


@settings(max_examples=20, deadline=None)
@given(bits=st.integers(2, 10), high=st.floats(0.1, 100), signed=st.booleans())
def test_a_converter_has_its_levels_zero_among_them_and_no_more(bits: int, high: float, signed: bool) -> None:
    low = -high if signed else 0.0
    values = torch.linspace(1.5 * low - 0.1, 1.5 * high, 40_001, dtype=torch.float64)
    levels = converted(Converter(bits, (low, high)), values).unique()
    assert len(levels) == (2**bits - 1 if signed else 2**bits)
    torch.testing.assert_close(levels, torch.linspace(low, high, len(levels), dtype=torch.float64), rtol=1e-6, atol=1e-6 * high)
    assert 0.0 in levels.tolist()


def test_rounding_is_off_by_half_a_step_at_most_and_by_a_twelfth_of_its_square_in_the_mean() -> None:
    values = 2 * torch.rand(100_000, dtype=torch.float64) - 1
    converter = Converter(6, 1.0)
    step = 1 / 31
    error = converted(converter, values) - values
    assert error.abs().max() <= step / 2 * (1 + 1e-6)
    assert error.square().mean().item() == pytest.approx(step**2 / 12, rel=0.02)
    assert abs(error.mean().item()) < 4 * step / math.sqrt(12 * len(values))


def test_more_bits_are_never_worse() -> None:
    values = torch.randn(5000, dtype=torch.float64)
    errors = [(converted(Converter(bits), values) - values).abs().max().item() for bits in range(2, 17)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-4 < 0.5 < errors[0]


def test_stochastic_rounding_is_right_in_the_mean_and_leaves_levels_alone() -> None:
    converter = Converter(3, (0.0, 1.0), rounding="stochastic")
    values = torch.tensor([0.0, 0.31, 0.5, 0.91, 0.999, 1.0, 3 / 7], dtype=torch.float64)
    found = converted(converter, values.repeat(40_000, 1))
    assert set((7 * found).round(decimals=4).unique().tolist()) <= set(range(8))
    spread = (1 / 7) / math.sqrt(len(found))  # of a mean: a value is up to a step off
    torch.testing.assert_close(found.mean(0), values, rtol=0, atol=4 * spread)
    torch.testing.assert_close(found.std(0)[[0, 5, 6]], torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-6)
    part = 7 * 0.31 - 2  # a value between two levels is a coin that shows up by this part
    assert found.std(0)[1].item() == pytest.approx(math.sqrt(part * (1 - part)) / 7, rel=0.02)


def test_thermal_noise_has_its_deviation_and_falls_as_readings_are_averaged() -> None:
    values = torch.zeros(50_000, dtype=torch.float64)
    one = converted(Converter(noise=0.03), values)
    many = converted(Converter(noise=0.03, average=16), values)
    assert one.std().item() == pytest.approx(0.03, rel=0.02)
    assert abs(one.mean().item()) < 4 * 0.03 / math.sqrt(len(values))
    assert many.std().item() == pytest.approx(0.03 / 4, rel=0.02)


def test_noise_lets_averages_see_between_the_levels() -> None:
    """Dither: without noise all readings agree, on the wrong level."""
    values = torch.full((2000,), 0.37, dtype=torch.float64)
    alike = converted(Converter(4, 1.0, average=100), values)
    dithered = converted(Converter(4, 1.0, noise=0.1, average=100), values)
    assert abs(alike.mean().item() - 0.37) > 0.05
    assert abs(dithered.mean().item() - 0.37) < 0.002


def test_offset_and_gain_belong_to_a_unit_and_stay() -> None:
    converter = Converter(offset=0.1, gain=0.05)
    values = torch.ones(3, 20_000, dtype=torch.float64)
    first, second = converted(converter, values, draws(1)), converted(converter, values, draws(2))
    assert torch.equal(first, second)
    assert torch.equal(first[0], first[2])
    assert first[0].std().item() == pytest.approx(math.hypot(0.1, 0.05), rel=0.03)
    zeros = converted(converter, torch.zeros_like(values))
    assert zeros[0].std().item() == pytest.approx(0.1, rel=0.03), "gain has nothing to multiply"
    other = converter.convert(values, None, draws(), "elsewhere")
    assert not torch.allclose(first, other)


def test_a_learned_range_starts_at_zero_until_something_negative_is_seen() -> None:
    converter = Converter(8, headroom=1.5)
    for lowest, highest, low, high in ((0.0, 2.0, 0.0, 2.0), (-3.0, 2.0, -3.0, 3.0), (-1.0, 2.0, -2.0, 2.0)):
        found = converter.span(torch.tensor(lowest), torch.tensor(highest))
        assert (found.low.item(), found.high.item()) == (1.5 * low, 1.5 * high)
    assert converter.learns
    assert not Converter(8, 1.0).learns
    assert not Converter(noise=0.1).learns


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_the_way_back_is_straight_inside_of_the_range_and_shut_outside(rounding: str) -> None:
    values = torch.tensor([-1.7, -0.9, 0.02, 0.6, 1.4], dtype=torch.float64, requires_grad=True)
    converted(Converter(5, 1.0, rounding=rounding), values).sum().backward()
    assert values.grad.tolist() == [0, 1, 1, 1, 0]


def test_the_way_back_knows_the_gain() -> None:
    values = torch.full((1, 6), 0.3, dtype=torch.float64, requires_grad=True)
    found = Converter(gain=0.2).convert(values, None, draws(), "here")
    found.sum().backward()
    torch.testing.assert_close(values.grad, found.detach() / 0.3)


def test_the_error_at_a_blocks_input_is_that_of_a_smooth_block_where_the_range_does_not_end() -> None:
    """The converter in front of a linear block: finite differences over many steps see its mean slope, which is 1."""
    torch.manual_seed(0)
    block = EnergyBlock(Hopfield([], identity()).double(), FixedPoint(2), EquilibriumPropagation(beta=1e-3))
    block.put_on(Hardware(dac=Converter(8, 2.0)))
    x = torch.tensor([[0.5, -1.2, 1.9, 2.5, -3.0]], dtype=torch.float64, requires_grad=True)
    block(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([[1.0, 1, 1, 0, 0]], dtype=torch.float64))
    width = 50 * 2 / 127  # many steps
    with torch.no_grad():
        slopes = (block(x + width / 2) - block(x - width / 2)) / width
    torch.testing.assert_close(slopes[0, :2], x.grad[0, :2], rtol=0.02, atol=0)
    torch.testing.assert_close(slopes[0, 4:], x.grad[0, 4:], rtol=0, atol=0.02)


def test_a_read_out_is_converted_and_a_held_input_too() -> None:
    block = EnergyBlock(
        Hopfield([], identity()).double(), FixedPoint(2), hardware=Hardware(Converter(4, 1.0), Converter(3, 1.0))
    )
    x = torch.linspace(-1, 1, 301, dtype=torch.float64).view(1, -1)
    assert len(block(x).unique()) == 7
    block.put_on(Hardware(dac=Converter(4, 1.0)))
    assert len(block(x).unique()) == 15


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 0}, "`bits` must be a whole number from 1 to 24, got 0: .* Use None for a converter without steps"),
        ({"bits": 25}, "from 1 to 24, got 25"),
        ({"bits": 7.5}, r"got 7\.5"),
        ({"bits": True}, "got True"),
        ({"range": 0}, "`range` must be positive, got 0: it is the largest value .* None learns it"),
        ({"range": -1.0}, "`range` must be positive, got -1"),
        (
            {"range": (1.0, 1.0)},
            r"`range` must go from 0 or from -r to r, got \(1\.0, 1\.0\): zero has to be",
        ),
        ({"range": (0.2, 1.0)}, r"got \(0\.2, 1\.0\)"),
        ({"range": math.nan}, "`range` must be positive, got nan"),
        ({"bits": 1}, "One bit has two levels, and zero is one of them: it needs a range from 0, got None"),
        ({"noise": -0.1}, r"`noise` must be 0 or more, got -0\.1: it is a standard deviation. Use 0 for none"),
        ({"gain": math.inf}, "`gain` must be 0 or more, got inf"),
        ({"rounding": "up"}, "Unknown rounding 'up'; choose one of 'nearest', 'stochastic'"),
        ({"headroom": 0.5}, r"`headroom` must lie between 1 and 100, got 0\.5"),
        ({"average": 0}, "`average` must be a whole number of at least 1, got 0"),
    ],
)
def test_impossible_converters_say_what_is_wrong(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Converter(**options)


def test_one_bit_between_zero_and_one_is_a_comparator() -> None:
    found = converted(Converter(1, (0.0, 1.0)), torch.tensor([0.2, 0.49, 0.51, 3.0, -1.0]))
    assert found.tolist() == [0, 0, 1, 1, 0]


def test_no_error_enters_a_read_out_that_is_at_its_end() -> None:
    block = EnergyBlock(Hopfield([], identity()).double(), FixedPoint(2))
    for converter in (Converter(6, 1.0), Converter(range=1.0), Converter(6, 1.0, rounding="stochastic")):
        block.put_on(Hardware(adc=converter))
        x = torch.tensor([[0.5, -0.7, 1.5, -3.0]], dtype=torch.float64, requires_grad=True)
        (3 * block(x)).sum().backward()
        assert x.grad[0, 2:].tolist() == [0, 0]
        assert bool((x.grad[0, :2] > 0).all())
