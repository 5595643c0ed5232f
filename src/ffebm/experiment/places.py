"""Where runs and data sets lie: known by their names alone, before torch is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ffebm.checks import brief_name
from ffebm.experiment.errors import DataError, RunError
from ffebm.experiment.settings.paths import folder_in_environment

__all__ = ["BUNDLED", "GIVEN", "OWN", "PLACES", "SETTINGS", "Place", "check_is_run", "find_data"]
__dir__ = __all__.copy

SETTINGS = "settings.toml"  # what makes a folder a run
BUNDLED = "digits"  # the data set that needs no files
OWN = "folder"  # the data set that is whatever the folder holds
GIVEN = "given"  # the data set that a program hands over


@dataclass(frozen=True)
class Place:
    """Where the files of a data set may be."""

    folders: tuple[str, ...]  # below the data folder, the first that exists; "" is the folder itself, if it holds the marker
    marker: str  # how the name of one of its files starts

    def find(self, root: Path) -> Path | None:
        """Where they are, below `root` or in it."""
        below = [root / name for name in self.folders if name and (root / name).is_dir()]
        here = [root] if "" in self.folders and any(path.is_file() for path in root.glob(f"{self.marker}*")) else []
        return next(iter(below + here), None)


PLACES = {
    "cifar10": Place(("cifar-10-batches-py", ""), "data_batch_1"),
    "cifar100": Place(("cifar-100-python", ""), "train"),
    "imagenet32": Place(("imagenet32", "Imagenet32", ""), "train_data_batch_1"),
    "mnist": Place(("mnist", "MNIST/raw"), "train-images"),
    "fashion-mnist": Place(("fashion-mnist", "FashionMNIST/raw"), "train-images"),
}


def find_data(name: str, root: Path | None) -> Path | None:
    """The folder of a data set; None for the one that is bundled. Raises a `DataError` where there is none.

    Args:
        root: the folder of all data sets; by default what FFEBM_DATA names.
    """
    if name == BUNDLED:
        if root is not None:  # an explicit one; that of the environment is for all data sets
            raise DataError(
                f"The digits come with scikit-learn: nothing would be read from {brief_name(str(root), 200)}. Name a data set "
                "that lies there, for example `ffebm train cifar10-small --data DIR`, or leave the folder out."
            )
        return None
    if name == GIVEN:
        raise DataError(
            "This run was trained on data that a program handed over, which no folder holds: call `ffebm.experiment.train`, "
            "`resume` or `evaluate_run` with `data=` from Python."
        )
    if name == OWN and root is not None and root.suffix == ".npz" and root.is_file():
        return root
    root = _data_folder(name, root)
    if name == OWN:
        return root
    folder = PLACES[name].find(root)
    if folder is None:
        raise DataError(f"{root} holds no {PLACES[name].folders[0]}. `ffebm data fetch {name} --data {root}` brings it.")
    return folder


def _data_folder(name: str, root: Path | None) -> Path:
    found = root if name == OWN else root or folder_in_environment()
    if found is None and name == OWN:
        raise DataError("Where are your images? Name their folder, or an .npz file, by --data DIR.")
    if found is None:
        raise DataError(
            f"Where is {name}? Name its folder by --data DIR or the environment variable FFEBM_DATA; "
            f"`ffebm data fetch {name} --data DIR` brings it there."
        )
    shown = brief_name(str(found), 200)
    if found.exists() and not found.is_dir():
        what = "your images, or an .npz file" if name == OWN else name
        raise DataError(f"{shown} is a file: name the folder that holds {what}.")
    if not found.is_dir():
        how = "" if name == OWN else f" `ffebm data fetch {name} --data DIR` makes one."
        raise DataError(f"The data folder {shown} does not exist.{how}")
    return found


def check_is_run(folder: Path) -> None:
    if not (folder / SETTINGS).is_file():
        raise RunError(
            f"{brief_name(str(folder), 200)} is no run folder: it has no {SETTINGS}. "
            "Name a folder that `ffebm train` has made, for example one below runs/."
        )
