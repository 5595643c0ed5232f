"""Rules that settings share with the library. Settings are read before torch is loaded, so nothing here imports it."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Literal

from ffebm.checks import brief

Order = Literal["odd-even", "even-odd", "output-first", "output-last", "synchronous"]  # of the layers in a sweep


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
