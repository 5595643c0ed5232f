"""Convolutional edges, over images with or without pooling, and over sequences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Self, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv1d_weight, conv2d_weight

from ffebm.checks import brief, check_size
from ffebm.interaction.crossbar import Crossbar
from ffebm.interaction.interaction import Contact, Ends, Interaction, Shape
from ffebm.interaction.matrix import Matrix
from ffebm.interaction.pair import Pair, mean_and_difference
from ffebm.pooling import Pool
from ffebm.state import per_sample
from ffebm.twin import with_children, with_tensors

__all__ = ["BaseConvolution", "Convolution", "Convolution1d", "Size"]
__dir__ = __all__.copy


Size = int | tuple[int, ...]  # of a window: the same along all directions, or one for each


class BaseConvolution(Interaction):
    """A convolution over images or sequences; `directions` says which."""

    directions: ClassVar[int]
    pool: Pool | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: Size,
        stride: Size,
        padding: Size,
        dilation: Size,
        groups: int,
        pool: Pool | None,
        bias: bool,
    ) -> None:
        super().__init__()
        for name, size in {"in_channels": in_channels, "out_channels": out_channels, "groups": groups}.items():
            check_size(name, size)
        sizes = self._sizes("kernel", kernel)
        # Stride, padding and dilation along every direction.
        self._windows = self._sizes("stride", stride), self._sizes("padding", padding, 0), self._sizes("dilation", dilation)
        if in_channels % groups or out_channels % groups:
            raise ValueError(f"`groups` must divide the channels, {in_channels} and {out_channels}, got {groups}.")
        kind = (nn.Conv1d, nn.Conv2d)[self.directions - 1]
        convolution = kind(in_channels, out_channels, sizes, groups=groups, bias=bias)  # pyright: ignore[reportArgumentType]
        self.weight, self.bias = convolution.weight, convolution.bias
        self.stride = stride
        self.padding = padding
        self.dilation = dilation
        self.groups = groups
        self.pool = pool

    def _sizes(self, name: str, size: Size, least: int = 1) -> tuple[int, ...]:
        """One for each direction."""
        sizes = size if isinstance(size, tuple) else (size,) * self.directions
        if len(sizes) != self.directions:
            raise ValueError(f"`{name}` must be a number or {self.directions} of them, got {brief(size)}.")
        for each in sizes:
            check_size(name, each, least)
        return sizes

    def up(self, pre: Tensor) -> Tensor:
        u = self.convolve(pre)
        return u if self.pool is None else self.pool(u)

    def down(self, pre: Tensor, post: Tensor) -> Tensor:
        return self.convolve_back(pre.shape[2:], self._unpool(pre, post))

    def contact(self, pre: Tensor) -> Contact:
        return Contact(self, pre, fresh=True) if self.pool is None else _PooledContact(self, pre, self.pool)

    def latched(self, pre: Tensor) -> Self:
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
        weighted = unpooled if weights is None else Pair(*(part * per_sample(weights, part) for part in unpooled))
        over = (0, *range(2, 2 + self.directions))
        return self._pulled_back(
            weight=lambda: -(self._correlate(pre.mean, weighted.difference) + self._correlate(pre.difference, weighted.mean)),
            bias=lambda: -weighted.difference.sum(over),
        )

    def there_and_back(self, pre: Tensor) -> Tensor | None:
        there = self._slide(pre, None)
        pooled = there if self.pool is None else self.pool.there_and_back(there)
        return None if pooled is None else self.convolve_back(pre.shape[2:], pooled)

    def without_bias(self) -> Self:
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
        correlate = (conv1d_weight, conv2d_weight)[self.directions - 1]
        return correlate(pre, list(self._kernel_shape), post, *self._windows, self.groups)  # pyright: ignore[reportArgumentType]

    def out_shape(self, shape: Shape) -> Shape:
        out_channels, in_channels = self._kernel_shape[0], self._kernel_shape[1] * self.groups
        if len(shape) != 1 + self.directions or shape[0] != in_channels:
            sizes = "length" if self.directions == 1 else "height, width"
            raise ValueError(
                f"{self} expects a layer of shape ({in_channels}, {sizes}), got {shape}: "
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
        return self._kernel_shape.numel() * math.prod(self._convolved(shape))

    def _kernel(self) -> Tensor:
        """What slides over the layer below."""
        return self.weight

    @property
    def _kernel_shape(self) -> torch.Size:
        return self.weight.shape

    def matrix(self, shape: Shape) -> Matrix:
        out_channels, *window = self.weight.shape
        return Matrix(math.prod(window), out_channels // self.groups, math.prod(self._convolved(shape)), self.groups)

    def convolve(self, pre: Tensor) -> Tensor:
        """The current up before it is pooled."""
        return self._slide(pre, self.bias)

    def _slide(self, pre: Tensor, bias: Tensor | None) -> Tensor:
        convolve = (F.conv1d, F.conv2d)[self.directions - 1]
        return convolve(pre, self._kernel(), bias, *self._windows, self.groups)

    def convolve_back(self, sizes: Sequence[int], post: Tensor) -> Tensor:
        """The current that `post` sends back through the convolution, onto a layer of this height and width."""
        stride, padding, dilation = self._windows
        # A strided convolution drops the last rows that do not fill a window; the transpose gives them back, as zeros.
        spans = zip(sizes, self.weight.shape[2:], stride, padding, dilation, strict=True)
        lost = [(size + 2 * pad - wide * (kernel - 1) - 1) % step for size, kernel, step, pad, wide in spans]
        back = (F.conv_transpose1d, F.conv_transpose2d)[self.directions - 1]
        return back(post, self._kernel(), None, stride, padding, lost, self.groups, dilation)

    def _unpool(self, pre: Tensor, post: Tensor) -> Tensor:
        """The current that `post` sends back through the pooling, onto the convolved image."""
        return post if self.pool is None else self.pool.transpose(self.convolve(pre), post)

    def _convolved(self, shape: Shape) -> list[int]:
        spans = zip(shape[1:], self.weight.shape[2:], *self._windows, strict=True)
        return [(size + 2 * pad - wide * (kernel - 1) - 1) // step + 1 for size, kernel, step, pad, wide in spans]

    def extra_repr(self) -> str:
        kernel = tuple(self.weight.shape[2:])
        wide = "" if self.dilation == 1 else f"dilation={self.dilation}, "
        grouped = "" if self.groups == 1 else f"groups={self.groups}, "
        return (
            f"{self._kernel_shape[1] * self.groups}, {self._kernel_shape[0]}, "
            f"kernel={kernel[0] if len(set(kernel)) == 1 else kernel}, stride={self.stride}, padding={self.padding}, "
            f"{wide}{grouped}bias={self.bias is not None}"
        )


@final
class Convolution(BaseConvolution):
    r"""A convolutional edge between images, $U = -\, s_{\ell+1} \bullet \mathcal P(\theta_\ell \star s_\ell)$, with or without
    pooling.

    Args:
        kernel: height and width of the kernel, or one number for both; so are `stride`, `padding` and `dilation`.
        groups: parts of the channels that are convolved on their own, as in `nn.Conv2d`.
        pool: behind the convolution.
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
        dilation: Size = 1,
        groups: int = 1,
        pool: Pool | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel, stride, padding, dilation, groups, pool, bias)

    def as_crossbar(self, *, doubled: bool = False) -> Crossbar:
        from ffebm.interaction.conv_conductance import ConvConductance  # which is a convolution itself

        if self.pool is not None or self.groups != 1 or self.dilation not in (1, (1, 1)):
            return super().as_crossbar(doubled=doubled)
        (out_channels, in_channels), kernel = self.weight.shape[:2], tuple(self.weight.shape[2:])
        return ConvConductance(in_channels, out_channels, kernel, stride=self.stride, padding=self.padding, doubled=doubled)


@final
class Convolution1d(BaseConvolution):
    """A convolutional edge between sequences, layers of shape (channels, length); arguments are those of `nn.Conv1d`."""

    directions: ClassVar[int] = 1

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int = 3,
        *,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel, stride, padding, dilation, groups, None, bias)


class _PooledContact(Contact):
    """Remembers what was convolved and pooled on the way up for the way down."""

    lasting: ClassVar[bool] = True

    def __init__(self, edge: BaseConvolution, pre: Tensor, pool: Pool) -> None:
        convolved = edge.convolve(pre)
        self.pooled, positions = pool.pooled(convolved)
        known = () if positions is None else (positions,)
        sizes = pre.shape[2:]  # and not `pre` itself, which lives as long as somebody else holds it
        self.down = lambda post: edge.convolve_back(sizes, pool.transpose(convolved, post, *known))

    def up(self) -> Tensor:
        return self.pooled.clone()
