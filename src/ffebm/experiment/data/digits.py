"""The digits that come with scikit-learn: no download, 1,797 images of 8 × 8."""

from __future__ import annotations

import torch

from ffebm.experiment.data.dataset import Dataset, Samples


def digits(test: int = 360) -> Dataset:
    """Always split alike, whatever the seed."""
    from sklearn.datasets import load_digits  # slow to import

    images, labels = load_digits(return_X_y=True)
    x = (torch.tensor(images).view(-1, 1, 8, 8) * (255 / 16)).round().to(torch.uint8)
    y = torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train = Samples(x[order[test:]], y[order[test:]])
    return Dataset("digits", train, Samples(x[order[:test]], y[order[:test]]), tuple("0123456789"), (0.3053,), (0.3760,))
