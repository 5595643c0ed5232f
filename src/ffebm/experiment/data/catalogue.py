"""The data sets by name: where their files lie, and whether they are all there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ffebm.checks import brief_name, check_choice
from ffebm.experiment.data.cifar import read_cifar10, read_cifar100
from ffebm.experiment.data.condition import Condition, Presence
from ffebm.experiment.data.dataset import DataError, Dataset
from ffebm.experiment.data.digits import digits
from ffebm.experiment.data.idx import read_fashion_mnist, read_mnist
from ffebm.experiment.data.imagenet32 import read_imagenet32
from ffebm.experiment.settings.paths import folder_in_environment as default_folder


@dataclass(frozen=True)
class Entry:
    """A data set that is read from files."""

    folders: tuple[str, ...]  # below the data folder, the first that exists; "" is the folder itself, if it holds the marker
    marker: str  # how the name of one of its files starts
    read: Callable[[Path], Dataset]
    train: int
    test: int


ENTRIES: dict[str, Entry] = {
    "cifar10": Entry(("cifar-10-batches-py", ""), "data_batch_1", read_cifar10, 50_000, 10_000),
    "cifar100": Entry(("cifar-100-python", ""), "train", read_cifar100, 50_000, 10_000),
    "imagenet32": Entry(("imagenet32", "Imagenet32", ""), "train_data_batch_1", read_imagenet32, 1_281_167, 50_000),
    "mnist": Entry(("mnist", "MNIST/raw"), "train-images", read_mnist, 60_000, 10_000),
    "fashion-mnist": Entry(("fashion-mnist", "FashionMNIST/raw"), "train-images", read_fashion_mnist, 60_000, 10_000),
}
NAMES = ("digits", *ENTRIES)


def load(name: str, root: Path | None = None) -> Dataset:
    """Read a data set from the folder `root`, or from that which the environment variable FFEBM_DATA names."""
    check_choice("data set", name, NAMES)
    if name == "digits":
        if root is not None:  # an explicit one; that of the environment is for all data sets
            raise DataError(
                f"The digits come with scikit-learn: nothing would be read from {brief_name(str(root), 200)}. Name a data set "
                "that lies there, for example `ffebm train cifar10-small --data DIR`, or leave the folder out."
            )
        return digits()
    root = data_folder(name, root)
    folder = _folder(ENTRIES[name], root)
    if folder is None:
        raise DataError(f"{root} holds no {ENTRIES[name].folders[0]}. `ffebm data fetch {name} --data {root}` brings it.")
    return ENTRIES[name].read(folder)


def data_folder(name: str, root: Path | None) -> Path:
    found = root or default_folder()
    if found is None:
        raise DataError(
            f"Where is {name}? Name its folder by --data DIR or the environment variable FFEBM_DATA; "
            f"`ffebm data fetch {name} --data DIR` brings it there."
        )
    shown = brief_name(str(found), 200)
    if found.exists() and not found.is_dir():
        raise DataError(f"{shown} is a file: name the folder that holds {name}.")
    if not found.is_dir():
        raise DataError(f"The data folder {shown} does not exist. `ffebm data fetch {name} --data DIR` makes one.")
    return found


def check(root: Path) -> dict[str, Condition]:
    """What `root` holds of every data set."""
    return {name: condition_of(name, root) for name in ENTRIES}


def condition_of(name: str, root: Path) -> Condition:
    """What `root` holds of a data set, found by reading all of it."""
    entry = ENTRIES[name]
    folder = _folder(entry, root)
    if folder is None or not any(folder.iterdir()):
        return Condition(Presence.ABSENT, f"no {entry.folders[0]} here")
    try:
        dataset = entry.read(folder)
    except DataError as error:
        return Condition(Presence.DAMAGED, str(error), folder)
    counts = len(dataset.train), len(dataset.test)
    if counts != (entry.train, entry.test):
        return Condition(Presence.PARTIAL, f"the official set has {entry.train:,} and {entry.test:,}", folder, counts)
    return Condition(Presence.COMPLETE, folder=folder, counts=counts)


def _folder(entry: Entry, root: Path) -> Path | None:
    """Where the files of a data set are, below `root` or in it."""
    below = [root / name for name in entry.folders if name and (root / name).is_dir()]
    here = [root] if "" in entry.folders and any(root.glob(f"{entry.marker}*")) else []
    return next(iter(below + here), None)
