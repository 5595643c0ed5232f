"""Devices as they were measured: phase-change memory and resistive memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from ffebm.checks import brief
from ffebm.hardware.checks import check_not_negative
from ffebm.hardware.devices.device import Cells, Device
from ffebm.hardware.draws import Draws

__all__ = ["PhaseChange", "ResistiveMemory"]
__dir__ = __all__.copy

Age = Literal["second", "day", "two days"]


@dataclass(frozen=True)
class PhaseChange(Device):
    r"""Phase-change memory: noise of writing, drift, and 1/f noise, all depending on the conductance $x = g / g_{\max}$.

    Writing: $\sigma = (0.26348 + 1.9650\, x - 1.1731\, x^2) / 25$. Drift: $x\, (1 + t / 20\,\mathrm{s})^{-\nu}$ with
    $\nu = 0.0244 - 0.0155 \ln x$ between 0.049 and 0.1, and a spread of $-0.0059 - 0.0125 \ln x$ between 0.008 and 0.045.
    Noise: $x \min(0.0088 / x^{0.65}, 0.2) \sqrt{\ln((t' + t_r) / 2 t_r)}$ at $t' = t + 20$ s, with $t_r$ = 250 ns.

    1/f noise is slow: it is drawn once a step, and free and nudged phases see the same.

    Args:
        time: $t$, seconds since 20 s after writing.
        scale: of all noise: 0 leaves the mean of drift alone.

    Source: `PCMLikeNoiseModel` of aihwkit, fitted to a million devices (Nandakumar et al. 2019; Joshi et al. 2020); 25 µS.
    """

    FIRST: ClassVar[float] = 20.0
    READ: ClassVar[float] = 250e-9
    writes: ClassVar[bool] = True

    time: float = 0.0
    scale: float = 1.0

    def check(self) -> None:
        check_not_negative("time", self.time, "a time in seconds, from 20 s after writing on")
        check_not_negative("scale", self.scale, "what noise is multiplied by")

    def written(self, cells: Cells, draws: Draws, name: str) -> Cells:
        return Cells(*(self._held(g, draws) for g in cells))

    def _held(self, aim: Tensor, draws: Draws) -> Tensor:
        deviation = (0.26348 + 1.9650 * aim - 1.1731 * aim.square()) / 25
        g = (aim + self.scale * deviation * draws.normal(aim)).clamp(min=0)
        log = aim.clamp(min=1e-7).log()
        spread = self.scale * (-0.0125 * log - 0.0059).clamp(0.008, 0.045) * draws.normal(aim)
        exponent = ((0.0244 - 0.0155 * log).clamp(0.049, 0.1) + spread).abs()
        later = g * (1 + self.time / self.FIRST) ** -exponent
        flicker = (0.0088 / g.pow(0.65).clamp(min=1e-3)).clamp(max=0.2)
        since = math.sqrt(math.log((self.time + self.FIRST + self.READ) / (2 * self.READ)))
        return (later + later * self.scale * flicker * since * draws.normal(aim)).clamp(min=0)


@dataclass(frozen=True)
class ResistiveMemory(Device):
    r"""Resistive memory (ReRAM): cells spread around their aim by a polynomial of $x = g / g_{\max}$, wider as they age.

    After a second $\sigma = (0.348 + 16.030\, x - 43.853\, x^2 + 45.393\, x^3 - 16.815\, x^4) / 40$.

    Args:
        age: since writing: `"second"`, `"day"` or `"two days"`.
        scale: of the spread.

    Source: `ReRamWan2022NoiseModel` of aihwkit, fitted to the figures of Wan et al., Nature 608 (2022); 40 µS.
    """

    writes: ClassVar[bool] = True
    POLYNOMIALS: ClassVar[dict[str, tuple[float, ...]]] = {
        "second": (0.348, 16.030, -43.853, 45.393, -16.815),
        "day": (0.701, 22.086, -50.773, 47.095, -16.458),
        "two days": (0.782, 20.274, -43.507, 37.062, -11.934),
    }

    age: Age = "second"
    scale: float = 1.0

    def check(self) -> None:
        if self.age not in get_args(Age):
            raise ValueError(
                f"`age` must be one of {', '.join(map(repr, get_args(Age)))}, got {brief(self.age)}: cells were measured then, "
                "and there is no law for the time between."
            )
        check_not_negative("scale", self.scale, "what the spread is multiplied by")

    def written(self, cells: Cells, draws: Draws, name: str) -> Cells:
        powers = self.POLYNOMIALS[self.age]
        held: list[Tensor] = []
        for aim in cells:
            deviation = torch.stack([c * aim.pow(power) for power, c in enumerate(powers)]).sum(0).clamp(min=0) / 40
            held.append((aim + self.scale * deviation * draws.normal(aim)).clamp(min=0))
        return Cells(*held)
