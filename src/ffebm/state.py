"""States and errors: a tensor for every layer of a block, each with the batch first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import torch
from torch import Tensor

__all__ = [
    "Colours",
    "Deltas",
    "State",
    "change",
    "dot",
    "error_at",
    "in_complex_numbers",
    "largest",
    "of_samples",
    "per_sample",
]
__dir__ = __all__.copy

T = TypeVar("T")
State = tuple[Tensor, ...]  # s_1 .. s_L
Colours = tuple[tuple[int, ...], ...]  # layers (0-based) that may move together, colour by colour
Deltas = tuple[Tensor | None, ...]  # the error signal at every layer; None where there is none


def per_sample(weights: Tensor, like: Tensor) -> Tensor:
    """`weights` of shape (B,), viewed so that they scale the samples of `like`."""
    return weights.view(-1, *[1] * (like.dim() - 1))


def dot(a: Tensor, b: Tensor) -> Tensor:
    """The scalar product of every sample, shape (B,)."""
    return (a * b).sum(tuple(range(1, a.dim())))  # flattening a channels-last image would copy it


def of_samples(values: Iterable[T], samples: slice) -> tuple[T, ...]:
    """What some samples of the batch have of states, errors or strengths; what is no tensor is the same for all."""
    return tuple(value[samples] if isinstance(value, Tensor) else value for value in values)  # pyright: ignore[reportReturnType]


def error_at(layer: int, delta: Tensor, layers: int) -> Deltas:
    """An error at one layer, and none at the others; `layer` may count from the end."""
    return tuple(delta if index == layer % layers else None for index in range(layers))


def in_complex_numbers(tensor: Tensor) -> Tensor:
    """The same numbers, of a complex type as precise."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.complex32))


def largest(tensor: Tensor) -> Tensor:
    """The largest absolute value; NaN where there is one."""
    if tensor.is_complex():
        return tensor.abs().amax()
    return torch.maximum(tensor.amax(), -tensor.amin())  # `aminmax` would copy a channels-last image


@torch.no_grad()
def change(state: State, previous: State) -> Tensor:
    """The largest change of any unit, for every sample, shape (B,)."""
    differences = (new - old for new, old in zip(state, previous, strict=True))
    sizes = (d.abs() if d.is_complex() else d.abs_() for d in differences)
    return torch.stack([size.amax(tuple(range(1, size.dim()))) for size in sizes]).amax(0)
