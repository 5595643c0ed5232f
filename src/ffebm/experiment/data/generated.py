"""Small data sets of generated images, in the layout of real ones: for a first try, and where the real are not to be had."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ffebm.experiment.data.cifar import CIFAR10_FILES, CIFAR100_FILES
from ffebm.experiment.data.imagenet32 import CLASSES, TEST_FILE, TRAIN_FILES
from ffebm.experiment.files import write_atomically

__all__ = ["write_generated"]
__dir__ = __all__.copy

PIXELS = 3 * 32 * 32


def write_generated(name: str, root: Path, *, train: int, test: int, seed: int = 0) -> None:
    """Write so many images, a few coloured waves for every class under noise, as the files of the real set are.

    Args:
        name: `cifar10`, `cifar100` or `imagenet32`.
        root: the data folder, in which the set gets its usual place.
    """
    WRITERS[name](root, train, test, np.random.default_rng(seed))


def _write_cifar10(root: Path, train: int, test: int, random: np.random.Generator) -> None:
    folder, classes = root / "cifar-10-batches-py", _Classes(10, random)
    for part, count in _counts(CIFAR10_FILES, train, test).items():
        images, labels = classes.draw(count)
        _save(folder / part, {b"data": images, b"labels": labels})
    _save(folder / "batches.meta", {b"label_names": _names(10)})


def _write_cifar100(root: Path, train: int, test: int, random: np.random.Generator) -> None:
    folder, classes = root / "cifar-100-python", _Classes(100, random)
    for part, count in _counts(CIFAR100_FILES, train, test).items():
        images, labels = classes.draw(count)
        _save(folder / part, {b"data": images, b"fine_labels": labels, b"coarse_labels": [label // 5 for label in labels]})
    _save(folder / "meta", {b"fine_label_names": _names(100)})


def _write_imagenet32(root: Path, train: int, test: int, random: np.random.Generator) -> None:
    folder, classes = root / "imagenet32", _Classes(CLASSES, random)
    for part, count in _counts((*TRAIN_FILES, TEST_FILE), train, test).items():
        images, labels = classes.draw(count)
        _save(folder / part, {"data": images, "labels": [label + 1 for label in labels]})  # the official files count from 1


WRITERS: dict[str, Callable[[Path, int, int, np.random.Generator], None]] = {
    "cifar10": _write_cifar10,
    "cifar100": _write_cifar100,
    "imagenet32": _write_imagenet32,
}


class _Classes:
    """Each class is a wave of its own direction, length and colour; images of it differ by phase and noise."""

    def __init__(self, count: int, random: np.random.Generator) -> None:
        self.random = random
        self.waves = random.normal(size=(count, 2)) * 0.6
        self.colours = random.normal(size=(count, 3)) * 50

    def draw(self, count: int) -> tuple[np.ndarray, list[int]]:
        labels = self.random.permutation(np.arange(count) % len(self.waves))
        rows, columns = np.mgrid[:32, :32]
        angles = np.multiply.outer(self.waves[labels, 0], rows) + np.multiply.outer(self.waves[labels, 1], columns)
        phases = self.random.uniform(0, 2 * np.pi, size=(count, 1, 1))
        waves = self.colours[labels][:, :, None, None] * np.sin(angles + phases)[:, None]
        noisy = 128 + waves + self.random.normal(scale=20, size=waves.shape)
        return noisy.clip(0, 255).astype(np.uint8).reshape(count, PIXELS), labels.tolist()


def _counts(files: Sequence[str], train: int, test: int) -> dict[str, int]:
    """Training images in equal parts; the last file is that of the test images."""
    parts = len(files) - 1
    shares = [train * (i + 1) // parts - train * i // parts for i in range(parts)]
    return dict(zip(files, [*shares, test], strict=True))


def _names(classes: int) -> list[bytes]:
    return [f"wave {number}".encode() for number in range(classes)]


def _save(path: Path, content: object) -> None:
    write_atomically(path, pickle.dumps(content, protocol=2))
