"""The digits that come with scikit-learn: no download, 1,797 images of 8 × 8."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from ffebm.experiment.data.dataset import Dataset, Samples

__all__ = ["digits"]
__dir__ = __all__.copy


def digits(test: int = 360) -> Dataset:
    """Always split alike, whatever the seed."""
    images, labels = _read()
    x = (torch.tensor(images).view(-1, 1, 8, 8) * (255 / 16)).round().to(torch.uint8)
    y = torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train = Samples(x[order[test:]], y[order[test:]])
    return Dataset("digits", train, Samples(x[order[:test]], y[order[:test]]), tuple("0123456789"), (0.3053,), (0.3760,))


def _read() -> tuple[np.ndarray, np.ndarray]:
    """Images and labels: from scikit-learn's file where it lies as usual, because importing scikit-learn takes seconds."""
    found = find_spec("sklearn")
    for folder in (found and found.submodule_search_locations) or []:
        path = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if path.is_file():
            rows = np.loadtxt(path, delimiter=",")
            return rows[:, :-1], rows[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits

    return load_digits(return_X_y=True)  # pyright: ignore[reportReturnType]
