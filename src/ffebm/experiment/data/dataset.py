"""What a data set is once it is read."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ffebm.checks import brief_name
from ffebm.experiment.errors import DataError

__all__ = ["Dataset", "Description", "Samples", "checked_samples", "joined"]
__dir__ = __all__.copy


class Samples(NamedTuple):
    """Images of shape (N, C, H, W), as bytes, with their labels."""

    x: Tensor  # uint8
    y: Tensor  # int64

    def __len__(self) -> int:  # of samples, not of the pair
        return self.x.shape[0]

    @property
    def fingerprint(self) -> str:
        """A checksum of all of them, in their order."""
        found = hashlib.sha256(str(list(self.x.shape)).encode())
        for part in self:
            found.update(memoryview(part.contiguous().numpy()))  # pyright: ignore[reportArgumentType]
        return found.hexdigest()


@dataclass(frozen=True)
class Description:
    """What a model must know of a data set: all but its images."""

    name: str
    shape: tuple[int, ...]  # of one image
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # to normalise by
    std: tuple[float, ...]
    fingerprint: str = field(default="", compare=False)  # of the images, where they are somebody's own

    def normalise(self, x: Tensor) -> Tensor:
        """Bytes to floats of mean 0 and deviation 1, by channel."""
        mean = torch.tensor(self.mean, device=x.device).view(-1, 1, 1)
        std = torch.tensor(self.std, device=x.device).view(-1, 1, 1)
        return (x.float() / 255 - mean) / std

    def check_knows(self, shape: Sequence[int], classes: Sequence[str]) -> None:
        """Refuse images that a model of these could say nothing of."""
        if tuple(shape) != self.shape:
            raise DataError(f"These images have the shape {tuple(shape)}; the model was trained on {self.shape}.")
        unknown = sorted(set(classes) - set(self.classes))
        if unknown:
            raise DataError(
                f"The model knows no class {brief_name(', '.join(unknown))}, but {brief_name(', '.join(self.classes), 300)}."
            )


@dataclass(frozen=True)
class Dataset:
    """Training and test images, and the statistics to normalise them by."""

    name: str
    train: Samples
    test: Samples
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fingerprint: str = ""  # of images of somebody's own, before a part of them was set apart

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one image."""
        return tuple(self.train.x.shape[1:])

    @property
    def description(self) -> Description:
        return Description(self.name, self.shape, self.classes, self.mean, self.std, self.fingerprint)

    def normalise(self, x: Tensor) -> Tensor:
        return self.description.normalise(x)

    def as_fractions(self) -> Dataset:
        """The same images, with bytes that become numbers from 0 to 1 and are not normalised."""
        channels = len(self.mean)
        return replace(self, mean=(0.0,) * channels, std=(1.0,) * channels)

    def described_as(self, known: Description) -> Dataset:
        """The same images, for a model that was trained on others: with its statistics, and its numbers for classes."""
        known.check_knows(self.shape, self.classes)
        number = torch.tensor([known.classes.index(name) for name in self.classes])
        train, test = (Samples(samples.x, number[samples.y]) for samples in (self.train, self.test))
        return replace(self, train=train, test=test, classes=known.classes, mean=known.mean, std=known.std)

    def few(self, count: int) -> tuple[Tensor, Tensor]:
        """Images from all over the training set, as they are but normalised, with their labels."""
        which = torch.linspace(0, len(self.train) - 1, min(count, len(self.train))).long()
        x = self.normalise(self.train.x[which])
        return x.contiguous(memory_format=torch.channels_last), self.train.y[which]


def checked_samples(
    images: object, labels: object, shape: tuple[int, int, int], classes: int, where: str, *, first: int = 0
) -> Samples:
    """Images and labels as tensors, or a `DataError` that says what is wrong with them and where they came from.

    Args:
        first: the number by which the file calls the first class.
    """
    pixels = math.prod(shape)
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8:
        kind = f"an array of {images.dtype}" if isinstance(images, np.ndarray) else type(images).__name__
        raise DataError(
            f"{where}: images must be an array of uint8, got {kind}. This is not the official file; fetch it again."
        )
    if images.size == 0 or images.size % pixels:
        raise DataError(f"{where}: {images.size} bytes of images are not a whole number of {shape} images. Fetch it again.")
    count, numbers = images.size // pixels, _whole_numbers(labels)
    if numbers is None or numbers.shape != (count,):
        got = type(labels).__name__ if numbers is None else numbers.shape
        raise DataError(f"{where}: {count} images need as many whole-number labels, got {got}. Fetch it again.")
    low, high = int(numbers.min()), int(numbers.max())
    if low < first or high >= first + classes:
        raise DataError(
            f"{where}: labels run from {low} to {high}, but there are {classes} classes, from {first}. "
            "The file is damaged or belongs to another data set."
        )
    return Samples(torch.from_numpy(images.reshape(count, *shape).copy()), torch.from_numpy(numbers.astype(np.int64) - first))


def _whole_numbers(labels: object) -> np.ndarray | None:
    """As an array, or None: numpy would make texts of a list that holds one, each as long as the longest."""
    if isinstance(labels, np.ndarray):
        return labels if labels.dtype.kind in "iu" else None
    if isinstance(labels, list) and all(type(label) is int for label in labels):
        return np.array(labels, np.int64)
    return None


def joined(parts: list[Samples]) -> Samples:
    return Samples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))
