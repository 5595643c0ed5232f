"""ImageNet at 32 × 32, from the official pickled batches."""

from __future__ import annotations

from pathlib import Path

from ffebm.checks import brief
from ffebm.experiment.data.dataset import Dataset, Samples, checked_samples, joined
from ffebm.experiment.data.unpickling import read_pickle
from ffebm.experiment.errors import DataError

__all__ = ["read_imagenet32"]
__dir__ = __all__.copy

SHAPE, CLASSES = (3, 32, 32), 1000
MEAN, STD = (0.485, 0.456, 0.406), (0.3435, 0.336, 0.3375)  # Paper: Table [tab:data_normalization]
TRAIN_FILES = tuple(f"train_data_batch_{i}" for i in range(1, 11))
TEST_FILE = "val_data"


def read_imagenet32(folder: Path) -> Dataset:
    train = joined([_read(folder / name) for name in TRAIN_FILES])
    names = tuple(str(number) for number in range(1, CLASSES + 1))
    return Dataset("imagenet32", train, _read(folder / TEST_FILE), names, MEAN, STD)


def _read(path: Path) -> Samples:
    content = read_pickle(path)
    if not {"data", "labels"} <= content.keys():
        raise DataError(f"{path} lacks data or labels; it holds {brief(sorted(content))}. Fetch it again.")
    return checked_samples(content["data"], content["labels"], SHAPE, CLASSES, str(path), first=1)  # classes count from 1
