"""Two nearly equal tensors by their mean and difference: products of those keep digits that differences of products lose."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Pair", "mean_and_difference"]
__dir__ = __all__.copy


class Pair(NamedTuple):
    mean: Tensor
    difference: Tensor


def mean_and_difference(high: Tensor, low: Tensor) -> Pair:
    # a⁺b⁺ − a⁻b⁻ = (a⁺ − a⁻)·½(b⁺ + b⁻) + ½(a⁺ + a⁻)·(b⁺ − b⁻), exactly
    return Pair(torch.lerp(high, low, 0.5), high - low)
