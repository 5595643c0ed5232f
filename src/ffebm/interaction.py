r"""One edge $\theta_\ell$ of an energy: the current it sends up, its transpose, and its energy."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple, TypeVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

from ffebm.checks import check_size, refuse_old_names
from ffebm.pooling import Pool
from ffebm.state import dot, repeated

M = TypeVar("M", bound=nn.Module)
Shape = tuple[int, ...]
Ends = tuple[Tensor, Tensor]  # the states at the two ends of an edge, (pre, post)


class Interaction(nn.Module, ABC):
    r"""A bidirectional edge between layer $s_\ell$ (`pre`) and layer $s_{\ell+1}$ (`post`).

    $$U(s_\ell, s_{\ell+1}) = -\, s_{\ell+1} \cdot \mathrm{up}(s_\ell)$$

    A subclass of this class needs `up` and `out_shape`; `down`, its transpose, falls back on autograd. `Dense` and
    `Convolution` are final: their `down` and `contrast_gradient` belong to their `up`.

    Paper: appendix A.4, Deep Hopfield Networks, without the superfluous ½ of the per-layer sums
    """

    def __init_subclass__(cls) -> None:
        refuse_old_names(cls, held="latched", contrast="contrast_gradient")

    @abstractmethod
    def up(self, pre: Tensor) -> Tensor:
        """The bottom-up current into `post`."""

    @abstractmethod
    def out_shape(self, shape: Shape) -> Shape:
        """The shape of `post` for a `pre` of this shape, both without the batch; raises where they do not fit."""

    def down(self, pre: Tensor, post: Tensor) -> Tensor:
        r"""The top-down current into `pre`, $\partial_{pre} (post \cdot \mathrm{up}(pre))$."""
        (current,) = torch.func.vjp(self.up, pre)[1](post)
        return current

    def forward(self, pre: Tensor, post: Tensor) -> Tensor:
        """The energy of the edge for every sample, shape (B,)."""
        return -dot(post, self.up(pre))

    def contact(self, pre: Tensor) -> Contact:
        """The edge where it meets this state below it, for sweeps that no graph records."""
        return Contact(self, pre)

    def contrast_gradient(self, high: Ends, low: Ends, weights: Tensor) -> dict[str, Tensor]:
        """The derivative of the weighted sum of `forward(*high) - forward(*low)`, for those parameters that want one.

        Override it to subtract states before they are multiplied, as `Dense` and `Convolution` do.
        """
        wanted = {name: p for name, p in self.named_parameters() if p.requires_grad}
        if not wanted:
            return {}
        with torch.enable_grad():
            total = (weights * (self(*high) - self(*low))).sum()
        if not total.requires_grad:
            return {name: torch.zeros_like(p) for name, p in wanted.items()}
        grads = torch.autograd.grad(total, list(wanted.values()), allow_unused=True, materialize_grads=True)
        return dict(zip(wanted, grads, strict=True))

    def latched(self, pre: Tensor) -> Interaction:
        """The edge with those choices fixed that it makes for `pre`, as max-pooling does; itself, where it makes none."""
        return self

    def for_copies(self, copies: int) -> Interaction:
        """The edge of a batch that holds every sample so many times: only what is latched sample by sample differs."""
        return self

    @property
    def chooses(self) -> bool:
        """Whether it takes one unit and leaves another, as max-pooling does."""
        return False

    @property
    def holomorphic(self) -> bool:
        """Whether it takes complex states."""
        return False

    def _pulled_back(self, **gradients: Callable[[], Tensor]) -> dict[str, Tensor]:
        """Gradients of tensors that it computes with, as gradients of its parameters: a weight may be parametrised."""
        wanted = {name: p for name, p in self.named_parameters() if p.requires_grad}
        if wanted.keys() <= gradients.keys():
            return {name: gradients[name]() for name in wanted}
        with torch.enable_grad():
            used = {name: tensor for name in gradients if (tensor := getattr(self, name)) is not None and tensor.requires_grad}
        found = torch.autograd.grad(
            list(used.values()),
            list(wanted.values()),
            [gradients[name]() for name in used],
            allow_unused=True,
            materialize_grads=True,
        )
        return dict(zip(wanted, found, strict=True))

    def check_hooks(self, where: str) -> None:
        """Refuse tensors that a hook on `forward` renews, as pruning does: sweeps call `up` and `down`, which run no hooks."""
        stale = [name for name, value in vars(self).items() if isinstance(value, Tensor)] if self._forward_pre_hooks else []
        if stale:
            raise RuntimeError(
                f"{', '.join(f'`{name}`' for name in stale)} of {self} ({where}) is computed by a hook on `forward`, the way "
                "of pruning and of the old `weight_norm` and `spectral_norm`: sweeps call `up` and `down`, which run no hooks, "
                "so it would never change. Use `torch.nn.utils.parametrize`, or make a pruning permanent by `prune.remove`."
            )

    def macs(self, shape: Shape) -> int | None:
        """Multiply-accumulates of one `up` for one sample, or None where they are not known."""
        return None


@final
class Dense(Interaction):
    """A fully connected edge; a `pre` with several dimensions is flattened."""

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
        pre, post = _mean_and_difference(high[0], low[0]), _mean_and_difference(high[1], low[1])
        weighted = _Pair(*(-weights.unsqueeze(1) * part for part in post))
        return self._pulled_back(
            weight=lambda: weighted.difference.mT @ pre.mean.flatten(1) + weighted.mean.mT @ pre.difference.flatten(1),
            bias=lambda: weighted.difference.sum(0),
        )

    @property
    def holomorphic(self) -> bool:
        return True

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

    def extra_repr(self) -> str:
        out_features, in_features = self.weight.shape
        return f"{in_features}, {out_features}, bias={self.bias is not None}"


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
        return self.convolve_back(pre, self._unpool(pre, post))

    def contact(self, pre: Tensor) -> Contact:
        return Contact(self, pre, fresh=True) if self.pool is None else _PooledContact(self, pre, self.pool)

    def latched(self, pre: Tensor) -> Convolution:
        if self.pool is None or not self.pool.chooses:
            return self
        return with_children(self, pool=self.pool.latched(self.convolve(pre)))

    def for_copies(self, copies: int) -> Convolution:
        if self.pool is None or (pool := self.pool.for_copies(copies)) is self.pool:
            return self
        return with_children(self, pool=pool)

    def contrast_gradient(self, high: Ends, low: Ends, weights: Tensor) -> dict[str, Tensor]:
        if self.pool is not None and any(True for _ in self.pool.parameters()):
            return super().contrast_gradient(high, low, weights)  # what follows has the pooling stand still
        # The edge is bilinear in `pre` and in `post` as it arrives behind the pooling.
        unpooled = _mean_and_difference(self._unpool(*high), self._unpool(*low))
        pre = _mean_and_difference(high[0], low[0])
        for part in unpooled:
            part.mul_(-weights.view(-1, 1, 1, 1))
        return self._pulled_back(
            weight=lambda: self._correlate(pre.mean, unpooled.difference) + self._correlate(pre.difference, unpooled.mean),
            bias=lambda: unpooled.difference.sum((0, 2, 3)),
        )

    @property
    def chooses(self) -> bool:
        return self.pool is not None and self.pool.chooses

    @property
    def holomorphic(self) -> bool:
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

    def convolve_back(self, pre: Tensor, post: Tensor) -> Tensor:
        """The current that `post` sends back through the convolution, onto a layer like `pre`."""
        kernel = self.weight.shape[-1]
        # A strided convolution drops the last rows that do not fill a window; the transpose gives them back, as zeros.
        lost = [(size + 2 * self.padding - kernel) % self.stride for size in pre.shape[2:]]
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


class Contact:
    """An edge where it meets a state below it. The currents it gives are the caller's to overwrite.

    Args:
        fresh: whether the edge returns new tensors; that of somebody else's may return its argument, or a buffer.
    """

    remembers: ClassVar[bool] = False  # whether it is worth keeping as long as that state stands

    def __init__(self, edge: Interaction, pre: Tensor, *, fresh: bool = False) -> None:
        self.edge = edge
        self.pre = pre
        self.fresh = fresh

    def up(self, copies: int = 1) -> Tensor:
        """The current up; where the state holds the same samples so many times, it is computed once."""
        if copies > 1:
            return repeated(self.edge.up(self.pre[: len(self.pre) // copies]), copies)
        return self._own(self.edge.up(self.pre))

    def down(self, post: Tensor) -> Tensor:
        """The current down from `post`."""
        return self._own(self.edge.down(self.pre, post))

    def _own(self, current: Tensor) -> Tensor:
        return current if self.fresh else current.clone()


class _PooledContact(Contact):
    """Remembers what was convolved and pooled on the way up for the way down."""

    remembers: ClassVar[bool] = True
    edge: Convolution

    def __init__(self, edge: Convolution, pre: Tensor, pool: Pool) -> None:
        super().__init__(edge, pre)
        self.pool = pool
        self.convolved = edge.convolve(pre)
        self.pooled, self.positions = pool.pooled(self.convolved)

    def up(self, copies: int = 1) -> Tensor:
        return self.pooled.clone()

    def down(self, post: Tensor) -> Tensor:
        known = () if self.positions is None else (self.positions,)
        return self.edge.convolve_back(self.pre, self.pool.transpose(self.convolved, post, *known))


class _Pair(NamedTuple):
    mean: Tensor
    difference: Tensor


def _mean_and_difference(high: Tensor, low: Tensor) -> _Pair:
    # a⁺b⁺ − a⁻b⁻ = (a⁺ − a⁻)·½(b⁺ + b⁻) + ½(a⁺ + a⁻)·(b⁺ − b⁻), exactly
    return _Pair(torch.lerp(high, low, 0.5), high - low)


def with_children(module: M, **children: nn.Module) -> M:
    """The same module with the same parameters, but for some of its children."""
    other = module.__class__.__new__(module.__class__)  # copying would refuse parametrised ones
    other.__dict__ = dict(module.__dict__)
    other._modules = {**module._modules, **children}
    return other
