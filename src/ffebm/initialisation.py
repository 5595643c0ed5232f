"""Initial weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

__all__ = ["goe_", "initialise"]
__dir__ = __all__.copy

M = TypeVar("M", bound=nn.Module)


@torch.no_grad()
def goe_(weight: Tensor, variance: float = 1.0, generator: torch.Generator | None = None) -> Tensor:
    r"""Fill `weight` in place from the Gaussian orthogonal ensemble: its last two dimensions become symmetric matrices.

    $$W_{ij} = W_{ji} \sim \mathcal N(0, V / n) \text{ for } i \ne j, \qquad W_{ii} \sim \mathcal N(0, 2V / n)$$

    For a convolution these are the n × n kernels.

    Paper: appendix A.6, Weight Initialization
    """
    if not (math.isfinite(variance) and variance > 0):
        raise ValueError(f"`variance` must be positive and finite, got {variance}: the paper's range is 1e-5 to 1e-3.")
    if weight.dim() < 2 or weight.shape[-1] != weight.shape[-2]:
        raise ValueError(
            f"The Gaussian orthogonal ensemble is one of symmetric matrices; got a weight of shape {tuple(weight.shape)}, "
            "whose last two dimensions differ. Use it for square kernels, and `torch.nn.init` for the rest."
        )
    size = weight.shape[-1]
    noise = torch.empty_like(weight).normal_(0, math.sqrt(variance / (2 * size)), generator=generator)
    # The sum of two independent entries doubles the variance off the diagonal; on it, the same entry twice quadruples it.
    return weight.copy_(noise + noise.transpose(-1, -2))


def initialise(model: M, weight: Callable[[Tensor], object]) -> M:
    """Apply `weight`, such as `goe_` or one of `torch.nn.init`, to every convolution of `model`, analog and digital.

    Dense layers and biases keep what they have: a reading of the paper, which does not say.
    """
    for module in model.modules():
        kernel = getattr(module, "weight", None)
        if kernel is not None and kernel.dim() == 4:
            weight(kernel)
    return model
