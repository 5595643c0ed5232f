"""The strength of nudges, chosen by readings."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ffebm.checks import brief, check_size
from ffebm.nudge import Nudge
from ffebm.relaxation import Relaxation
from ffebm.state import State, of_samples
from ffebm.system import Phase, System

__all__ = ["AutomaticBeta"]
__dir__ = __all__.copy


@dataclass(frozen=True)
class AutomaticBeta:
    r"""Nudge each block, at each batch, as strongly as its readings say is best.

    A few samples are nudged both ways by several strengths. Of the response, half of the difference is odd, $o = (s_\beta -
    s_{-\beta}) / 2$, and the rest even, $e = (s_\beta + s_{-\beta}) / 2 - s_\star$. To first order a response is odd. What is
    even cannot be the gradient's: noise and steps of converters, which are large where β is small, and units at kinks and
    read-outs at the ends of their ranges, where β is large. The strength is taken that has the least

    $$\frac1L \sum_\ell \frac{\|e_\ell\|^2}{\|e_\ell\|^2 + \|o_\ell\|^2}$$

    in the mean over layers. Readings are all that this asks for, so it works on any system.

    Args:
        strengths: that are tried.
        samples: that they are tried on, the first of a batch. Each costs two read-outs of every layer per strength: 96 by
            default, where a batch of 64 takes 128 by itself.
    """

    strengths: tuple[float, ...] = (0.02, 0.06, 0.2, 0.6, 2.0, 6.0)
    samples: int = 8

    def __post_init__(self) -> None:
        usable = [isinstance(b, int | float) and math.isfinite(b) and b > 0 for b in self.strengths]
        if not isinstance(self.strengths, tuple) or len(self.strengths) < 2 or not all(usable):
            raise ValueError(
                f"`strengths` must be two or more positive numbers in a tuple, got {brief(self.strengths)}: one of them is "
                "chosen. For a single strength use `beta`."
            )
        check_size("samples", self.samples)

    @property
    def phases(self) -> tuple[int, int]:
        """How many nudged phases are tried, and on how many samples."""
        return 2 * len(self.strengths), self.samples

    @torch.no_grad()
    def choose(
        self, system: System, x: Tensor, free: State, nudge: Callable[[slice], Nudge], relax: Relaxation, *, latched: bool
    ) -> float:
        """The best of the strengths for these samples; `nudge` makes that of some of them.

        Args:
            latched: whether choices that the system makes are held.
        """
        part = slice(0, self.samples)
        pull, some = nudge(part), of_samples(free, part)
        system = system.latched(some) if latched else system
        phases = [Phase(pull, sign * strength) for strength in self.strengths for sign in (1.0, -1.0)]
        readings = [reading.state for reading in system.settle(x[part], phases, start=some, relax=relax)]
        scores = [_even_part(some, *pair) for pair in zip(readings[::2], readings[1::2], strict=True)]
        return self.strengths[int(torch.stack(scores).argmin())]


def _even_part(free: State, high: State, low: State) -> Tensor:
    """The share of a response that is even, in the mean over layers; all of it where nothing moves."""
    shares: list[Tensor] = []
    for s, up, down in zip(free, high, low, strict=True):
        odd, even = ((up - down) / 2).square().sum(), ((up + down) / 2 - s).square().sum()
        shares.append(torch.where(odd + even > 0, even / (odd + even), 1.0))
    return torch.stack(shares).mean()
