"""Updates by pulses: how devices follow what an optimiser wants."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ffebm.checks import check_size, check_type
from ffebm.hardware.checks import check_between, check_not_negative, check_positive

__all__ = ["Pulses"]
__dir__ = __all__.copy


@dataclass(frozen=True)
class Pulses:
    r"""Devices change by pulses of a set size, not by what was asked for: wrap an optimiser by `pulses.attach(optimiser)`.

    A wanted change $\Delta$ becomes $n$ pulses up or down, $n = \Delta / q$ rounded up or down at random, so that the mean is
    right. Every pulse changes a weight by

    $$q\, (1 - a_\uparrow w / w_{\max}) \text{ up}, \qquad q\, (1 + a_\downarrow w / w_{\max}) \text{ down},$$

    which shrinks towards the end that it leads to, and each misses by a part of $q$. Weights stay between $\pm w_{\max}$.

    Args:
        step: $q$, the change by one pulse at zero, in parts of `largest`.
        largest: $w_{\max}$, the largest weight that a device holds.
        noise: the standard deviation of one pulse, in parts of it.
        up: $a_\uparrow$, how much pulses up shrink: 0 not at all, 1 to nothing at the end.
        down: $a_\downarrow$, likewise for pulses down.
        most: pulses of one update.

    Source: the linear-step device of aihwkit (Rasch et al. 2021), of which 1 for `up` and `down` is the soft-bounds device.
    """

    step: float = 0.002
    largest: float = 1.0
    noise: float = 0.0
    up: float = 0.0
    down: float = 0.0
    most: int = 31

    def __post_init__(self) -> None:
        check_between("step", self.step, 1e-9, 0.5, "what one pulse changes a weight by, in parts of the largest")
        check_positive("largest", self.largest, "the largest weight that a device holds")
        check_not_negative("noise", self.noise, "a standard deviation in parts of a pulse")
        check_between("up", self.up, 0, 1, "how much pulses up shrink towards the upper end")
        check_between("down", self.down, 0, 1, "how much pulses down shrink towards the lower end")
        check_size("most", self.most)

    @classmethod
    def ecram(cls, largest: float = 1.0) -> Pulses:
        """Lithium-based electrochemical memory. Source: Tang et al. (2018), by aihwkit's `EcRamPresetDevice`."""
        return cls(0.002, largest, 0.3, 0.1153, 0.5085)

    @classmethod
    def oxide_ecram(cls, largest: float = 1.0) -> Pulses:
        """Metal-oxide electrochemical memory. Source: Kim et al. (2019), by aihwkit's `EcRamMOPresetDevice`."""
        return cls(2.8214e-4, largest, 2.0, 0.4152, 0.7342)

    @classmethod
    def capacitor(cls, largest: float = 1.0) -> Pulses:
        """Capacitors, without their leakage. Source: Li et al. (2018), by aihwkit's `CapacitorPresetDevice`."""
        return cls(0.005, largest, 0.3, 0.05, 0.05)

    @classmethod
    def reram(cls, largest: float = 1.0) -> Pulses:
        """Resistive memory with soft bounds. Source: Gong et al. (2018), by aihwkit's `ReRamSBPresetDevice`."""
        return cls(0.002, largest, 3.75, 1.0, 1.0)

    def changed(self, weight: Tensor, wanted: Tensor) -> Tensor:
        """The weight after pulses for a wanted change; draws come from torch's generator."""
        size = self.step * self.largest
        asked = (wanted.abs() / size).clamp(max=self.most)
        pulses = (asked + torch.rand_like(asked)).floor().clamp(max=self.most)
        rising = wanted > 0
        shrink = torch.where(rising, weight.new_tensor(self.up), weight.new_tensor(self.down))
        # n pulses that shrink by a constant part of what is left come closer to the end by a power of n.
        part = self.step * shrink
        linear = pulses * size
        end = self.largest / torch.where(shrink > 0, shrink, 1.0)
        sign = torch.where(rising, weight.new_ones(()), weight.new_tensor(-1.0))
        curved = (end - sign * weight) * -torch.expm1(pulses * torch.log1p(-part))
        moved = sign * torch.where(shrink > 0, curved, linear)
        if self.noise:
            moved = moved + self.noise * size * pulses.sqrt() * torch.randn_like(weight)
        return (weight + moved).clamp(-self.largest, self.largest)

    def attach(self, optimiser: Optimizer, parameters: Iterable[Tensor]) -> list[RemovableHandle]:
        """Have an optimiser's steps change these parameters by pulses; the others, and its own state, are as they were.

        Returns:
            what takes it off again: call `remove` of each.
        """
        check_type("optimiser", optimiser, Optimizer, "torch.optim.SGD(...)")
        pulsed = list(parameters)
        before: list[Tensor] = []

        def remember(*_: Any) -> None:
            before[:] = [p.detach().clone() for p in pulsed]

        @torch.no_grad()
        def write(*_: Any) -> None:
            for p, old in zip(pulsed, before, strict=True):
                p.copy_(self.changed(old, p - old))
            before.clear()

        return [optimiser.register_step_pre_hook(remember), optimiser.register_step_post_hook(write)]
