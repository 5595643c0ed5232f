r"""Nudges: the small force $\beta\, \partial_s C$ that tilts an energy towards (or away from) a lower cost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, final

import torch
from torch import Tensor

from ffebm.state import Deltas, State, per_sample, repeated


class Cost(Protocol):
    """The loss of every sample as a function of a block's output and the target, shape (B,)."""

    def __call__(self, output: Tensor, y: Tensor) -> Tensor: ...


Strength = float | complex | Tensor  # of a nudge; a tensor has one for every sample, shape (B,)


def strengths_of_samples(strengths: Sequence[Strength], samples: slice) -> list[Strength]:
    return [strength[samples] if isinstance(strength, Tensor) else strength for strength in strengths]


class Nudge(ABC):
    """A force on the layers of a block, sample by sample."""

    @abstractmethod
    def force(self, state: State, layer: int) -> Tensor | None:
        """What pulls at this layer (0-based); None for a layer that is left alone."""

    def at(self, strengths: Sequence[Strength]) -> Nudge:
        """The nudge of a batch that holds the same samples several times, one copy after the other, each nudged as strongly."""
        return _Copies(self, tuple(strengths))


@dataclass(frozen=True)
class _Copies(Nudge):
    """Any nudge, asked for each copy of the batch in turn."""

    nudge: Nudge
    strengths: tuple[Strength, ...]

    def force(self, state: State, layer: int) -> Tensor | None:
        copies = zip(*(s.chunk(len(self.strengths)) for s in state), strict=True)
        forces = [self.nudge.force(copy, layer) for copy in copies]
        scaled = [_times(strength, force) for strength, force in zip(self.strengths, forces, strict=True) if force is not None]
        return torch.cat(scaled) if len(scaled) == len(forces) else None


@final
@dataclass(frozen=True)
class Stationary(Nudge):
    r"""A constant force: the energy gains $\beta\, s \cdot \delta$.

    Args:
        beta: the strength for every sample, shape (B,).
        deltas: the error signal at every layer, or None where there is none.

    Paper: Theorem [theorem:main-result], Alg. [alg:asynchronous]
    """

    beta: Tensor
    deltas: Deltas

    def force(self, state: State, layer: int) -> Tensor | None:
        return self._forces[layer]

    def at(self, strengths: Sequence[Strength]) -> Nudge:
        betas = torch.stack([self.beta * strength for strength in strengths])
        sizes = [None if d is None else betas.view(*betas.shape, *[1] * (d.dim() - 1)) for d in self.deltas]
        pairs = zip(sizes, self.deltas, strict=True)
        return _Constant(tuple(None if size is None or d is None else (size * d).flatten(0, 1) for size, d in pairs))

    @cached_property
    def _forces(self) -> Deltas:
        return tuple(d if d is None else per_sample(self.beta, d) * d for d in self.deltas)


@dataclass(frozen=True)
class _Constant(Nudge):
    """The same forces at every sweep."""

    forces: Deltas

    def force(self, state: State, layer: int) -> Tensor | None:
        return self.forces[layer]


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

    def force(self, state: State, layer: int) -> Tensor | None:
        if layer != self.output % len(state):
            return None
        with torch.enable_grad():
            output = state[layer].detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.cost(output, self.y).sum(), output)
        return per_sample(self.beta, gradient) * gradient

    def at(self, strengths: Sequence[Strength]) -> Elastic:
        beta = torch.cat([self.beta * strength for strength in strengths])
        return Elastic(beta, self.cost, repeated(self.y, len(strengths)), self.output)


def _times(strength: Strength, force: Tensor) -> Tensor:
    return (per_sample(strength, force) if isinstance(strength, Tensor) else strength) * force
