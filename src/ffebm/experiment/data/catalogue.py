"""The data sets by name: where their files lie, and whether they are all there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ffebm.checks import check_choice
from ffebm.experiment.data.cifar import read_cifar10, read_cifar100
from ffebm.experiment.data.condition import Condition, Presence
from ffebm.experiment.data.dataset import Dataset
from ffebm.experiment.data.digits import digits
from ffebm.experiment.data.idx import read_fashion_mnist, read_mnist
from ffebm.experiment.data.imagenet32 import read_imagenet32
from ffebm.experiment.errors import DataError
from ffebm.experiment.places import BUNDLED, PLACES, Place, find_data


@dataclass(frozen=True)
class Entry:
    """A data set that is read from files."""

    place: Place
    read: Callable[[Path], Dataset]
    train: int
    test: int


ENTRIES: dict[str, Entry] = {
    "cifar10": Entry(PLACES["cifar10"], read_cifar10, 50_000, 10_000),
    "cifar100": Entry(PLACES["cifar100"], read_cifar100, 50_000, 10_000),
    "imagenet32": Entry(PLACES["imagenet32"], read_imagenet32, 1_281_167, 50_000),
    "mnist": Entry(PLACES["mnist"], read_mnist, 60_000, 10_000),
    "fashion-mnist": Entry(PLACES["fashion-mnist"], read_fashion_mnist, 60_000, 10_000),
}
NAMES = (BUNDLED, *ENTRIES)


def load(name: str, root: Path | None = None) -> Dataset:
    """Read a data set from the folder `root`, or from that which the environment variable FFEBM_DATA names."""
    check_choice("data set", name, NAMES)
    folder = find_data(name, root)
    return digits() if folder is None else ENTRIES[name].read(folder)


def check(root: Path) -> dict[str, Condition]:
    """What `root` holds of every data set."""
    return {name: condition_of(name, root) for name in ENTRIES}


def condition_of(name: str, root: Path) -> Condition:
    """What `root` holds of a data set, found by reading all of it."""
    entry = ENTRIES[name]
    folder = entry.place.find(root)
    if folder is None or not any(folder.iterdir()):
        return Condition(Presence.ABSENT, f"no {entry.place.folders[0]} here")
    try:
        dataset = entry.read(folder)
    except DataError as error:
        return Condition(Presence.DAMAGED, str(error), folder)
    counts = len(dataset.train), len(dataset.test)
    if counts != (entry.train, entry.test):
        return Condition(Presence.PARTIAL, f"the official set has {entry.train:,} and {entry.test:,}", folder, counts)
    return Condition(Presence.COMPLETE, folder=folder, counts=counts)
