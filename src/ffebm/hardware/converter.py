"""Converters: how numbers become voltages at a block's input, and voltages numbers at its read-outs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from ffebm.checks import brief, check_choice, check_size
from ffebm.hardware.checks import check_between, check_not_negative, check_positive
from ffebm.hardware.draws import Draws

__all__ = ["Converter", "Range", "Rounding"]
__dir__ = __all__.copy

Rounding = Literal["nearest", "stochastic"]
MOST_BITS = 24  # as many as single precision has


@dataclass(frozen=True)
class Range:
    """What a converter can tell apart at its ends: two voltages, one of them zero or the other with its sign changed."""

    low: Tensor
    high: Tensor


@dataclass(frozen=True)
class Converter:
    r"""A DAC or an ADC: noise, an error of its own in offset and gain, saturation, and steps.

    $$v \mapsto q \cdot \mathrm{round}\big(\mathrm{clamp}((1 + g)\, v + o + \sigma \xi,\ low,\ high) / q\big)$$

    With $b$ bits the step is $q = high / (2^b - 1)$ from 0 to $high$, and $q = high / (2^{b-1} - 1)$ from $-high$ to $high$, so
    that zero is a level: aihwkit's convention of $2^b - 2$ steps. Rounding adds an error of about $q^2 / 12$ in variance. The
    backward pass goes straight through, but not where a value is outside of the range.

    Args:
        bits: None has no steps.
        range: from minus this number to it, or a pair of the lowest and the highest: (0, 1) or (-1, 1). None learns it as a
            running maximum of what free phases and inputs reach, from 0 as long as nothing negative has been seen.
        headroom: how many times that maximum a learned range is, so that a nudge does not saturate the largest units.
        noise: the standard deviation of thermal noise, drawn anew at every conversion, in units of what is converted.
        offset: the standard deviation over units of a constant that their converters add; it is drawn once.
        gain: likewise, of the relative error of their gain.
        rounding: `"nearest"`, or `"stochastic"`: up or down with the probability that makes the mean right. Steps smaller than
            a nudge's response then become noise, which averages out over samples, in place of silence.
        average: how often each conversion is repeated, to take the mean: noise falls by the square root, and every repetition
            costs a conversion.

    Source: the steps and the order of noise, clamp and rounding are those of aihwkit's `IOParameters` (Rasch et al. 2021).
    """

    bits: int | None = None
    range: float | tuple[float, float] | None = None
    noise: float = 0.0
    offset: float = 0.0
    gain: float = 0.0
    rounding: Rounding = "nearest"
    average: int = 1
    headroom: float = 1.25

    def __post_init__(self) -> None:
        if self.bits is not None and (
            isinstance(self.bits, bool) or not isinstance(self.bits, int) or not 1 <= self.bits <= MOST_BITS
        ):
            raise ValueError(
                f"`bits` must be a whole number from 1 to {MOST_BITS}, got {brief(self.bits)}: a converter of b bits has 2^b "
                "levels. Use None for a converter without steps."
            )
        self._check_range()
        check_not_negative("noise", self.noise, "a standard deviation")
        check_not_negative("offset", self.offset, "a standard deviation")
        check_not_negative("gain", self.gain, "a standard deviation")
        check_choice("rounding", self.rounding, get_args(Rounding))
        check_size("average", self.average)
        check_between("headroom", self.headroom, 1, 100, "how many times the largest value a range is")

    def _check_range(self) -> None:
        if isinstance(self.range, tuple):
            low, high = self.range if len(self.range) == 2 else (0.0, 0.0)
            if not (low < high and (low == 0 or low == -high)):
                raise ValueError(
                    f"`range` must go from 0 or from -r to r, got {brief(self.range)}: zero has to be one of the levels. Use "
                    "(0, 1) for what is never negative, (-1, 1) for what may be, or None to learn it."
                )
        elif self.range is not None:
            check_positive("range", self.range, "the largest value that a converter tells apart; None learns it")
        if self.bits == 1 and (not isinstance(self.range, tuple) or self.range[0] < 0):
            raise ValueError(
                f"One bit has two levels, and zero is one of them: it needs a range from 0, got {brief(self.range)}. Use "
                "range=(0, 1), or more bits."
            )

    @property
    def is_ideal(self) -> bool:
        """Whether what goes in comes out."""
        return self.bits is None and self.range is None and self.noise == self.offset == self.gain == 0

    @property
    def learns(self) -> bool:
        """Whether its range follows what it has seen: without steps there is nothing to be spread over one."""
        return self.range is None and self.bits is not None

    def span(self, lowest: Tensor, highest: Tensor) -> Range | None:
        """Its range, given the extremes of what it has seen; None where it has no ends."""
        if self.range is None:
            largest = self.headroom * torch.maximum(highest, -lowest)
            learned = Range(torch.where(lowest < 0, -largest, torch.zeros_like(largest)), largest)
            return None if self.bits is None else learned
        low, high = self.range if isinstance(self.range, tuple) else (-self.range, self.range)
        return Range(highest.new_tensor(low), highest.new_tensor(high))

    def step(self, span: Range | None) -> Tensor | None:
        """The difference between two levels; None where there are none."""
        if self.bits is None or span is None:
            return None
        steps = torch.where(span.low < 0, max(2 ** (self.bits - 1) - 1, 1), 2**self.bits - 1)
        return span.high / steps

    def inside(self, converted: Tensor, span: Range) -> Tensor:
        """Where a conversion did not end at the largest level."""
        step = self.step(span)
        return converted.abs() < (span.high * (1 - 1e-6) if step is None else span.high - step / 2)

    def convert(self, values: Tensor, span: Range | None, draws: Draws, where: object) -> Tensor:
        """What comes out; differentiable.

        Args:
            where: the name of this bank of converters, one for each unit.
        """
        if self.gain:
            values = values * (1 + self.gain * draws.made(values[:1], where, "gain"))
        if self.offset:
            values = values + self.offset * draws.made(values[:1], where, "offset")
        repeats = [self._once(values, span, draws) for _ in range(self.average)]
        return repeats[0] if len(repeats) == 1 else torch.stack(repeats).mean(0)

    def _once(self, values: Tensor, span: Range | None, draws: Draws) -> Tensor:
        if self.noise:
            values = values + self.noise * draws.normal(values)
        if span is None:
            return values
        values = values.clamp(span.low, span.high)
        step = self.step(span)
        if step is None or not bool(step > 0):  # nothing but zeros has been seen
            return values
        if self.rounding == "stochastic":
            # Rounding what is within half a step of a value, at random, is up or down with the right probability.
            values = values + step * (draws.uniform(values) - 0.5)
        low, high = (round((end / step).item()) for end in (span.low, span.high))
        return torch.fake_quantize_per_tensor_affine(values, step.item(), 0, low, high)
