"""Peak memory against the number of sweeps, by counting the bytes of every tensor alive."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ffebm import (
    Convolution,
    EnergyBlock,
    EquilibriumPropagation,
    FixedPoint,
    GradientEstimator,
    Hopfield,
    RecurrentBackprop,
    Unrolled,
)


class PeakMemory(TorchDispatchMode):
    """Adds up the storage of every tensor that an operation returns, and takes it off when the storage dies."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                storage = leaf.untyped_storage()
                if storage._cdata not in self.sizes:
                    self.sizes[storage._cdata] = storage.nbytes()
                    weakref.finalize(storage, self.sizes.pop, storage._cdata, None)
        self.peak = max(self.peak, sum(self.sizes.values()))
        return result


def peak(estimator: GradientEstimator, free: int) -> int:
    torch.manual_seed(0)
    block = EnergyBlock(Hopfield([Convolution(8, 8, padding=1)] * 2), FixedPoint(free), estimator)
    x = torch.randn(4, 8, 12, 12, requires_grad=True)
    with PeakMemory() as memory:
        block(x).sum().backward()
    return memory.peak


def test_the_counter_counts() -> None:
    with PeakMemory() as memory:
        a = torch.ones(1000)
        b = a + 1
        del a
        c = b * 2
        d = c.view(10, 100)
        del b, c, d
    assert 8000 <= memory.peak < 12000


@pytest.mark.parametrize("kind", [EquilibriumPropagation, RecurrentBackprop])
def test_constant_in_the_number_of_sweeps(kind: type[EquilibriumPropagation | RecurrentBackprop]) -> None:
    few, many = peak(kind(FixedPoint(5)), free=10), peak(kind(FixedPoint(40)), free=80)
    assert many <= 1.01 * few


def test_recorded_sweeps_cost_memory() -> None:
    few, many = peak(Unrolled(FixedPoint(5)), free=10), peak(Unrolled(FixedPoint(40)), free=10)
    assert many > 4 * few
