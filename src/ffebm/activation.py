r"""Activations $\sigma$ with the potential $G$ that makes them appear in a relaxation: $G' = \sigma^{-1}$."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ffebm.tracing import transforming

__all__ = ["Activation", "clamp", "identity", "sigmoid", "tanh"]
__dir__ = __all__.copy


@dataclass(frozen=True)
class Activation:
    r"""A monotone function of one layer and the potential whose derivative inverts it.

    $$G'(s) = \sigma^{-1}(s)$$

    Minimising $G(s) - s\,v$ over $s$ gives $s = \sigma(v)$: that is how $\sigma$ enters a layer of an energy.
    Where $\sigma$ saturates, $G$ is infinite outside its range; `potential` is only ever evaluated inside.

    Paper: Eq. [def:energy-block-k-version-1], appendix A.4 [subsec:details-model]
    """

    name: str
    sigma: Callable[[Tensor], Tensor]
    potential: Callable[[Tensor], Tensor]  # elementwise, same shape as its argument
    slope: float | None = None  # where σ is a straight line of this slope, cut off outside [low, high]
    low: float = -math.inf
    high: float = math.inf
    holomorphic: bool = False  # whether σ is one function of complex numbers, without kinks
    steepest: float | None = None  # the largest slope of σ, where it is no straight line; None where it is not known

    def step(self, v: Tensor, s: Tensor, omega: float = 1.0) -> Tensor:
        r"""The next state of a layer in state `s` under the current `v`: ω times the way to $\sigma(v)$, inside the box.

        Where σ is straight, the way goes to $a v$ before it is cut off. That is projected over-relaxation: for ω between 0
        and 2, moving one layer so never raises an energy that is quadratic in it.
        """
        if omega == 1:
            return self.sigma(v)
        moved = torch.lerp(s, self.sigma(v) if self.slope is None else self.slope * v, omega)
        return moved if self._open else moved.clamp(self.low, self.high)

    def step_(self, v: Tensor, s: Tensor, omega: float = 1.0) -> Tensor:
        """`step`, which may overwrite `v`: for sweeps that nobody records."""
        if self.slope is None or transforming():  # which know no clamping in place
            return self.step(v, s, omega)
        if self.slope != 1:
            v.mul_(self.slope)
        if omega != 1:
            torch.lerp(s, v, omega, out=v)
        return v if self._open else v.clamp_(self.low, self.high)

    def respond_(self, v: Tensor, s: Tensor) -> Tensor:
        r"""How far a layer at rest in state `s` gives way to a small current `v`, which may be overwritten: $v / G''(s)$.

        Units that are clamped stay.
        """
        if self.slope is not None:
            v = v if self.slope == 1 else v.mul_(self.slope)
            return v if self._open else torch.ops.aten.hardtanh_backward.grad_input(v, s, self.low, self.high, grad_input=v)
        with torch.inference_mode(False), torch.enable_grad():
            s = s.detach().clone().requires_grad_()
            (first,) = torch.autograd.grad(self.potential(s).sum(), s, create_graph=True)
            (second,) = torch.autograd.grad(first.sum(), s)
        return v.div_(second)

    @property
    def gain(self) -> float | None:
        """By how much it lengthens a small step at most; None where that is not known."""
        return self.steepest if self.slope is None else self.slope

    @property
    def signed(self) -> bool:
        """Whether a layer may be negative."""
        return self.low < 0

    @property
    def _open(self) -> bool:
        return (self.low, self.high) == (-math.inf, math.inf)

    def __repr__(self) -> str:
        return self.name


def clamp(slope: float = 1.0, low: float = 0.0, high: float = 1.0) -> Activation:
    r"""The hard activation $\sigma(v) = \min(\max(a v, low), high)$, with $G(s) = s^2 / 2a$ on $[low, high]$.

    For an energy with no closed-form drive it means projected gradient descent with step $a$ on that box.

    Paper: Table [tab:activation]; `clamp(1)` is "ernoult", `clamp(0.5)` is "laborieux"
    """
    if not (math.isfinite(slope) and slope > 0):
        raise ValueError(f"`slope` must be positive and finite, got {slope}: the potential s²/(2·slope) needs it.")
    if not low < high:
        raise ValueError(f"`low` must be below `high`, got [{low}, {high}]: the layer would have no room to move.")
    box = "" if (low, high) == (0.0, 1.0) else f", low={low:g}, high={high:g}"
    sigma, potential = partial(_clamp, slope, low, high), partial(_parabola, slope)
    return Activation(f"clamp(slope={slope:g}{box})", sigma, potential, slope, low, high)


def identity(slope: float = 1.0) -> Activation:
    r"""The unclamped activation $\sigma(v) = a v$ with $G(s) = s^2 / 2a$; the paper leaves block outputs like this."""
    name = "identity" if slope == 1 else f"identity(slope={slope:g})"
    return replace(clamp(slope, -math.inf, math.inf), name=name, holomorphic=True)


def sigmoid() -> Activation:
    r"""The logistic function, with the negative entropy $G(s) = s \ln s + (1 - s) \ln(1 - s)$."""
    return Activation("sigmoid", torch.sigmoid, _negative_entropy, low=0.0, high=1.0, holomorphic=True, steepest=0.25)


def tanh() -> Activation:
    r"""The hyperbolic tangent, with $G(s) = s\,\mathrm{artanh}(s) + \tfrac12 \ln(1 - s^2)$."""
    return Activation("tanh", torch.tanh, _tanh_potential, low=-1.0, high=1.0, holomorphic=True, steepest=1.0)


# The potentials are module-level functions, not closures, so that a model can be pickled and copied.


def _clamp(slope: float, low: float, high: float, v: Tensor) -> Tensor:
    v = v if slope == 1 else slope * v
    return v if (low, high) == (-math.inf, math.inf) else v.clamp(low, high)


def _parabola(slope: float, s: Tensor) -> Tensor:
    return s.square() / (2 * slope)


def _negative_entropy(s: Tensor) -> Tensor:
    return -torch.special.entr(s) - torch.special.entr(1 - s)


def _tanh_potential(s: Tensor) -> Tensor:
    # ½(1+s)ln(1+s) + ½(1−s)ln(1−s): the same function, without ∞ − ∞ where s saturates to ±1.
    return -(torch.special.entr(1 + s) + torch.special.entr(1 - s)) / 2
