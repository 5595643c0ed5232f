"""Rules that settings share with the library. Settings are read before torch is loaded, so nothing here imports it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Literal

from ffebm.checks import brief

__all__ = ["Order", "block_sizes", "check_skips", "free_order"]
__dir__ = __all__.copy

# Of the layers in a sweep.
Order = Literal["odd-even", "even-odd", "output-first", "output-last", "upward", "downward", "synchronous"]


def free_order(settles: bool) -> Order:
    """The order of free sweeps where none is given: the paper's, or layer by layer in blocks that are sure to settle.

    A limit takes feedback from large blocks. They are nearly feedforward then, and settle as soon as a signal has crossed them.
    """
    return "upward" if settles else "odd-even"


def block_sizes(layers: int, split: int | Sequence[int]) -> list[int]:
    """The number of layers of every block.

    >>> block_sizes(15, 2)
    [2, 2, 2, 2, 2, 2, 2, 1]
    """
    if isinstance(split, int | Integral):  # numpy's integers are the latter only
        split = int(split)
        if not 1 <= split <= layers:
            raise ValueError(f"A block size (`split`) must lie between 1 and the number of layers, {layers}; got {split}.")
        return [min(split, layers - start) for start in range(0, layers, split)]
    sizes = list(split)
    if min(sizes, default=1) < 1:
        raise ValueError(f"The sizes in the split {brief(sizes)} must be positive: a block has at least one layer.")
    if sum(sizes) != layers:
        raise ValueError(
            f"The split {brief(sizes)} adds up to {sum(sizes)} layers, but there are {layers}: "
            "its blocks must take every layer exactly once."
        )
    return sizes


def check_skips(skips: Iterable[Sequence[int]], sizes: Sequence[int]) -> None:
    """Refuse skip connections, each from a layer to a layer (counted from 1), that blocks of these sizes cannot have.

    >>> check_skips([(1, 3), (4, 6)], [3, 3])
    """
    firsts = [first for block, size in enumerate(sizes) for first in [1 + sum(sizes[:block])] * size]  # of every layer's block
    seen: set[tuple[int, int]] = set()
    for start, end in skips:
        what = f"The skip connection from layer {start} to layer {end} (counted from 1)"
        if not 1 <= end <= len(firsts):
            raise ValueError(f"{what} ends where there is no layer: they go from 1 to {len(firsts)}.")
        if start < (first := firsts[end - 1]):
            raise ValueError(
                f"{what} leaves the block, which begins with layer {first}: the connection into a block is digital. Choose two "
                "layers of one block, or a `split` that puts these into one."
            )
        if start > end - 2:
            raise ValueError(f"{what} skips nothing: it must go up by 2 layers at least, and neighbours are tied anyway.")
        if (start, end) in seen:
            raise ValueError(f"{what} is there twice: two ties between the same layers are as one, so leave one out.")
        seen.add((start, end))
