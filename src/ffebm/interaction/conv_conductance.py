"""Crossbars that slide over images."""

from __future__ import annotations

import math
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor

from ffebm.interaction.convolution import BaseConvolution, Size
from ffebm.interaction.crossbar import Crossbar, Resistors, weighted
from ffebm.interaction.interaction import Shape
from ffebm.interaction.pair import Pair
from ffebm.twin import with_tensors

__all__ = ["ConvConductance"]
__dir__ = __all__.copy


@final
class ConvConductance(BaseConvolution, Crossbar):  # pyright: ignore[reportIncompatibleVariableOverride, reportIncompatibleMethodOverride]
    """The same small crossbar at every place of an image, as in a convolution. Beyond the edges of the image is nothing.

    So nodes at the edges see fewer resistors.

    Args:
        kernel: height and width of the patch, or one number for both; so are `stride` and `padding`.
        doubled: every node below is there twice, as it is and inverted: for the input of a circuit.
    """

    directions: ClassVar[int] = 2

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: Size = 3,
        *,
        stride: Size = 1,
        padding: Size = 0,
        doubled: bool = False,
        bias: bool = True,
    ) -> None:
        wires = 2 * in_channels if doubled else in_channels
        super().__init__(wires, out_channels, kernel, stride, padding, 1, 1, None, bias)
        self.doubled = doubled
        self._set_conductances_(self.weight[0].numel())

    def load_above(self, shape: Shape) -> Tensor:
        return self._with_total().convolve(self.weight.new_ones(1, *shape))[0]

    def load_below(self, shape: Shape) -> Tensor:
        return self._with_total().convolve_back(shape[1:], self.weight.new_ones(1, *self.out_shape(shape)))[0]

    def energy_gradient(self, pre: Tensor, moved: Tensor | None, post: Pair, weights: Tensor | None) -> dict[str, Tensor]:
        difference = weighted(weights, post.difference)

        def of_weight() -> Tensor:
            signed = self._correlate(pre, -difference)
            loads = self._correlate(torch.ones_like(pre[:1]), (difference * post.mean).sum(0, keepdim=True))
            if moved is not None:
                change = weighted(weights, moved)
                signed = signed - self._correlate(change, post.mean)
                loads = loads + self._correlate((change * pre).sum(0, keepdim=True), torch.ones_like(difference[:1]))
            return torch.cat((loads + signed, loads - signed), 1) if self.doubled else loads + signed

        return self._pulled_back(weight=of_weight, bias=lambda: -difference.sum((0, 2, 3)))

    def resistors(self, shape: Shape) -> Resistors:
        below, wires = self.out_shape(shape), (self.weight.shape[1], *shape[1:])
        nodes = torch.arange(1, 1 + math.prod(wires), dtype=torch.float64).view(1, *wires)  # 0 is beyond the edges
        stride, padding, dilation = self._windows
        taps = F.unfold(nodes, self.weight.shape[2:], dilation, padding, stride)[0].long() - 1  # (taps, places)
        number, places = taps.shape
        channels = torch.arange(below[0]).view(-1, 1, 1)
        inside = (taps >= 0).expand(below[0], -1, -1)
        above = (channels * places + torch.arange(places)).expand(-1, number, -1)
        weight = (channels * number + torch.arange(number).view(1, -1, 1)).expand(-1, -1, places)
        return Resistors(taps.expand(below[0], -1, -1)[inside], above[inside], weight[inside])

    def with_weight(self, weight: Tensor) -> ConvConductance:
        return with_tensors(self, weight=weight, bias=None)

    def _with_total(self) -> ConvConductance:
        single = self.with_weight(self._total())
        single.doubled = False
        return single

    def _kernel(self) -> Tensor:
        return self._signed()

    @property
    def _kernel_shape(self) -> torch.Size:
        wide = self.weight.shape[1] // (2 if self.doubled else 1)
        return torch.Size((self.weight.shape[0], wide, *self.weight.shape[2:]))

    def extra_repr(self) -> str:
        return super().extra_repr() + (", doubled=True" if self.doubled else "")
