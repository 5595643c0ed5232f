"""From a list of layers and a split to the model of the paper."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar, get_args

from torch import Tensor, nn

from ffebm.activation import Activation, clamp, identity
from ffebm.block import EnergyBlock, Unsettled
from ffebm.checks import check_choice, check_size, check_type
from ffebm.energy import Edge, Energy, Hopfield, Wiring
from ffebm.feedforward import Feedforward
from ffebm.gradient import EquilibriumPropagation, GradientEstimator
from ffebm.initialisation import initialise
from ffebm.interaction import Interaction, Shape
from ffebm.layer import ConvLayer, DenseLayer, Layer
from ffebm.limit import feedback_within
from ffebm.model import FFEBM, Criterion, LastNudge
from ffebm.relaxation import FixedPoint, Relaxation
from ffebm.rules import block_sizes, check_skips, free_order
from ffebm.substrate import Substrate

__all__ = ["ConvLayer", "DenseLayer", "Layer", "build"]
__dir__ = __all__.copy

T = TypeVar("T")
Readout = Literal["linear", "direct"]


def build(
    input_shape: Sequence[int],
    layers: Sequence[Layer],
    split: int | Sequence[int],
    classes: int,
    *,
    activation: Activation = clamp(0.5),
    output_activation: Activation | Sequence[Activation | None] | None = None,
    feedback: float | None = None,
    energy: Callable[..., Energy] = Hopfield,
    wiring: Wiring | Sequence[Wiring | None] | None = None,
    batch_norm: bool | Sequence[bool] = True,
    relax: Relaxation | None = None,
    estimator: GradientEstimator | Sequence[GradientEstimator] | None = None,
    criterion: Criterion | None = None,
    readout: Readout = "linear",
    nudge: LastNudge | None = None,
    weights: Callable[[Tensor], object] | None = None,
    unsettled: Unsettled = "warn",
    max_contraction: float | None = None,
    recompute: bool = False,
    hardware: Substrate | None = None,
) -> FFEBM:
    r"""The ff-EBM whose layers, cut into blocks, are `layers`.

    The connection *into* the first layer of each block is digital: convolution, pooling, batch-norm, which is the stage
    $F^k$. Those between the layers of a block are analog, skip connections (`ConvLayer(32, skip=2)`) among them. A flatten
    and a linear layer read out the last block. A block with a `wiring` is a resistive network of the same layers.

    Args:
        input_shape: of one sample, such as (3, 32, 32).
        split: a block size (the last block takes what is left over), or the size of every block.
        activation: of all layers but the outputs of blocks.
        output_activation: of the last layer of each block, one for all or one per block, and taken as it is. None is the
            paper's `identity()`, but `activation` where max-pooling lies under the layer: inside a block it never settles
            below a layer that may be negative.
        feedback: how much of a current comes back, ε, in every block: see `Hopfield`. 1 is the paper's. None is 1 too, but less
            in blocks with a limit that would let little pass on: see `ffebm.limit.feedback_within`.
        energy: makes the energy of every block; it is called as `Hopfield` is, with interactions, activations and `feedback`.
        wiring: of blocks that are circuits, one for all, or one for each block and None where it is not: see `Wiring`. Rails
            bound their layers, not activations; they settle without a limit.
        batch_norm: whether a stage normalises, one answer for all or one per block. Where it does not, it has a bias.
        relax: how free equilibria are found. None is 20 sweeps: layer by layer, `order="upward"`, where all blocks have a limit
            or are circuits, and odd layers before even ones, as in the paper, where they have none.
        estimator: one for all, or one per block. None is equilibrium propagation: by one nudge, `Stencil.small_signal()`, where
            blocks have a limit, or are circuits, and so settle; centered where they do not, or run on hardware.
        readout: `"linear"`, or `"direct"`, where the last layer has a unit for each class, and is the logits.
        nudge: of the last block, see `FFEBM`. None is `"elastic"`, but `"stationary"` on hardware: an elastic one goes through
            the digital readout at every sweep.
        weights: initialises every convolution in place, for example `functools.partial(goe_, variance=5.9e-5)`.
        unsettled: what blocks do that end far from an equilibrium: `"warn"` once, `"raise"`, or `"ignore"` it.
        max_contraction: a limit on the gain of every block: see `EnergyBlock`. None is no limit.
        recompute: run stages twice rather than remember what is inside of them, to save memory.
        hardware: what blocks run on: see `EnergyBlock`. None is ideal.

    Paper: Table [tab:architectures], appendix A.6, Activation Functions
    """
    if not layers:
        raise ValueError("A model needs at least one layer, got an empty list.")
    check_size("classes", classes)
    for layer in layers:
        check_type("layers", layer, Layer, "ConvLayer(32) or DenseLayer(10)")
    sizes = block_sizes(len(layers), split)
    wirings = _per_block("wiring", wiring, len(sizes))
    settle = max_contraction is not None or None not in wirings
    free = FixedPoint(20, order=free_order(settle)) if relax is None else relax
    check_skips([(number - back, number) for number, layer in enumerate(layers, 1) for back in layer.skips], sizes)
    count = len(sizes)
    stages: list[nn.Module] = []
    blocks: list[EnergyBlock] = []
    shape: Shape = tuple(input_shape)
    shapes: list[Shape] = []  # of what enters each block
    outputs = _per_block("output_activation", output_activation, count)
    norms = _per_block("batch_norm", batch_norm, count)
    by_nudges = [_by_nudges(max_contraction is not None or wired is not None, hardware) for wired in wirings]
    estimators = by_nudges if estimator is None else _per_block("estimator", estimator, count)
    for gradient in estimators:
        check_type("estimator", gradient, GradientEstimator, "EquilibriumPropagation()")
    parts = zip(sizes, outputs, norms, estimators, wirings, strict=True)
    for number, (size, output, norm, gradient, wired) in enumerate(parts, 1):
        own = layers[(before := sum(sizes[: number - 1])) : before + size]
        connection = own[0].connection(shape, bias=not norm)
        below, shape = shape, connection.out_shape(shape)
        name = f"block {number} of {count}"
        chain, skips, reached = _edges(own, shape, before + 1)
        if wired is None:
            shapes.append(shape)
            stages.append(Feedforward(connection, _norm(shape) if norm else None))
            last = _output_activation(chain, activation, name) if output is None else output
            back = feedback_within(max_contraction, size, faintest=gradient.faintest) if feedback is None else feedback
            made = energy([*chain, *skips], [*[activation] * (size - 1), last], feedback=back)
        else:
            if skips:
                raise ValueError(f"{name.capitalize()} is a circuit, and has skip connections: its crossbars are a chain.")
            shapes.append(below if wired.held else shape)
            normed = _norm(shapes[-1]) if norm else None
            stages.append((normed or nn.Identity()) if wired.held else Feedforward(connection, normed))
            made = wired.energy(connection, chain)
        shape = reached
        limit = max_contraction if wired is None else None
        block = EnergyBlock(made, free, gradient, name=name, unsettled=unsettled, max_contraction=limit, hardware=hardware)
        blocks.append(block)
    head = _readout(readout, shape, classes)
    nudge = nudge or ("elastic" if hardware is None else "stationary")
    model = FFEBM(stages, blocks, head, criterion, nudge=nudge, input_shape=input_shape, recompute=recompute)
    model = model if weights is None else initialise(model, weights)
    for block, entering in zip(blocks, shapes, strict=True):
        block.energy.confine_()
        if block.limit is not None:
            block.limit.keep(block.energy, entering)
    return model


def _edges(layers: Sequence[Layer], shape: Shape, first: int) -> tuple[list[Interaction], list[Edge], Shape]:
    """The chain through the layers of a block, the skip connections besides it, and the shape of the last layer.

    Args:
        shape: of the first of them.
        first: its number in the model, from 1.
    """
    shapes = [shape]
    chain: list[Interaction] = []
    skips: list[Edge] = []
    for place, layer in enumerate(layers[1:], 1):
        edge = layer.connection(shapes[-1], bias=True)
        chain.append(edge)
        shapes.append(edge.out_shape(shapes[-1]))
        for start in (place - back for back in layer.skips):
            shortcut = layer.shortcut(shapes[start], layers[start + 1 : place + 1])
            if (reached := shortcut.out_shape(shapes[start])) != shapes[-1]:
                raise ValueError(
                    f"The skip connection from layer {first + start} to layer {first + place} (counted from 1) ends in shape "
                    f"{reached}, and the way around it in {shapes[-1]}: it follows strides and pooling, nothing else. Pad the "
                    "layers on the way, by 1 where kernels are 3 × 3, and let windows divide the image."
                )
            skips.append(Edge(start, place, shortcut))
    return chain, skips, shapes[-1]


def _output_activation(chain: Sequence[Interaction], activation: Activation, block: str) -> Activation:
    """That of a block's last layer, where it is left open: unclamped, but with max-pooling under it like the others.

    Below a layer that may be negative, max-pooling never settles: docs/theory.md, Pooling that settles.
    """
    if activation.signed and any(edge.chooses for edge in chain):
        raise ValueError(
            f"{block.capitalize()} has max-pooling inside, and its layers ({activation}) may be negative: sweeps would flip "
            "between positions for ever. Take `AveragePool` or `SoftPool`, or an `activation` that is not negative, such as "
            "clamp(0.5). To have it as it is, give `output_activation`, too."
        )
    return activation if chain and chain[-1].chooses else identity()


def _by_nudges(settles: bool, hardware: Substrate | None) -> GradientEstimator:
    if not settles:
        return EquilibriumPropagation()
    variant = "small-signal" if hardware is None else "centered"  # converters see nothing of what is infinitely small
    return EquilibriumPropagation(FixedPoint(10, order="downward"), variant=variant)


def _readout(kind: Readout, shape: Shape, classes: int) -> nn.Module:
    check_choice("readout", kind, get_args(Readout))
    units = math.prod(shape)
    if kind == "linear":
        return nn.Sequential(nn.Flatten(), nn.Linear(units, classes))
    if units != classes:
        raise ValueError(
            f'With readout="direct" the last layer is the logits: it has {units} units, and there are {classes} classes.'
        )
    return nn.Flatten()


def _norm(shape: Shape) -> nn.Module:
    return nn.BatchNorm1d(shape[0]) if len(shape) == 1 else nn.BatchNorm2d(shape[0])


def _per_block(name: str, value: T | Sequence[T], blocks: int) -> Sequence[T]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return [value] * blocks  # pyright: ignore[reportReturnType]
    if len(value) != blocks:
        raise ValueError(f"`{name}` must be one value for all {blocks} blocks or one for each, got {len(value)}.")
    return value
