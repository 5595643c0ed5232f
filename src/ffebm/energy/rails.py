"""Rails: on which side of zero volts diodes keep the nodes of a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from ffebm.activation import Activation, clamp, identity
from ffebm.checks import brief
from ffebm.energy.diode import Diode, walls
from ffebm.interaction import Shape

__all__ = ["Pattern", "Rails"]
__dir__ = __all__.copy

Pattern = Literal["half", "positive", "negative", "free"]


@dataclass(frozen=True)
class Rails:
    """A sign for every node of a layer, or for every channel of an image: where a diode keeps it, and 0 where there is none.

    Args:
        pattern: `"half"`, the first half positive and the rest negative, `"positive"`, `"negative"`, `"free"`, or the signs.
    """

    pattern: Pattern | tuple[int, ...]

    def __post_init__(self) -> None:
        known = self.pattern in get_args(Pattern) if isinstance(self.pattern, str) else set(self.pattern) <= {-1, 0, 1}
        if not known:
            raise ValueError(
                f"Rails are one of {', '.join(map(repr, get_args(Pattern)))}, or a sign (1, -1 or 0) for every node of the "
                f"layer, got {brief(self.pattern)}."
            )

    @classmethod
    def of(cls, given: Rails | Pattern | Sequence[int]) -> Rails:
        return given if isinstance(given, cls) else cls(given if isinstance(given, str) else tuple(given))  # pyright: ignore

    def signs(self, shape: Shape, like: Tensor) -> Tensor:
        """1, -1 or 0 for every node of a layer of this shape, or shaped so that it broadcasts over its channels."""
        units, *rest = shape
        if self.pattern == "half":
            signs = 1 - 2 * (torch.arange(units, device=like.device) >= (units + 1) // 2).to(like.dtype)
        elif isinstance(self.pattern, str):
            signs = like.new_full((units,), {"positive": 1.0, "negative": -1.0, "free": 0.0}[self.pattern])
        else:
            signs = torch.tensor(self.pattern, dtype=like.dtype, device=like.device)
            if len(signs) != units:
                raise ValueError(f"Rails of {len(signs)} signs were given for a layer of {units} nodes: give one for each.")
        return signs.view(-1, *[1] * len(rest))

    def activation(self, diode: Diode) -> Activation:
        """The box that a layer relaxes in."""
        if self.pattern == "free" or not diode.rigid:
            return identity()
        if self.pattern == "positive":
            return clamp(1.0, 0.0, float("inf"))
        if self.pattern == "negative":
            return clamp(1.0, -float("inf"), 0.0)
        return Activation(f"rails({self})", partial(_kept, self), _half_square, steepest=1.0)

    def __str__(self) -> str:
        return self.pattern if isinstance(self.pattern, str) else brief(self.pattern, 30)


def _kept(rails: Rails, v: Tensor) -> Tensor:
    return torch.clamp(v, *walls(rails.signs(tuple(v.shape[1:]), v), v))


def _half_square(s: Tensor) -> Tensor:
    return s.square() / 2
