"""CIFAR-10 and CIFAR-100, from the official python batches."""

from __future__ import annotations

from pathlib import Path

from ffebm.checks import brief
from ffebm.experiment.data.dataset import Dataset, Samples, checked_samples, joined
from ffebm.experiment.data.unpickling import read_pickle
from ffebm.experiment.errors import DataError

__all__ = ["read_cifar10", "read_cifar100"]
__dir__ = __all__.copy

SHAPE = (3, 32, 32)
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # Paper: Table [tab:data_normalization]

CIFAR10_FILES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
CIFAR100_FILES = ("train", "test")
LONGEST = 100  # letters of a class's name


def read_cifar10(folder: Path) -> Dataset:
    *train, test = (_read(folder / name, "labels", 10) for name in CIFAR10_FILES)
    return Dataset("cifar10", joined(train), test, _names(folder / "batches.meta", "label_names", 10), MEAN, STD)


def read_cifar100(folder: Path) -> Dataset:
    train, test = (_read(folder / name, "fine_labels", 100) for name in CIFAR100_FILES)
    return Dataset("cifar100", train, test, _names(folder / "meta", "fine_label_names", 100), MEAN, STD)


def _read(path: Path, labels: str, classes: int) -> Samples:
    content = read_pickle(path)
    missing = {"data", labels} - content.keys()
    if missing:
        raise DataError(f"{path} lacks {', '.join(sorted(missing))}; it holds {brief(sorted(content))}. Fetch it again.")
    return checked_samples(content["data"], content[labels], SHAPE, classes, str(path))


def _names(path: Path, key: str, classes: int) -> tuple[str, ...]:
    found = read_pickle(path).get(key)
    names = [_decoded(name) for name in found] if isinstance(found, list) else []
    shown = all(0 < len(name) <= LONGEST and name.isprintable() for name in names)
    if not shown or len(set(names)) != classes or len(names) != classes:
        raise DataError(f"{path} should name {classes} classes, in up to {LONGEST} letters each, under {key}. Fetch it again.")
    return tuple(names)


def _decoded(name: object) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name if isinstance(name, str) else ""
