"""Data of one's own: how its images are brought to bytes, size and colours, measured, and in part set apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ffebm.checks import brief_name
from ffebm.experiment.data.dataset import Dataset, Description, Samples
from ffebm.experiment.errors import DataError

if TYPE_CHECKING:
    from ffebm.experiment.settings.sections import Data

__all__ = [
    "Colours",
    "Wishes",
    "as_bytes",
    "brought",
    "check_classes",
    "check_room",
    "numbered",
    "set_apart",
    "statistics",
    "validating",
]
__dir__ = __all__.copy

Colours = Literal["grey", "colour"]

GREY = (0.299, 0.587, 0.114)  # how much red, green and blue weigh: ITU-R BT.601, as Pillow has it
MEASURED = 1024  # images at once, whose mean is measured
FLATTEST = 1e-3  # deviation, of images of which a channel is the same everywhere
LARGEST_SIDE = 1024
MOST_BYTES = 16 * 2**30
LONGEST_NAME = 100  # letters of a class, of which a run's data.json holds no more


@dataclass(frozen=True)
class Wishes:
    """What is wanted of data of one's own."""

    size: int | tuple[int, int] | None = None  # pixels of a side, or of height and width, that images are brought to
    colours: Colours | None = None
    test_part: float = 0.2  # of the images of each class, where there are no test images
    test_seed: int = 0
    validation: float = 0.0  # the part of the training images of each class to test on in place of test images

    @classmethod
    def of(cls, chosen: Data) -> Wishes:
        """What settings say."""
        return cls(chosen.size, chosen.colours, chosen.test_part, chosen.test_seed, chosen.validation)

    def for_model(self, known: Description) -> Wishes:
        """The same, with images as a model takes them."""
        channels, height, width = known.shape
        return replace(self, size=(height, width), colours="grey" if channels == 1 else "colour")

    @property
    def sides(self) -> tuple[int, int] | None:
        """Height and width."""
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    @property
    def channels(self) -> int | None:
        return None if self.colours is None else {"grey": 1, "colour": 3}[self.colours]


def set_apart(samples: Samples, classes: int, part: float, seed: int) -> tuple[Samples, Samples]:
    """A part of the images of every class, drawn by a seed, for testing; the others, in their order, for training."""
    generator = torch.Generator().manual_seed(seed)
    tested = torch.zeros(len(samples), dtype=torch.bool)
    for label in range(classes):
        (members,) = (samples.y == label).nonzero(as_tuple=True)
        count = min(max(1, round(part * len(members))), len(members) - 1)  # each class has some of both, if it has two
        tested[members[torch.randperm(len(members), generator=generator)[: max(0, count)]]] = True
    return Samples(samples.x[~tested], samples.y[~tested]), Samples(samples.x[tested], samples.y[tested])


def validating(dataset: Dataset, wishes: Wishes) -> Dataset:
    """The same, without its test images: a part of the training images takes their place, if that is wished."""
    if not wishes.validation:
        return dataset
    train, test = set_apart(dataset.train, len(dataset.classes), wishes.validation, wishes.test_seed)
    return replace(dataset, train=train, test=test)


def statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of every channel, of bytes over 255."""
    channels = images.shape[1]
    sums, squares = torch.zeros(channels, dtype=torch.float64), torch.zeros(channels, dtype=torch.float64)
    for some in images.split(MEASURED):
        values = some.double() / 255
        sums += values.sum((0, 2, 3))
        squares += values.square().sum((0, 2, 3))
    pixels = images.numel() / channels
    mean = sums / pixels
    deviation = (squares / pixels - mean.square()).clamp(min=0).sqrt().clamp(min=FLATTEST)
    return tuple(round(m, 6) for m in mean.tolist()), tuple(round(s, 6) for s in deviation.tolist())


def numbered(labels: Sequence[object]) -> tuple[Tensor, tuple[str, ...]]:
    """Labels as numbers from 0, and what the classes are called: by their labels, in order."""
    found = sorted(set(labels), key=lambda label: (isinstance(label, str), label))
    number = {label: index for index, label in enumerate(found)}
    return torch.tensor([number[label] for label in labels]), tuple(map(str, found))


def as_bytes(images: Tensor, where: str) -> Tensor:
    """Images of shape (N, C, H, W) as bytes: they are already, or numbers between 0 and 1."""
    if images.dim() != 4 or images.shape[1] not in (1, 3) or not all(0 < side <= LARGEST_SIDE for side in images.shape[2:]):
        raise DataError(
            f"{where}: images of shape {tuple(images.shape[1:])} cannot be learnt. They must be grey or in three colours, "
            f"(1 or 3, height, width), with sides of {LARGEST_SIDE} pixels at most."
        )
    if images.dtype == torch.uint8:
        return images
    if images.dtype == torch.bool:
        return images.to(torch.uint8) * 255
    if not images.is_floating_point():
        raise DataError(
            f"{where}: images must be bytes, or floats between 0 and 1, got {images.dtype}, of which nothing says how large "
            "its numbers may be. Divide them by the largest that there can be, 65535 for images of 16 bits."
        )
    low, high = images.min().item(), images.max().item()
    if not (low >= 0 and high <= 1):
        raise DataError(
            f"{where}: images must be bytes, or numbers between 0 and 1, got {images.dtype} from {low:g} to {high:g}. "
            "Leave normalisation to the run, which measures mean and deviation."
        )
    return (images * 255).round().to(torch.uint8)


def brought(x: Tensor, wishes: Wishes) -> Tensor:
    """Bytes, (N, C, H, W), in the size and the colours that are wished for: the middle of each is scaled, as of pictures."""
    if wishes.channels == 1 and x.shape[1] == 3:
        x = (x.float() * torch.tensor(GREY).view(-1, 1, 1)).sum(1, keepdim=True).round().to(torch.uint8)
    if wishes.channels == 3 and x.shape[1] == 1:
        x = x.expand(-1, 3, -1, -1)
    if wishes.sides is not None and x.shape[2:] != wishes.sides:
        x = _middle(x, *wishes.sides)
        pieces = [F.interpolate(some.float(), wishes.sides, mode="bilinear", antialias=True) for some in x.split(MEASURED)]
        x = torch.cat([piece.round().clamp(0, 255).to(torch.uint8) for piece in pieces])
    return x.contiguous()


def _middle(x: Tensor, height: int, width: int) -> Tensor:
    """The largest part around the middle that has the same proportions."""
    scale = min(x.shape[2] / height, x.shape[3] / width)
    down, across = (max(1, round(scale * side)) for side in (height, width))
    upper, left = (x.shape[2] - down) // 2, (x.shape[3] - across) // 2
    return x[:, :, upper : upper + down, left : left + across]


def check_room(images: int, shape: Sequence[int], where: str) -> None:
    size = images * shape[0] * shape[1] * shape[2]
    if size > MOST_BYTES:
        raise DataError(
            f"{where}: {images:,} images of {shape[1]} × {shape[2]} pixels take {size / 2**30:.0f} GiB of memory. "
            "Bring them to a smaller size by data.size."
        )


def check_classes(train: Sequence[str], test: Sequence[str], where: str) -> None:
    """Every class has a name of its own, and every class of the test images must have been learnt."""
    if len(set(train)) < len(train):
        twice = next(name for name in train if train.count(name) > 1)
        raise DataError(f"{where}: two classes are called {brief_name(twice)}; give each a name of its own.")
    odd = [name for name in train if not 0 < len(name) <= LONGEST_NAME or not name.isprintable()]
    if odd:
        raise DataError(
            f"{where}: no class can be called {brief_name(odd[0])}; names have 1 to {LONGEST_NAME} letters that can be printed."
        )
    unknown = sorted(set(test) - set(train))
    if unknown:
        raise DataError(f"{where}: the test images have classes that no training image has: {brief_name(', '.join(unknown))}.")
    if len(train) < 2:
        raise DataError(f"{where}: {len(train)} class{'es' if not train else ''} found; at least two can be told apart.")
