"""The networks of the paper."""

from __future__ import annotations

from functools import partial

from ffebm.builder import ConvLayer, DenseLayer, Layer, build
from ffebm.gradient import EquilibriumPropagation, GradientEstimator
from ffebm.initialisation import goe_
from ffebm.model import FFEBM
from ffebm.pooling import MaxPool
from ffebm.relaxation import FixedPoint

STATIC_BLOCKS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512), (512, 1024))  # channels
STATIC_POOLED = (2, 3, 4, 5)  # blocks whose stage pools, 1-based


def static_analysis(
    width: float = 1.0, *, variance: float = 5.9e-5, classes: int = 10, estimator: GradientEstimator = EquilibriumPropagation()
) -> FFEBM:
    """The net of the static gradient analysis: 6 blocks, 15 layers, for 3 × 32 × 32 images.

    Args:
        width: scales every channel count, for small machines.
        variance: of the Gaussian orthogonal ensemble, which the paper leaves open here; its value for 12 layers.
            With 1e-5, its value for 15, the cosine between EP and ID falls below 0.999 in some layers at β = 0.02.

    Paper: section 4.2 [subsec:gdd], Fig. [fig:gdd], Fig. [fig:bars]
    """
    layers: list[Layer] = []
    for number, channels in enumerate(STATIC_BLOCKS, 1):
        for position, size in enumerate(channels):
            pooled = position == 0 and number in STATIC_POOLED
            layers.append(ConvLayer(max(1, round(width * size)), pool=MaxPool() if pooled else None))
    layers.append(DenseLayer(max(1, round(width * 4096))))
    split = [len(channels) for channels in STATIC_BLOCKS]
    split[-1] += 1  # the dense layer
    weights = partial(goe_, variance=variance)
    return build((3, 32, 32), layers, split, classes, relax=FixedPoint(15), estimator=estimator, weights=weights)
