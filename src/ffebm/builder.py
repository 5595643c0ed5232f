"""From a list of layers and a split to the model of the paper."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor, nn

from ffebm.activation import Activation, clamp, identity
from ffebm.block import EnergyBlock, Unsettled
from ffebm.checks import check_size, check_type
from ffebm.energy import Hopfield
from ffebm.feedforward import Feedforward
from ffebm.gradient import EquilibriumPropagation, GradientEstimator
from ffebm.initialisation import Gains, initialise, scale_
from ffebm.interaction import Convolution, Dense, Interaction, Shape
from ffebm.model import FFEBM, Criterion, LastNudge
from ffebm.pooling import Pool
from ffebm.relaxation import FixedPoint, Relaxation
from ffebm.rules import block_sizes

T = TypeVar("T")


class Layer(ABC):
    """A layer of units, as `build` takes it."""

    @abstractmethod
    def connection(self, shape: Shape, bias: bool) -> Dense | Convolution:
        """The connection from a layer of this shape into this one."""


@dataclass(frozen=True)
class ConvLayer(Layer):
    """A layer of channels × height × width units; the pooling, if any, comes after its convolution."""

    channels: int
    kernel: int = 3
    stride: int = 1
    padding: int = 1
    pool: Pool | None = None

    def connection(self, shape: Shape, bias: bool) -> Convolution:
        if len(shape) != 3:
            raise ValueError(
                f"A convolutional layer of {self.channels} channels stands on a layer of shape {shape}: "
                "convolutions need (channels, height, width) below them, so put dense layers last."
            )
        pool = deepcopy(self.pool)
        return Convolution(shape[0], self.channels, self.kernel, stride=self.stride, padding=self.padding, pool=pool, bias=bias)


@dataclass(frozen=True)
class DenseLayer(Layer):
    """A layer of units that are connected to all of the layer below."""

    features: int

    def connection(self, shape: Shape, bias: bool) -> Dense:
        return Dense(math.prod(shape), self.features, bias)


def build(
    input_shape: Sequence[int],
    layers: Sequence[Layer],
    split: int | Sequence[int],
    classes: int,
    *,
    activation: Activation = clamp(0.5),
    output_activation: Activation | Sequence[Activation] = identity(),
    batch_norm: bool | Sequence[bool] = True,
    norm_eps: float = 1e-5,
    relax: Relaxation = FixedPoint(20),
    estimator: GradientEstimator | Sequence[GradientEstimator] = EquilibriumPropagation(),
    criterion: Criterion | None = None,
    nudge: LastNudge = "elastic",
    weights: Callable[[Tensor], object] | None = None,
    gains: Gains = Gains(),
    unsettled: Unsettled = "warn",
    recompute: bool = False,
) -> FFEBM:
    r"""The ff-EBM whose layers, cut into blocks, are `layers`.

    The connection *into* the first layer of each block is digital: convolution, pooling, batch-norm, which is the stage
    $F^k$. Those between the layers of a block are analog. A flatten and a linear layer read out the last block.

    Args:
        input_shape: of one sample, such as (3, 32, 32).
        split: a block size (the last block takes what is left over), or the size of every block.
        activation: of all layers but the outputs of blocks.
        output_activation: of the last layer of each block, one for all or one per block; the paper leaves them unclamped.
        batch_norm: whether a stage normalises, one answer for all or one per block. Where it does not, it has a bias.
        norm_eps: what batch-norms add to variances; take less where large blocks hand on fainter signals.
        estimator: one for all, or one per block.
        weights: initialises every convolution in place, for example `functools.partial(goe_, variance=5.9e-5)`.
        gains: of the biases, batch-norms and readout that torch begins with, for example `Gains(readout=4)`.
        unsettled: what blocks do that end far from an equilibrium: `"warn"` once, `"raise"`, or `"ignore"` it.
        recompute: run stages twice rather than remember what is inside of them, to save memory.

    Paper: Table [tab:architectures], appendix A.6, Activation Functions
    """
    if not layers:
        raise ValueError("A model needs at least one layer, got an empty list.")
    check_size("classes", classes)
    check_type("gains", gains, Gains, "Gains(readout=4)")
    for layer in layers:
        check_type("layers", layer, Layer, "ConvLayer(32) or DenseLayer(10)")
    sizes = block_sizes(len(layers), split)
    count = len(sizes)
    stages: list[nn.Module] = []
    blocks: list[EnergyBlock] = []
    shape: Shape = tuple(input_shape)
    remaining = iter(layers)
    for number, (size, output, norm, gradient) in enumerate(
        zip(
            sizes,
            _per_block("output_activation", output_activation, count),
            _per_block("batch_norm", batch_norm, count),
            _per_block("estimator", estimator, count),
            strict=True,
        ),
        1,
    ):
        first, *inner = (next(remaining) for _ in range(size))
        connection = _edge(shape, first, bias=not norm)
        shape = connection.out_shape(shape)
        stages.append(Feedforward(connection, _norm(shape, norm_eps, gains) if norm else None))
        edges: list[Interaction] = []
        for layer in inner:
            edge = _edge(shape, layer, bias=True)
            scale_(edge.bias, gains.biases)
            edges.append(edge)
            shape = edge.out_shape(shape)
        energy = Hopfield(edges, [*[activation] * (size - 1), output])
        blocks.append(EnergyBlock(energy, relax, gradient, name=f"block {number} of {count}", unsettled=unsettled))
    linear = nn.Linear(math.prod(shape), classes)
    scale_(linear.weight, gains.readout)
    readout = nn.Sequential(nn.Flatten(), linear)
    model = FFEBM(stages, blocks, readout, criterion, nudge=nudge, input_shape=input_shape, recompute=recompute)
    return model if weights is None else initialise(model, weights)


def _edge(shape: Shape, layer: Layer, bias: bool) -> Dense | Convolution:
    """The connection from a layer of this shape into `layer`."""
    return layer.connection(shape, bias)


def _norm(shape: Shape, eps: float, gains: Gains) -> nn.Module:
    norm = nn.BatchNorm1d(shape[0], eps) if len(shape) == 1 else nn.BatchNorm2d(shape[0], eps)
    scale_(norm.weight, gains.norms)
    return norm


def _per_block(name: str, value: T | Sequence[T], blocks: int) -> Sequence[T]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return [value] * blocks  # pyright: ignore[reportReturnType]
    if len(value) != blocks:
        raise ValueError(f"`{name}` must be one value for all {blocks} blocks or one for each, got {len(value)}.")
    return value
