"""Data sets as tensors."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Split(NamedTuple):
    """Images of shape (N, C, H, W) in [0, 1], with their labels."""

    x: Tensor
    y: Tensor


def digits(test: int = 360) -> tuple[Split, Split]:
    """The 1,797 handwritten 8 × 8 digits that come with scikit-learn, for training and for test; always split alike."""
    from sklearn.datasets import load_digits  # an optional dependency, and slow to import

    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    y = torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return Split(x[order[test:]], y[order[test:]]), Split(x[order[:test]], y[order[:test]])
