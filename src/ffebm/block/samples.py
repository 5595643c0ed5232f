"""Several dimensions of samples as one, and apart again: relaxations know one."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ffebm.relaxation import Relaxed
from ffebm.state import State

__all__ = ["apart", "as_one", "sizes_of", "start_as_one"]
__dir__ = __all__.copy

Sizes = Sequence[int]  # of the dimensions of samples


def sizes_of(x: object) -> tuple[int, ...]:
    """The shape of a tensor in numbers, which a tracer would have as tensors; nothing where it is no tensor."""
    return tuple(int(size) if isinstance(size, Tensor) else size for size in x.shape) if isinstance(x, Tensor) else ()


def as_one(tensor: Tensor, dims: int) -> Tensor:
    """The same with its first dimensions, all of samples, as one."""
    return tensor if dims == 1 else tensor.flatten(0, dims - 1)


def start_as_one(start: State | None, x: Tensor, dims: int) -> State | None:
    """A state with the dimensions of samples of `x` as one; what has one already, or no tensors at all, stays as it is."""
    if start is None or dims == 1:
        return start
    return tuple(as_one(s, dims) if s.dim() > dims and s.shape[:dims] == x.shape[:dims] else s for s in start)


def apart(relaxed: Relaxed, x: Tensor, dims: int) -> Relaxed:
    """What was found for samples in one dimension, in as many as `x` has."""
    if dims == 1:
        return relaxed
    sizes = x.shape[:dims]
    state, *rest = relaxed
    return Relaxed(tuple(s.unflatten(0, sizes) for s in state), *(t.unflatten(0, sizes) for t in rest))
