"""Layers of units, as `build` takes them, and the connections into them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from ffebm.checks import check_size
from ffebm.interaction import Convolution, Dense, Shape
from ffebm.pooling import AveragePool, Pool

__all__ = ["ConvLayer", "DenseLayer", "Layer"]
__dir__ = __all__.copy


@dataclass(frozen=True)
class Layer(ABC):
    """A layer of units, as `build` takes it.

    Args:
        skip: how many layers back those are that it is tied to besides the one below it, all in its own block: one number, or
            several. 2 skips one layer.
    """

    skip: int | tuple[int, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        for back in self.skips:
            check_size("skip", back, least=2)

    @property
    def skips(self) -> tuple[int, ...]:
        return tuple(self.skip) if isinstance(self.skip, Sequence) else (self.skip,)

    @abstractmethod
    def connection(self, shape: Shape, *, bias: bool) -> Dense | Convolution:
        """That from the layer below, which has this shape."""

    @abstractmethod
    def shortcut(self, shape: Shape, way: Sequence[Layer]) -> Dense | Convolution:
        """That from a layer of this shape further down, without a bias; `way` is what the chain goes through, up to here."""


@dataclass(frozen=True)
class ConvLayer(Layer):
    """A layer of channels × height × width units; the pooling, if any, comes after its convolution.

    A skip connection into it is a convolution of single pixels, as coarse as the way around. Where that pools, it averages.
    """

    channels: int
    kernel: int = 3
    stride: int = 1
    padding: int = 1
    pool: Pool | None = None

    def connection(self, shape: Shape, *, bias: bool) -> Convolution:
        if len(shape) != 3:
            raise ValueError(
                f"A convolutional layer of {self.channels} channels stands on a layer of shape {shape}: "
                "convolutions need (channels, height, width) below them, so put dense layers last."
            )
        pool = deepcopy(self.pool)  # each connection has its own
        return Convolution(shape[0], self.channels, self.kernel, stride=self.stride, padding=self.padding, pool=pool, bias=bias)

    def shortcut(self, shape: Shape, way: Sequence[Layer]) -> Convolution:
        stride, window, step = 1, 1, 1  # of the convolution; window and stride of all poolings on the way as one
        for layer in way:
            assert isinstance(layer, ConvLayer)  # none other stands below a convolution
            stride *= layer.stride
            if layer.pool is not None:
                window += (layer.pool.window - 1) * step
                step *= layer.pool.stride
        pool = None if window == step == 1 else AveragePool(window, step)
        return Convolution(shape[0], self.channels, 1, stride=stride, pool=pool, bias=False)


@dataclass(frozen=True)
class DenseLayer(Layer):
    """A layer of units that are connected to all of the layer below."""

    features: int

    def connection(self, shape: Shape, *, bias: bool) -> Dense:
        return Dense(math.prod(shape), self.features, bias)

    def shortcut(self, shape: Shape, way: Sequence[Layer]) -> Dense:
        return self.connection(shape, bias=False)
