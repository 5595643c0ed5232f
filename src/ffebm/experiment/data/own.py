"""Data of one's own: what is found out about it, and how test images are set apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ffebm.checks import brief_name
from ffebm.experiment.data.dataset import Dataset, Samples
from ffebm.experiment.errors import DataError

Colours = Literal["grey", "colour"]

GREY = (0.299, 0.587, 0.114)  # how much red, green and blue weigh: ITU-R BT.601, as Pillow has it
MEASURED = 1024  # images at once, whose mean is measured
FLATTEST = 1e-3  # deviation, of images of which a channel is the same everywhere
LARGEST_SIDE = 1024
MOST_BYTES = 16 * 2**30


@dataclass(frozen=True)
class Wishes:
    """What settings say of data of one's own."""

    size: int | None = None  # pixels of a side that images are brought to
    colours: Colours | None = None
    test_part: float = 0.2  # of the images of each class, where there are no test images
    test_seed: int = 0


def own_dataset(name: str, train: Samples, test: Samples | None, classes: Sequence[str], wishes: Wishes) -> Dataset:
    """A data set of samples of one's own, brought to size, split, and measured."""
    train = _brought(train, wishes)
    test = None if test is None else _brought(test, wishes)
    if test is None:
        train, test = set_apart(train, len(classes), wishes.test_part, wishes.test_seed)
    if train.x.shape[1:] != test.x.shape[1:]:
        sizes = f"{tuple(train.x.shape[1:])} and {tuple(test.x.shape[1:])}"
        raise DataError(f"Training and test images differ in shape, {sizes}: give data.size, and data.colours.")
    if not len(train) or not len(test):
        raise DataError(f"There are {len(train)} training and {len(test)} test images: both are needed.")
    mean, std = statistics(train.x)
    return Dataset(name, train, test, tuple(classes), mean, std)


def set_apart(samples: Samples, classes: int, part: float, seed: int) -> tuple[Samples, Samples]:
    """A part of the images of every class, drawn by a seed, for testing; the others, in their order, for training."""
    generator = torch.Generator().manual_seed(seed)
    tested = torch.zeros(len(samples), dtype=torch.bool)
    for label in range(classes):
        (members,) = (samples.y == label).nonzero(as_tuple=True)
        count = min(max(1, round(part * len(members))), len(members) - 1)  # each class has some of both, if it has two
        tested[members[torch.randperm(len(members), generator=generator)[: max(0, count)]]] = True
    return Samples(samples.x[~tested], samples.y[~tested]), Samples(samples.x[tested], samples.y[tested])


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
    low, high = images.min().item(), images.max().item()
    if not images.is_floating_point() or not (low >= 0 and high <= 1):
        raise DataError(
            f"{where}: images must be bytes, or numbers between 0 and 1, got {images.dtype} from {low:g} to {high:g}. "
            "Leave normalisation to the run, which measures mean and deviation."
        )
    return (images * 255).round().to(torch.uint8)


def _brought(samples: Samples, wishes: Wishes) -> Samples:
    """To the size and the colours that are wished for."""
    x = samples.x
    if wishes.colours == "grey" and x.shape[1] == 3:
        x = (x.float() * torch.tensor(GREY).view(-1, 1, 1)).sum(1, keepdim=True).round().to(torch.uint8)
    if wishes.colours == "colour" and x.shape[1] == 1:
        x = x.expand(-1, 3, -1, -1)
    if wishes.size is not None and x.shape[2:] != (wishes.size, wishes.size):
        to = (wishes.size, wishes.size)
        pieces = [F.interpolate(some.float(), to, mode="bilinear", antialias=True) for some in x.split(MEASURED)]
        x = torch.cat([piece.round().clamp(0, 255).to(torch.uint8) for piece in pieces])
    return Samples(x.contiguous(), samples.y)


def check_room(images: int, shape: Sequence[int], where: str) -> None:
    size = images * shape[0] * shape[1] * shape[2]
    if size > MOST_BYTES:
        raise DataError(
            f"{where}: {images:,} images of {shape[1]} × {shape[2]} pixels take {size / 2**30:.0f} GiB of memory. "
            "Bring them to a smaller size by data.size."
        )


def check_classes(train: Sequence[str], test: Sequence[str], where: str) -> None:
    """Every class of the test images must have been learnt."""
    unknown = [name for name in test if name not in train]
    if unknown:
        raise DataError(f"{where}: the test images have classes that no training image has: {brief_name(', '.join(unknown))}.")
    if len(train) < 2:
        raise DataError(f"{where}: {len(train)} class{'es' if not train else ''} found; at least two can be told apart.")
