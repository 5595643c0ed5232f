r"""Diodes between a node and ground: they keep it on its side of zero volts, sharply or softly."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from ffebm.checks import brief
from ffebm.circuit import THERMAL_VOLTAGE, DiodeModel, Junction, StraightLines
from ffebm.energy.scale import Scale

__all__ = ["Diode", "Exponential", "Ideal", "Threshold", "walls"]
__dir__ = __all__.copy

BOLTZMANN = 1.380649e-23  # joules a kelvin
CHARGE = 1.602176634e-19  # coulombs of an electron


@dataclass(frozen=True)
class Diode(ABC):
    r"""A diode at every node, by the current $i(u)$ that it lets through at the voltage $u$ in its forward direction.

    At a node of sign $+1$ it leads from ground to the node, $u = -v$, and keeps $v$ from falling much below zero. At one of
    sign $-1$ it leads to ground, $u = v$. A node of sign 0 has none. The energy gains the co-content $\int_0^u i$.

    Voltages, conductances and signs are tensors that broadcast; voltages are in the units of the block.
    """

    rigid = False  # whether voltages on the wrong side are impossible

    @abstractmethod
    def content(self, voltage: Tensor, signs: Tensor) -> Tensor:
        """The co-content at every node."""

    @abstractmethod
    def settle(self, target: Tensor, load: Tensor, signs: Tensor) -> Tensor:
        r"""Where a node rests that a conductance $a$ draws to $t$: the minimum of $\tfrac a2 (v - t)^2$ + co-content."""

    @abstractmethod
    def current(self, voltage: Tensor, signs: Tensor) -> Tensor:
        """The current that it leads into every node; it leads out of it where negative."""

    @abstractmethod
    def slope(self, voltage: Tensor, load: Tensor, signs: Tensor) -> Tensor:
        r"""By how much a node at rest gives way to a small current: $1 / (a + i'(u))$."""

    @abstractmethod
    def model(self, ideal: DiodeModel) -> DiodeModel:
        """The diode in a circuit; `ideal` stands in for one that is."""

    def in_units(self, scale: Scale) -> Diode:
        """The same diode with its numbers in units of a block."""
        return self


@final
@dataclass(frozen=True)
class Ideal(Diode):
    """A wall: it conducts without any voltage one way, and not at all the other."""

    rigid = True

    def content(self, voltage: Tensor, signs: Tensor) -> Tensor:
        return torch.zeros_like(voltage)

    def settle(self, target: Tensor, load: Tensor, signs: Tensor) -> Tensor:
        lows, highs = walls(signs, target)
        return torch.clamp(target, lows, highs)

    def current(self, voltage: Tensor, signs: Tensor) -> Tensor:
        raise TypeError("An ideal diode leads whatever current is needed: no voltage tells which. Take `Exponential`.")

    def slope(self, voltage: Tensor, load: Tensor, signs: Tensor) -> Tensor:
        return torch.where((signs == 0) | (voltage * signs > 0), 1 / load, 0.0)

    def model(self, ideal: DiodeModel) -> DiodeModel:
        return ideal


@final
@dataclass(frozen=True)
class Threshold(Diode):
    r"""Two straight lines: $i(u) = g_{off}\, u$, and beyond an offset $g_{on}\, (u - u_0)$ more.

    Args:
        offset: $u_0$, in volts.
        on: $g_{on}$, in siemens.
        off: $g_{off}$, in siemens.
    """

    offset: float = 0.0
    on: float = 10.0
    off: float = 0.0

    def __post_init__(self) -> None:
        for name, value, least in (("offset", self.offset, 0), ("on", self.on, 0), ("off", self.off, 0)):
            if not (math.isfinite(value) and value >= least) or (name == "on" and value == 0):
                raise ValueError(f"`{name}` must be {'positive' if name == 'on' else '0 or more'}, got {brief(value)}.")

    def content(self, voltage: Tensor, signs: Tensor) -> Tensor:
        forward = -signs * voltage
        return self.off / 2 * forward.square() + self.on / 2 * (forward - self.offset).clamp(min=0).square()

    def settle(self, target: Tensor, load: Tensor, signs: Tensor) -> Tensor:
        forward = -signs * target
        blocking = forward * load / (load + self.off)
        conducting = (forward * load + self.on * self.offset) / (load + self.off + self.on)
        return torch.where(signs == 0, target, -signs * torch.minimum(blocking, conducting))

    def current(self, voltage: Tensor, signs: Tensor) -> Tensor:
        forward = -signs * voltage
        return signs * (self.off * forward + self.on * (forward - self.offset).clamp(min=0))

    def slope(self, voltage: Tensor, load: Tensor, signs: Tensor) -> Tensor:
        conducts = -signs * voltage > self.offset
        return torch.where(signs == 0, 1 / load, 1 / (load + self.off + self.on * conducts))

    def model(self, ideal: DiodeModel) -> DiodeModel:
        return StraightLines(self.offset, self.on + self.off, self.off)

    def in_units(self, scale: Scale) -> Threshold:
        return Threshold(self.offset / scale.volts, self.on / scale.siemens, self.off / scale.siemens)


@final
@dataclass(frozen=True)
class Exponential(Diode):
    r"""Shockley's diode, $i(u) = I_s (e^{u / (N V_T)} - 1)$.

    A node then rests at $u = n (\ln \omega(z) - \ln \tfrac{I_s}{n a})$ with Wright's function, $\omega + \ln \omega = z$, which
    needs no search and knows no overflow.

    Args:
        saturation: $I_s$, in amperes.
        ideality: $N$; towards 0 the diode becomes ideal.
        kelvin: its temperature, which makes the thermal voltage $V_T = k T / q$: 25.85 mV at 300 K.
    """

    saturation: float = 1e-12
    ideality: float = 1.0
    kelvin: float = 300.15

    def __post_init__(self) -> None:
        for name in ("saturation", "ideality", "kelvin"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"`{name}` must be positive, got {brief(value)}.")

    @property
    def knee(self) -> float:
        """$N V_T$ in volts: so much more voltage makes the current e times as large."""
        return self.ideality * self.kelvin * BOLTZMANN / CHARGE

    def content(self, voltage: Tensor, signs: Tensor) -> Tensor:
        forward = -signs * voltage
        return self.saturation * (self.knee * torch.expm1(forward / self.knee) - forward)

    def settle(self, target: Tensor, load: Tensor, signs: Tensor) -> Tensor:
        with torch.no_grad():
            voltage = self._settled(target, load, signs)
        if not torch.is_grad_enabled():
            return voltage
        # A Newton step from the solution moves nothing, and has the derivative of the solution.
        residual = load * (voltage - target) - self.current(voltage, signs)
        return voltage - (residual - residual.detach()) * self.slope(voltage, load, signs).detach()

    def _settled(self, target: Tensor, load: Tensor, signs: Tensor) -> Tensor:
        ratio = self.saturation / (self.knee * load)
        asymptote = -signs * target + self.saturation / load  # where it would be, did it only block
        omega = _wright_omega(torch.log(ratio) + asymptote / self.knee)
        conducting = self.knee * (torch.log(omega) - torch.log(ratio))
        blocking = asymptote - self.knee * omega
        return torch.where(signs == 0, target, -signs * torch.where(omega > 1, conducting, blocking))

    def current(self, voltage: Tensor, signs: Tensor) -> Tensor:
        return signs * self.saturation * torch.expm1(-signs * voltage / self.knee)

    def slope(self, voltage: Tensor, load: Tensor, signs: Tensor) -> Tensor:
        steepness = signs.abs() * self.saturation / self.knee * torch.exp(-signs * voltage / self.knee)
        return 1 / (load + steepness)

    def model(self, ideal: DiodeModel) -> DiodeModel:
        return Junction(self.saturation, self.knee / THERMAL_VOLTAGE)

    def in_units(self, scale: Scale) -> Exponential:
        return Exponential(self.saturation / scale.amperes, self.ideality, self.kelvin / scale.volts)


def walls(signs: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """The voltages between which ideal diodes keep every node."""
    zero, far = like.new_zeros(()), like.new_full((), math.inf)
    return torch.where(signs > 0, zero, -far), torch.where(signs < 0, zero, far)


def _wright_omega(z: Tensor) -> Tensor:
    r"""The solution of $\omega + \ln \omega = z$, by three steps of Fritsch, Shafer and Crowley (1973), of fourth order."""
    low = torch.exp(z.clamp(max=1))
    # Around 1 the two estimates meet: Lambert's series below, and z − ln z above.
    omega = torch.where(
        z < -2, low, torch.where(z > math.pi, z - torch.log(z.clamp(min=1)), 1 + (z - 1) / 2 + (z - 1) ** 2 / 16)
    )
    tiny = torch.finfo(z.dtype).tiny
    omega = omega.clamp(min=tiny)
    for _ in range(3):
        rest = z - omega - torch.log(omega)
        more = 1 + omega
        term = 2 * more * (more + 2 / 3 * rest)
        omega = (omega * (1 + rest / more * (term - rest) / (term - 2 * rest))).clamp(min=tiny)
    return torch.where(z < math.log(tiny) / 2, low, omega)
