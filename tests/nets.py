"""Small nets that the tests share, and ways to compare gradients."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ffebm import (
    FFEBM,
    AveragePool,
    ConvLayer,
    DenseLayer,
    FixedPoint,
    GradientEstimator,
    MaxPool,
    SoftPool,
    build,
)
from ffebm.builder import Layer
from ffebm.pooling import Pool

CONVERGED = FixedPoint(2000, tolerance=1e-14)
POOLS: dict[str, type[Pool]] = {"max": MaxPool, "average": AveragePool, "soft": SoftPool}


def dense_layers() -> list[Layer]:
    return [DenseLayer(9), DenseLayer(7), DenseLayer(8), DenseLayer(6), DenseLayer(5), DenseLayer(6)]


def conv_layers(pool: type[Pool]) -> list[Layer]:
    """Pooling in the stage of the first block and inside the others, and a dense tail."""
    return [
        ConvLayer(4, pool=pool()),
        ConvLayer(4),
        ConvLayer(5),
        ConvLayer(5, pool=pool()),
        ConvLayer(4),
        DenseLayer(6),
    ]


def make(
    kind: str, split: int | list[int], estimator: GradientEstimator, relax: FixedPoint = CONVERGED, **options: object
) -> FFEBM:
    """A float64 model: `kind` is "dense" or the name of a pooling."""
    torch.manual_seed(2)  # with many others, max-pooling inside a block never settles but flips between positions
    shape, layers = ((11,), dense_layers()) if kind == "dense" else ((3, 8, 8), conv_layers(POOLS[kind]))
    return build(shape, layers, split, 5, estimator=estimator, relax=relax, **options).double()


def batch(model: FFEBM, samples: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    assert model.input_shape is not None
    x = torch.randn(samples, *model.input_shape, generator=generator, dtype=torch.float64)
    return x.to(next(model.parameters()).dtype), torch.arange(samples) % 5


def worst(ours: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """The largest relative error of any parameter's gradient."""
    assert ours.keys() == expected.keys()
    return max(relative(ours[name], expected[name]) for name in expected)


def relative(ours: Tensor, expected: Tensor) -> float:
    """The relative error, or the absolute one where zero is expected."""
    return ((ours - expected).norm() / (expected.norm() or 1)).item()
