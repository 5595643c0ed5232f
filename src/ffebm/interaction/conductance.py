"""Fully connected crossbars."""

from __future__ import annotations

import math
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ffebm.checks import check_size
from ffebm.interaction.crossbar import Crossbar, Resistors, weighted
from ffebm.interaction.interaction import Contact, Shape
from ffebm.interaction.matrix import Matrix
from ffebm.interaction.pair import Pair
from ffebm.twin import with_tensors

__all__ = ["Conductance"]
__dir__ = __all__.copy


@final
class Conductance(Crossbar):
    """A resistor between every node below and every node above; a layer below of several dimensions is flattened.

    Args:
        doubled: every node below is there twice, as it is and inverted: for the input of a circuit.
    """

    def __init__(self, in_features: int, out_features: int, *, doubled: bool = False, bias: bool = True) -> None:
        super().__init__()
        check_size("in_features", in_features)
        check_size("out_features", out_features)
        wires = 2 * in_features if doubled else in_features
        self.doubled = doubled
        self.weight = nn.Parameter(torch.empty(out_features, wires))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self._set_conductances_(wires)

    def up(self, pre: Tensor) -> Tensor:
        return F.linear(pre.flatten(1), self._signed(), self.bias)

    def down(self, pre: Tensor, post: Tensor) -> Tensor:
        return (post @ self._signed()).view_as(pre)

    def with_down(self, current: Tensor, pre: Tensor, post: Tensor, factor: float) -> Tensor:
        if pre.dim() > 2:
            return super().with_down(current, pre, post, factor)
        return torch.addmm(current, post, self._signed(), alpha=factor)

    def contact(self, pre: Tensor) -> Contact:
        return Contact(self, pre, fresh=True)

    def load_above(self, shape: Shape) -> Tensor:
        return self.weight.sum(1)

    def load_below(self, shape: Shape) -> Tensor:
        return self._total().sum(0).view(shape)

    def energy_gradient(self, pre: Tensor, moved: Tensor | None, post: Pair, weights: Tensor | None) -> dict[str, Tensor]:
        pre, difference = pre.flatten(1), weighted(weights, post.difference)

        def of_weight() -> Tensor:
            signed = (-difference).mT @ pre
            loads = (difference * post.mean).sum(0).unsqueeze(1)
            if moved is not None:
                change = weighted(weights, moved.flatten(1))
                signed.addmm_(post.mean.mT, change, alpha=-1)
                loads = loads + (change * pre).sum(0)
            if not self.doubled:
                return signed.add_(loads)
            pairs = torch.empty_like(self.weight)
            direct, inverted = pairs.chunk(2, 1)
            torch.add(loads, signed, out=direct)
            torch.sub(loads, signed, out=inverted)
            return pairs

        return self._pulled_back(weight=of_weight, bias=lambda: -difference.sum(0))

    def resistors(self, shape: Shape) -> Resistors:
        above, below = torch.meshgrid(*(torch.arange(size) for size in self.weight.shape), indexing="ij")
        return Resistors(below.flatten(), above.flatten(), torch.arange(self.weight.numel()))

    def with_weight(self, weight: Tensor) -> Conductance:
        return with_tensors(self, weight=weight, bias=None)

    @property
    def units(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.weight.shape[1] // (2 if self.doubled else 1)

    def out_shape(self, shape: Shape) -> Shape:
        out_features = len(self.weight)
        if math.prod(shape) != self.units:
            raise ValueError(
                f"{self} expects {self.units} nodes below, got {math.prod(shape)} from a layer of shape {shape}: "
                f"use Conductance({math.prod(shape)}, {out_features}) there."
            )
        return (out_features,)

    def macs(self, shape: Shape) -> int:
        return self.units * len(self.weight)

    def matrix(self, shape: Shape) -> Matrix:
        nodes, wires = self.weight.shape
        return Matrix(wires, nodes)

    def extra_repr(self) -> str:
        doubled = ", doubled=True" if self.doubled else ""
        return f"{self.units}, {len(self.weight)}{doubled}, bias={self.bias is not None}"
