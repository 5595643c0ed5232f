r"""Nudges: the small force $\beta\, \partial_s C$ that tilts an energy towards (or away from) a lower cost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from ffebm.energy import State, per_sample


class Cost(Protocol):
    """The loss of every sample as a function of a block's output and the target, shape (B,)."""

    def __call__(self, output: Tensor, y: Tensor) -> Tensor: ...


class Nudge(ABC):
    """A force on the layers of a block, sample by sample."""

    @abstractmethod
    def force(self, state: State, layer: int) -> Tensor | None:
        """What a sweep subtracts from the drive of this layer (0-based); None for a layer that is left alone."""

    def part(self, samples: slice) -> Nudge | None:
        """The nudge of these samples alone, or None where that cannot be told: then all relax together."""
        return None


@dataclass(frozen=True)
class Stationary(Nudge):
    r"""A constant force: the energy gains $\beta\, s \cdot \delta$.

    Args:
        beta: the strength for every sample, shape (B,).
        deltas: the error signal at every layer, or None where there is none; for B samples, or for a part of B that is
            repeated, one copy of the batch after the other.

    Paper: Theorem [theorem:main-result], Alg. [alg:asynchronous]
    """

    beta: Tensor
    deltas: tuple[Tensor | None, ...]

    def force(self, state: State, layer: int) -> Tensor | None:
        return self._forces[layer]

    def part(self, samples: slice) -> Stationary | None:
        if any(d is not None and len(d) != len(self.beta) for d in self.deltas):
            return None  # copies stay together
        return Stationary(self.beta[samples], tuple(d if d is None else d[samples] for d in self.deltas))

    @cached_property
    def _forces(self) -> tuple[Tensor | None, ...]:
        return tuple(d if d is None else self._force(d) for d in self.deltas)

    def _force(self, delta: Tensor) -> Tensor:
        beta = per_sample(self.beta, delta).unflatten(0, (-1, len(delta)))
        return (beta * delta).flatten(0, 1)


@dataclass(frozen=True)
class Elastic(Nudge):
    r"""A force that follows the state: the energy gains $\beta\, \ell(s_L, y)$, and its gradient is taken anew at every sweep.

    Paper: Eq. [eq:augmented-E-last-block], Alg. [alg:asynchronous-last-block]
    """

    beta: Tensor
    cost: Cost
    y: Tensor

    def force(self, state: State, layer: int) -> Tensor | None:
        if layer != len(state) - 1:
            return None
        with torch.enable_grad():
            output = state[-1].detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.cost(output, self.y).sum(), output)
        return per_sample(self.beta, gradient) * gradient

    def part(self, samples: slice) -> Elastic:
        return Elastic(self.beta[samples], self.cost, self.y[samples])
