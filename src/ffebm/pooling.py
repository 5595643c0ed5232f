r"""Pooling $\mathcal P$ and its transpose, for use between digital layers and inside an energy."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ffebm.checks import check_size


class Pool(nn.Module, ABC):
    r"""A pooling of square windows.

    Inside an energy the term $s_{\ell+1} \cdot \mathcal P(u)$ also acts back on $u$, so a pool knows its transpose,
    $\partial_u (g \cdot \mathcal P(u))$, in closed form.
    """

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

    def pooled(self, u: Tensor) -> tuple[Tensor, Tensor | None]:
        """The pooled image, and what `transpose` can reuse of the work; None where there is nothing."""
        return self(u), None

    def out_size(self, size: int) -> int:
        """Height (or width) after pooling `size` pixels."""
        return (size - self.window) // self.stride + 1

    def extra_repr(self) -> str:
        return f"window={self.window}, stride={self.stride}"


class MaxPool(Pool):
    """The largest value of each window; the paper's pooling."""

    def forward(self, u: Tensor) -> Tensor:
        return F.max_pool2d(u, self.window, self.stride)

    def pooled(self, u: Tensor) -> tuple[Tensor, Tensor | None]:
        return F.max_pool2d(u, self.window, self.stride, return_indices=True)

    def transpose(self, u: Tensor, g: Tensor, positions: Tensor | None = None) -> Tensor:
        # The backward kernel itself, not max_unpool2d: that one overwrites where windows overlap instead of adding.
        window, stride = [self.window] * 2, [self.stride] * 2
        if positions is None:
            _, positions = self.pooled(u.detach())
        return torch.ops.aten.max_pool2d_with_indices_backward(g, u, window, stride, [0, 0], [1, 1], False, positions)


class AveragePool(Pool):
    """The mean of each window: linear, so odd/even sweeps stay an exact coordinate descent."""

    def forward(self, u: Tensor) -> Tensor:
        return F.avg_pool2d(u, self.window, self.stride)

    def transpose(self, u: Tensor, g: Tensor, positions: Tensor | None = None) -> Tensor:
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
        columns = (slopes * g.flatten(2).unsqueeze(2)).flatten(1, 2)
        return F.fold(columns, u.shape[2:], self.window, stride=self.stride)

    def _windows(self, u: Tensor) -> Tensor:
        columns = F.unfold(u, self.window, stride=self.stride)  # (B, C·window², positions)
        return columns.unflatten(1, (u.shape[1], self.window**2))
