"""Fully connected edges."""

from __future__ import annotations

import math
from typing import final

import torch.nn.functional as F
from torch import Tensor, nn

from ffebm.checks import check_size
from ffebm.interaction.conductance import Conductance
from ffebm.interaction.interaction import Contact, Ends, Interaction, Shape
from ffebm.interaction.matrix import Matrix
from ffebm.interaction.pair import Pair, mean_and_difference
from ffebm.twin import with_tensors

__all__ = ["Dense"]
__dir__ = __all__.copy


@final
class Dense(Interaction):
    """A fully connected edge; a `pre` with several dimensions is flattened."""

    linear: bool = True
    holomorphic: bool = True

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        check_size("in_features", in_features)
        check_size("out_features", out_features)
        linear = nn.Linear(in_features, out_features, bias)
        self.weight, self.bias = linear.weight, linear.bias

    def up(self, pre: Tensor) -> Tensor:
        return F.linear(pre.flatten(1), self.weight, self.bias)

    def down(self, pre: Tensor, post: Tensor) -> Tensor:
        return (post @ self.weight).view_as(pre)

    def contact(self, pre: Tensor) -> Contact:
        return Contact(self, pre, fresh=True)

    def contrast_gradient(self, high: Ends, low: Ends, weights: Tensor) -> dict[str, Tensor]:
        return self._bilinear(mean_and_difference(high[0], low[0]), mean_and_difference(high[1], low[1]), weights)

    def response_gradient(self, at: Ends, moved: Ends, weights: Tensor | None = None) -> dict[str, Tensor]:
        return self._bilinear(Pair(at[0], moved[0]), Pair(at[1], moved[1]), weights)

    def _bilinear(self, pre: Pair, post: Pair, weights: Tensor | None) -> dict[str, Tensor]:
        weighted = post if weights is None else Pair(*(weights.unsqueeze(1) * part for part in post))
        return self._pulled_back(
            weight=lambda: -(weighted.difference.mT @ pre.mean.flatten(1) + weighted.mean.mT @ pre.difference.flatten(1)),
            bias=lambda: -weighted.difference.sum(0),
        )

    def there_and_back(self, pre: Tensor) -> Tensor:
        return (F.linear(pre.flatten(1), self.weight) @ self.weight).view_as(pre)

    def without_bias(self) -> Dense:
        return with_tensors(self, weight=self.weight, bias=None)

    def as_crossbar(self, *, doubled: bool = False) -> Conductance:
        out_features, in_features = self.weight.shape
        return Conductance(in_features, out_features, doubled=doubled)

    @property
    def units(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.weight.shape[1]

    def scale_(self, factor: float) -> None:
        self._scale_weight_(factor)

    def out_shape(self, shape: Shape) -> Shape:
        out_features, in_features = self.weight.shape
        if math.prod(shape) != in_features:
            raise ValueError(
                f"{self} expects {in_features} inputs, got {math.prod(shape)} from a layer of shape {shape}: "
                f"use Dense({math.prod(shape)}, {out_features}) there."
            )
        return (out_features,)

    def macs(self, shape: Shape) -> int:
        return self.weight.numel()

    def matrix(self, shape: Shape) -> Matrix:
        out_features, in_features = self.weight.shape
        return Matrix(in_features, out_features)

    def extra_repr(self) -> str:
        out_features, in_features = self.weight.shape
        return f"{in_features}, {out_features}, bias={self.bias is not None}"
