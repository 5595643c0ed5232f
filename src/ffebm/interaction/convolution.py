"""Convolutional edges, with or without pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, final

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

from ffebm.checks import check_size
from ffebm.interaction.interaction import Contact, Ends, Interaction, Shape
from ffebm.interaction.pair import Pair, mean_and_difference
from ffebm.pooling import Pool
from ffebm.twin import with_children, with_tensors

__all__ = ["Convolution"]
__dir__ = __all__.copy


@final
class Convolution(Interaction):
    r"""A convolutional edge, $U = -\, s_{\ell+1} \bullet \mathcal P(\theta_\ell \star s_\ell)$, with or without pooling."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int = 3,
        *,
        stride: int = 1,
        padding: int = 0,
        pool: Pool | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        sizes = {"in_channels": in_channels, "out_channels": out_channels, "kernel": kernel, "stride": stride}
        for name, size in sizes.items():
            check_size(name, size)
        check_size("padding", padding, least=0)
        convolution = nn.Conv2d(in_channels, out_channels, kernel, bias=bias)
        self.weight, self.bias = convolution.weight, convolution.bias
        self.stride = stride
        self.padding = padding
        self.pool = pool

    def up(self, pre: Tensor) -> Tensor:
        u = self.convolve(pre)
        return u if self.pool is None else self.pool(u)

    def down(self, pre: Tensor, post: Tensor) -> Tensor:
        return self.convolve_back(pre.shape[2:], self._unpool(pre, post))

    def contact(self, pre: Tensor) -> Contact:
        return Contact(self, pre, fresh=True) if self.pool is None else _PooledContact(self, pre, self.pool)

    def latched(self, pre: Tensor) -> Convolution:
        if self.pool is None or not self.pool.chooses:
            return self
        return with_children(self, pool=self.pool.latched(self.convolve(pre)))

    def contrast_gradient(self, high: Ends, low: Ends, weights: Tensor) -> dict[str, Tensor]:
        if self._pool_learns:
            return super().contrast_gradient(high, low, weights)  # what follows has the pooling stand still
        unpooled = mean_and_difference(self._unpool(*high), self._unpool(*low))
        return self._bilinear(mean_and_difference(high[0], low[0]), unpooled, weights)

    def response_gradient(self, at: Ends, moved: Ends, weights: Tensor | None = None) -> dict[str, Tensor]:
        if self._pool_learns or not self.linear:
            return super().response_gradient(at, moved, weights)
        unpooled = Pair(*(self._unpool(at[0], post) for post in (at[1], moved[1])))
        return self._bilinear(Pair(at[0], moved[0]), unpooled, weights)

    def _bilinear(self, pre: Pair, unpooled: Pair, weights: Tensor | None) -> dict[str, Tensor]:
        """The edge is bilinear in the layer below it and in the one above it as that arrives behind the pooling."""
        weighted = unpooled if weights is None else Pair(*(part * weights.view(-1, 1, 1, 1) for part in unpooled))
        return self._pulled_back(
            weight=lambda: -(self._correlate(pre.mean, weighted.difference) + self._correlate(pre.difference, weighted.mean)),
            bias=lambda: -weighted.difference.sum((0, 2, 3)),
        )

    def there_and_back(self, pre: Tensor) -> Tensor | None:
        there = F.conv2d(pre, self.weight, None, self.stride, self.padding)
        pooled = there if self.pool is None else self.pool.there_and_back(there)
        return None if pooled is None else self.convolve_back(pre.shape[2:], pooled)

    def without_bias(self) -> Convolution:
        return with_tensors(self, weight=self.weight, bias=None)

    def scale_(self, factor: float) -> None:
        self._scale_weight_(factor)

    @property
    def linear(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.pool is None or self.pool.linear

    @property
    def _pool_learns(self) -> bool:
        return self.pool is not None and any(True for _ in self.pool.parameters())

    @property
    def chooses(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.pool is not None and self.pool.chooses

    @property
    def holomorphic(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.pool is None or self.pool.holomorphic

    def _correlate(self, pre: Tensor, post: Tensor) -> Tensor:
        """The derivative of post · (weight ⋆ pre) with respect to the weight, without computing the convolution itself."""
        return conv2d_weight(pre, list(self.weight.shape), post, self.stride, self.padding)

    def out_shape(self, shape: Shape) -> Shape:
        out_channels, in_channels = self.weight.shape[:2]
        if len(shape) != 3 or shape[0] != in_channels:
            raise ValueError(
                f"{self} expects a layer of shape ({in_channels}, height, width), got {shape}: "
                "set `in_channels` to the channels of the layer below."
            )
        convolved = self._convolved(shape)
        sizes = convolved if self.pool is None else [self.pool.out_size(size) for size in convolved]
        if min(*convolved, *sizes) < 1:
            raise ValueError(
                f"{self} leaves nothing of a layer of shape {shape}: "
                "kernel, stride and pooling window together are larger than the image. Drop a pooling, or pad."
            )
        return (out_channels, *sizes)

    def macs(self, shape: Shape) -> int:
        return self.weight.numel() * math.prod(self._convolved(shape))

    def convolve(self, pre: Tensor) -> Tensor:
        """The current up before it is pooled."""
        return F.conv2d(pre, self.weight, self.bias, self.stride, self.padding)

    def convolve_back(self, sizes: Sequence[int], post: Tensor) -> Tensor:
        """The current that `post` sends back through the convolution, onto a layer of this height and width."""
        kernel = self.weight.shape[-1]
        # A strided convolution drops the last rows that do not fill a window; the transpose gives them back, as zeros.
        lost = [(size + 2 * self.padding - kernel) % self.stride for size in sizes]
        return F.conv_transpose2d(post, self.weight, None, self.stride, self.padding, lost)

    def _unpool(self, pre: Tensor, post: Tensor) -> Tensor:
        """The current that `post` sends back through the pooling, onto the convolved image."""
        return post if self.pool is None else self.pool.transpose(self.convolve(pre), post)

    def _convolved(self, shape: Shape) -> list[int]:
        kernel = self.weight.shape[-1]
        return [(size + 2 * self.padding - kernel) // self.stride + 1 for size in shape[1:]]

    def extra_repr(self) -> str:
        out_channels, in_channels, kernel, _ = self.weight.shape
        return (
            f"{in_channels}, {out_channels}, kernel={kernel}, stride={self.stride}, padding={self.padding}, "
            f"bias={self.bias is not None}"
        )


class _PooledContact(Contact):
    """Remembers what was convolved and pooled on the way up for the way down."""

    lasting: ClassVar[bool] = True

    def __init__(self, edge: Convolution, pre: Tensor, pool: Pool) -> None:
        convolved = edge.convolve(pre)
        self.pooled, positions = pool.pooled(convolved)
        known = () if positions is None else (positions,)
        sizes = pre.shape[2:]  # and not `pre` itself, which lives as long as somebody else holds it
        self.down = lambda post: edge.convolve_back(sizes, pool.transpose(convolved, post, *known))

    def up(self) -> Tensor:
        return self.pooled.clone()
