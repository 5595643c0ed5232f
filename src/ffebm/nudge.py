r"""Nudges: the small force $\beta\, \partial_s C$ that tilts an energy towards (or away from) a lower cost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from ffebm.state import Deltas, State, per_sample

__all__ = ["Cost", "Elastic", "Nudge", "Stationary", "Strength"]
__dir__ = __all__.copy

Cost = Callable[[Tensor, Tensor], Tensor]  # (output of a block, target) -> the loss of every sample, shape (B,)
Strength = float | complex | Tensor  # of a nudge; a tensor has one for every sample, shape (B,)


class Nudge(ABC):
    """A force on the layers of a block, sample by sample."""

    @abstractmethod
    def force(self, state: State, layer: int) -> Tensor | None:
        """What pulls at this layer (0-based); None for a layer that is left alone."""

    def at(self, strength: Strength) -> Nudge:
        """The same so many times as strong."""
        return _Scaled(self, strength)


@dataclass(frozen=True)
class _Scaled(Nudge):
    """Any nudge, so many times as strong."""

    nudge: Nudge
    strength: Strength

    def force(self, state: State, layer: int) -> Tensor | None:
        force = self.nudge.force(state, layer)
        if force is None:
            return None
        return _times(self.strength, force)


def _times(strength: Strength, force: Tensor) -> Tensor:
    if isinstance(strength, Tensor):
        return per_sample(strength, force) * force
    return force if strength == 1 else strength * force


@final
@dataclass(frozen=True)
class Stationary(Nudge):
    r"""A constant force: the energy gains $\beta\, s \cdot \delta$.

    Args:
        beta: the strength, or one for every sample, shape (B,).
        deltas: the error signal at every layer, or None where there is none.

    Paper: Theorem [theorem:main-result], Alg. [alg:asynchronous]
    """

    beta: Strength
    deltas: Deltas

    def force(self, state: State, layer: int) -> Tensor | None:
        return self._forces[layer]

    def at(self, strength: Strength) -> Stationary:
        return Stationary(self.beta * strength, self.deltas)

    @cached_property
    def _forces(self) -> Deltas:
        return tuple(d if d is None else _times(self.beta, d) for d in self.deltas)


@final
@dataclass(frozen=True)
class Elastic(Nudge):
    r"""A force that follows the state: the energy gains $\beta\, \ell(s_L, y)$, and its gradient is taken anew at every sweep.

    Args:
        beta: the strength for every sample, shape (B,).
        output: the layer that the cost is a function of.

    Paper: Eq. [eq:augmented-E-last-block], Alg. [alg:asynchronous-last-block]
    """

    beta: Tensor
    cost: Cost
    y: Tensor
    output: int = -1

    def losses(self, state: State) -> Tensor:
        """The cost of every sample, shape (B,)."""
        return self.cost(state[self.output], self.y)

    def force(self, state: State, layer: int) -> Tensor | None:
        if layer != self.output % len(state):
            return None
        with torch.enable_grad():
            output = state[layer].detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.cost(output, self.y).sum(), output)
        return per_sample(self.beta, gradient) * gradient

    def at(self, strength: Strength) -> Elastic:
        return replace(self, beta=self.beta * strength)
