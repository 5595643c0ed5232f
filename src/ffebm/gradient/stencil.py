"""Stencils: at which strengths equilibrium propagation nudges, and what it contrasts."""

from __future__ import annotations

import cmath
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ffebm.checks import check_size
from ffebm.nudge import Strength
from ffebm.state import State

__all__ = ["Stencil"]
__dir__ = __all__.copy


@dataclass(frozen=True)
class Stencil:
    r"""Nudged states $s_k$ at the strengths $\beta\, p_k$, and how they make a derivative by $\beta$ at 0.

    $$\frac{ds}{d\beta} \approx \frac1\beta \sum_k c_k\, (s_k - s_\star), \qquad \sum_k c_k\, p_k = 1$$

    Make one by its name: `Stencil.centered()`, `one_sided()`, `random_sign()`, `small_signal()`,
    `roots(n)`.

    Args:
        name: how it is shown.
        points: $p_k$, in units of β.
        coefficients: $c_k$, of the nudged states.
        linearised: contrast states on both sides of the free one, as far from it as the derivative says, instead of the states
            themselves. The product of two displacements, which is an error of order β, is then left out.
        random: whether each sample draws a sign for its strengths.
        small: whether the nudge is infinitely small: the response of the block's tangent at the free state.
    """

    name: str
    points: tuple[complex, ...]
    coefficients: tuple[complex, ...]
    linearised: bool = False
    random: bool = False
    small: bool = False

    def __post_init__(self) -> None:
        total = sum(c * p for c, p in zip(self.coefficients, self.points, strict=True))
        if abs(total.real - 1) > 1e-9 or (not self.linearised and len(self.points) > 2):
            raise ValueError(
                f"A stencil needs Σ c·p = 1, and at most two points unless it is linearised; got {total.real:g} from points "
                f"{self.points}. Use `Stencil.centered()`, `one_sided()`, `random_sign()` or `roots(n)`."
            )

    @classmethod
    def centered(cls) -> Stencil:
        """Nudge by β and by −β, and contrast the two: an error of order β²."""
        return cls("centered", (1, -1), (0.5, -0.5))

    @classmethod
    def one_sided(cls, sign: int = 1, *, linearised: bool = True) -> Stencil:
        """Nudge once, and contrast with the free state: half the work in the nudged phase.

        It needs a settled free phase: what still moves there enters the contrast. Where activations are straight lines, such as
        `clamp`, it is exact until a unit crosses a kink.

        Args:
            sign: 1 or −1, of the nudge.
            linearised: leave the product of displacements out, which makes an error of order β.
        """
        if sign not in (1, -1):
            raise ValueError(f"`sign` must be 1 or -1, got {sign}: the strength of the nudge is `beta`.")
        return cls("positive" if sign > 0 else "negative", (sign,), (sign,), linearised)

    @classmethod
    def random_sign(cls, *, linearised: bool = True) -> Stencil:
        """Nudge once, with a sign that every sample draws: errors of order β cancel in the mean over draws.

        Signs come from torch's generator: `torch.manual_seed` repeats them.
        """
        return cls("random sign", (1,), (1,), linearised, random=True)

    @classmethod
    def small_signal(cls) -> Stencil:
        """Nudge once, by so little that no unit reaches a kink: half the work in the nudged phase, and no error of β at all.

        What settles is the tangent of the block at its free state, as in the small-signal analysis of a circuit. Units that
        are clamped stay, β plays no part, and what an unsettled free phase still moves by does not enter. Only simulations have
        a tangent.
        """
        return cls("small signal", (1,), (1,), linearised=True, small=True)

    @classmethod
    def roots(cls, n: int) -> Stencil:
        r"""Nudge by complex strengths $\beta\, e^{2 \pi i k / n}$ all around a circle: an error of order $\beta^n$.

        This is holomorphic equilibrium propagation. It needs activations without kinks: `sigmoid`, `tanh`, `identity`.
        States at conjugate strengths are conjugate, so half of the circle is enough.
        """
        check_size("n", n, least=3)
        points = [cmath.exp(2j * cmath.pi * k / n) for k in range(n // 2 + 1)]
        points = [point.real if 2 * k in (0, n) else point for k, point in enumerate(points)]
        # (1/n) Σ s_k / p_k over the whole circle; a point off the real axis counts for its conjugate, too.
        coefficients = [(1 if isinstance(point, float) else 2) / (n * point) for point in points]
        return cls(f"{n} roots", tuple(points), tuple(coefficients), linearised=True)

    @property
    def is_complex(self) -> bool:
        return any(isinstance(point, complex) for point in self.points)

    def strengths(self, beta: float, like: Tensor) -> list[Strength]:
        """The strength of every nudge; one for each of a batch of samples `like` these where signs are random."""
        if self.small:
            return [1.0]  # the response is in proportion, however strong
        if not self.random:
            return [beta * point for point in self.points]
        signs = 1 - 2 * torch.randint(2, like.shape[:1], device=like.device).to(like.dtype)
        return [beta * point * signs for point in self.points]

    def pair(self, free: State, nudged: Sequence[State]) -> tuple[State, State]:
        """Two states whose contrast, divided by `reach`, is the gradient."""
        if not self.linearised:
            return nudged[0], nudged[1] if len(nudged) > 1 else free
        steps = [self._step(*layers) / 2 for layers in zip(free, *nudged, strict=True)]
        pairs = [(s + step, s - step) for s, step in zip(free, steps, strict=True)]
        return tuple(high for high, _ in pairs), tuple(low for _, low in pairs)

    def _step(self, free: Tensor, *nudged: Tensor) -> Tensor:
        """The derivative by the strength, times β."""
        terms = [c * (s - free) for c, s in zip(self.coefficients, nudged, strict=True)]
        total = torch.stack(terms).sum(0) if len(terms) > 1 else terms[0]
        return total.real if total.is_complex() else total

    def reach(self, strengths: Sequence[Strength]) -> Strength:
        """How far apart the two states of `pair` are, in strengths of the nudge."""
        if self.linearised:
            return strengths[0] / self.points[0]
        return strengths[0] - strengths[1] if len(strengths) > 1 else strengths[0]

    def mean(self, values: Sequence[Tensor]) -> Tensor:
        """The mean of something over the nudged states, as their contrast weighs it."""
        weights = [(c * p).real for c, p in zip(self.coefficients, self.points, strict=True)]
        return torch.stack([weight * value for weight, value in zip(weights, values, strict=True)]).sum(0)
