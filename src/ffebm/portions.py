"""Portions of a batch that a processor's cache can hold."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor

__all__ = ["portions"]
__dir__ = __all__.copy

CACHE = 32 * 2**20  # bytes of input and state that relax together on a CPU; sweeps touch two to three times as much


def portions(batch: int, sample: Sequence[Tensor]) -> list[slice]:
    """Slices of a batch, of nearly equal size, each small enough to stay in the cache from one sweep to the next.

    Samples never interact, so relaxing them in turn changes nothing but the time: a sweep over a large batch reads and writes
    main memory at every step. Other devices than CPUs have their own ways to hide that, and get the batch whole.

    Args:
        sample: tensors of one sample, all that has to stay at hand for it.
    """
    if sample[0].device.type != "cpu":
        return [slice(0, batch)]
    most = max(1, CACHE // sum(tensor.numel() * tensor.element_size() for tensor in sample))
    count = -(-batch // most)
    bounds = [batch * i // count for i in range(count + 1)]
    return [slice(*pair) for pair in pairwise(bounds)]
