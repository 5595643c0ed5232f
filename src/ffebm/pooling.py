r"""Pooling $\mathcal P$ and its transpose, for use between digital layers and inside an energy."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ffebm.checks import check_size, refuse_old_names
from ffebm.tracing import exporting

__all__ = ["AveragePool", "LatchedPool", "MaxPool", "Pool", "SoftPool"]
__dir__ = __all__.copy


class Pool(nn.Module, ABC):
    r"""A pooling of square windows.

    Inside an energy the term $s_{\ell+1} \cdot \mathcal P(u)$ also acts back on $u$, so a pool knows its transpose,
    $\partial_u (g \cdot \mathcal P(u))$, in closed form.
    """

    holomorphic: ClassVar[bool] = False  # whether it takes complex images
    linear: ClassVar[bool] = False
    chooses: ClassVar[bool] = False  # whether it takes one unit of a window, and so may flip below a negative layer

    def __init_subclass__(cls) -> None:
        refuse_old_names(cls, held="latched")

    def __init__(self, window: int = 2, stride: int | None = None) -> None:
        super().__init__()
        stride = window if stride is None else stride
        check_size("window", window)
        check_size("stride", stride)
        self.window = window
        self.stride = stride

    @abstractmethod
    def forward(self, u: Tensor) -> Tensor: ...

    @abstractmethod
    def transpose(self, u: Tensor, g: Tensor, positions: Tensor | None = None) -> Tensor:
        r"""$\partial_u (g \cdot \mathcal P(u))$, of the shape of `u`; `positions` are what `pooled` gave for it."""

    def there_and_back(self, u: Tensor) -> Tensor | None:
        r"""$A^\top\! A\, u$ for a linear map that is as long as the pooling at its longest; None where none is known."""
        return self.transpose(u, self(u)) if self.linear else None

    def pooled(self, u: Tensor) -> tuple[Tensor, Tensor | None]:
        """The pooled image, and what `transpose` can reuse of the work; None where there is nothing."""
        return self(u), None

    def latched(self, u: Tensor) -> Pool:
        """The pooling that goes on choosing what this one chooses for `u`; itself, where it does not choose."""
        return self

    def out_size(self, size: int) -> int:
        """Height (or width) after pooling `size` pixels."""
        return (size - self.window) // self.stride + 1

    def _windows(self, u: Tensor) -> Tensor:
        """Shape (B, C, units of a window, windows)."""
        if exporting() and self.window == self.stride:  # one of ONNX's exporters knows no `unfold`
            high, wide = (self.out_size(size) for size in u.shape[2:])
            tiles = u[:, :, : high * self.window, : wide * self.window].unflatten(3, (wide, self.window))
            return tiles.unflatten(2, (high, self.window)).permute(0, 1, 3, 5, 2, 4).flatten(4).flatten(2, 3)
        return F.unfold(u, self.window, stride=self.stride).unflatten(1, (u.shape[1], self.window**2))

    def _back(self, u: Tensor, windows: Tensor) -> Tensor:
        """The image of u's size that sums what windows hold where they lie."""
        if exporting() and self.window == self.stride:
            high, wide = (self.out_size(size) for size in u.shape[2:])
            tiles = windows.unflatten(3, (high, wide)).unflatten(2, (self.window, self.window)).permute(0, 1, 4, 2, 5, 3)
            image = tiles.flatten(4).flatten(2, 3)
            return F.pad(image, (0, u.shape[3] - image.shape[3], 0, u.shape[2] - image.shape[2]))
        return F.fold(windows.flatten(1, 2), u.shape[2:], self.window, stride=self.stride)

    def extra_repr(self) -> str:
        return f"window={self.window}, stride={self.stride}"


class MaxPool(Pool):
    """The largest value of each window; the paper's pooling."""

    chooses: ClassVar[bool] = True

    def forward(self, u: Tensor) -> Tensor:
        return F.max_pool2d(u, self.window, self.stride)

    def there_and_back(self, u: Tensor) -> Tensor:
        return u * math.ceil(self.window / self.stride) ** 2  # a unit is chosen by so many windows, those that overlap there

    def pooled(self, u: Tensor) -> tuple[Tensor, Tensor]:
        return F.max_pool2d(u, self.window, self.stride, return_indices=True)

    def transpose(self, u: Tensor, g: Tensor, positions: Tensor | None = None) -> Tensor:
        if positions is None and exporting():  # files know no backward kernels
            windows = self._windows(u)
            places = torch.arange(self.window**2, device=u.device).view(1, 1, -1, 1)
            return self._back(u, (places == windows.argmax(2, keepdim=True)) * g.flatten(2).unsqueeze(2))
        if positions is None:
            _, positions = self.pooled(u.detach())
        return _max_pool_backward(self, u, g, positions)

    def latched(self, u: Tensor) -> Pool:
        return LatchedPool(self, self.pooled(u)[1])


class LatchedPool(Pool):
    """Max-pooling whose positions are given and stay: a linear map.

    Args:
        positions: what `MaxPool.pooled` gave for a batch of images; it serves as many.
    """

    linear: ClassVar[bool] = True

    def __init__(self, pool: Pool, positions: Tensor) -> None:
        super().__init__(pool.window, pool.stride)
        self._positions = positions

    def forward(self, u: Tensor) -> Tensor:
        positions = self._for(u)
        if u.is_contiguous(memory_format=torch.channels_last):  # pixel by pixel, as it lies in memory
            pixels, chosen = (t.permute(0, 2, 3, 1).flatten(1, 2) for t in (u, positions))
            return torch.gather(pixels, 1, chosen).unflatten(1, positions.shape[2:]).permute(0, 3, 1, 2)
        return torch.gather(u.flatten(2), 2, positions.flatten(2)).view_as(positions)

    def pooled(self, u: Tensor) -> tuple[Tensor, Tensor | None]:
        return self(u), self._positions

    def transpose(self, u: Tensor, g: Tensor, positions: Tensor | None = None) -> Tensor:
        return _max_pool_backward(self, u, g, self._for(u))

    def _for(self, u: Tensor) -> Tensor:
        if len(u) != len(self._positions):
            raise ValueError(f"Positions are latched for {len(self._positions)} images, got {len(u)}: latch them for these.")
        return self._positions


class AveragePool(Pool):
    """The mean of each window: linear, so odd/even sweeps stay an exact coordinate descent."""

    holomorphic: ClassVar[bool] = True
    linear: ClassVar[bool] = True

    def forward(self, u: Tensor) -> Tensor:
        if u.is_complex():
            return torch.complex(self(u.real), self(u.imag))
        return F.avg_pool2d(u, self.window, self.stride)

    def transpose(self, u: Tensor, g: Tensor, positions: Tensor | None = None) -> Tensor:
        if g.is_complex():
            return torch.complex(self.transpose(u.real, g.real), self.transpose(u.real, g.imag))
        if exporting():
            return self._back(u, (g / self.window**2).flatten(2).unsqueeze(2).expand(-1, -1, self.window**2, -1))
        window, stride = [self.window] * 2, [self.stride] * 2
        return torch.ops.aten.avg_pool2d_backward(g, u, window, stride, [0, 0], False, True, None)


class SoftPool(Pool):
    r"""The softmax-weighted mean of each window, $\sum_i w_i u_i$ with $w = \mathrm{softmax}(u)$; smooth everywhere."""

    def forward(self, u: Tensor) -> Tensor:
        windows = self._windows(u)
        pooled = (windows.softmax(2) * windows).sum(2)  # (B, C, positions)
        return pooled.unflatten(2, (self.out_size(u.shape[2]), self.out_size(u.shape[3])))

    def transpose(self, u: Tensor, g: Tensor, positions: Tensor | None = None) -> Tensor:
        windows = self._windows(u)
        weights = windows.softmax(2)
        pooled = (weights * windows).sum(2, keepdim=True)
        slopes = weights * (1 + windows - pooled)  # ∂P/∂u_i = w_i (1 + u_i − P)
        return self._back(u, slopes * g.flatten(2).unsqueeze(2))


def _max_pool_backward(pool: Pool, u: Tensor, g: Tensor, positions: Tensor | None) -> Tensor:
    # The backward kernel itself, not max_unpool2d: that one overwrites where windows overlap instead of adding.
    window, stride = [pool.window] * 2, [pool.stride] * 2
    return torch.ops.aten.max_pool2d_with_indices_backward(g, u, window, stride, [0, 0], [1, 1], False, positions)
