"""The data sets by name: where their files lie, and whether they are all there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ffebm.checks import check_choice
from ffebm.experiment.data.cifar import read_cifar10, read_cifar100
from ffebm.experiment.data.condition import Condition, Presence
from ffebm.experiment.data.dataset import Dataset, Description
from ffebm.experiment.data.digits import digits
from ffebm.experiment.data.folder import find_in
from ffebm.experiment.data.found import Found, remark
from ffebm.experiment.data.idx import read_fashion_mnist, read_mnist
from ffebm.experiment.data.imagenet32 import read_imagenet32
from ffebm.experiment.data.own import Wishes, validating
from ffebm.experiment.errors import DataError
from ffebm.experiment.places import BUNDLED, GIVEN, OWN, PLACES, Place, find_data

if TYPE_CHECKING:
    from ffebm.experiment.settings.sections import Data

__all__ = ["Entry", "check", "condition_of", "condition_of_own", "is_own_place", "load", "load_for"]
__dir__ = __all__.copy


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
NAMES = (BUNDLED, *ENTRIES, OWN, GIVEN)


def load(name: str, root: Path | None = None, wishes: Wishes = Wishes()) -> Dataset:
    """Read a data set from the folder `root`, or from that which the environment variable FFEBM_DATA names.

    Args:
        wishes: how a folder of one's own is to be read, and what any data set is tested on.
    """
    check_choice("data set", name, NAMES)
    folder = find_data(name, root)
    if folder is None:
        return validating(digits(), wishes)
    return _found(folder, wishes).dataset(wishes) if name == OWN else validating(ENTRIES[name].read(folder), wishes)


def load_for(chosen: Data, root: Path | None = None, known: Description | None = None) -> Dataset:
    """The data that settings name, from `root` or from where they say.

    Args:
        known: what a run remembers of the data that it was trained on. One's own may lie elsewhere now, or others' images: then
            all that are not for training are test images.
    """
    wishes, where = Wishes.of(chosen), root or chosen.root
    if known is None or chosen.name != OWN:
        dataset = load(chosen.name, where, wishes)
        return dataset if chosen.normalise else dataset.as_fractions()
    folder = find_data(OWN, where)
    assert folder is not None
    wishes = wishes.for_model(known)
    return _found(folder, wishes).for_model(known, wishes, own=is_own_place(chosen, root))


def is_own_place(chosen: Data, root: Path | None) -> bool:
    """Whether data is where settings say, rather than elsewhere; official sets are the same everywhere."""
    return root is None or chosen.name != OWN or (chosen.root is not None and root.resolve() == chosen.root.resolve())


def _found(folder: Path, wishes: Wishes) -> Found:
    found = find_in(folder, wishes)
    for words in found.remarks:
        remark(words)
    return found


def check(root: Path) -> dict[str, Condition]:
    """What `root` holds of every data set; where it holds none, whether it is one of somebody's own."""
    found = {name: condition_of(name, root) for name in ENTRIES} if root.is_dir() else {}
    if any(each.state is not Presence.ABSENT for each in found.values()):
        return found
    return {OWN: condition_of_own(root), **found}


def condition_of_own(root: Path) -> Condition:
    """What a folder or a file of one's own holds, found by reading all of it."""
    if root.is_dir() and not any(path.is_dir() or path.suffix == ".npz" for path in root.iterdir()):
        return Condition(Presence.ABSENT, "neither folders of pictures nor .npz files here")
    try:
        found = find_in(root)
        if found.train is None and found.test is not None:
            words = "no training images: a model can be evaluated on these, none trained"
            return Condition(Presence.PARTIAL, "; ".join([words, *found.remarks]), root, (0, len(found.test.labels)))
        dataset = found.dataset(Wishes())
    except DataError as error:
        return Condition(Presence.DAMAGED, str(error), root)
    channels, height, width = dataset.shape
    kind = f"{height} × {width}, {'colour' if channels == 3 else 'grey'}, {len(dataset.classes)} classes"
    counts = len(dataset.train), len(dataset.test)
    return Condition(Presence.COMPLETE, "; ".join([kind, *found.remarks]), root, counts)


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
