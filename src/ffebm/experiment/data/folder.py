"""A folder of one's own: pictures in a sub-folder for every class, or arrays in .npz files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track

from ffebm.checks import brief_name
from ffebm.experiment.data.arrays import read_arrays
from ffebm.experiment.data.dataset import Dataset, Samples
from ffebm.experiment.data.own import Wishes, check_classes, check_room, numbered, own_dataset
from ffebm.experiment.errors import DataError, UserError
from ffebm.experiment.pictures import look, read_image

NAME = "folder"
SUFFIXES = (".png", ".jpg", ".jpeg")
TESTS = ("test", "val", "valid", "validation")  # what the folder of test images may be called
USUAL = 32  # pixels of a side, where pictures differ in size
NAMED = 5  # damaged pictures
MANY = 500  # pictures that take long enough for a bar


def read_folder(root: Path, wishes: Wishes = Wishes()) -> Dataset:
    """Pictures or arrays; sizes, colours and classes as they are found, if nothing else is wished for.

    A data set has `train` and `test` folders, or files; where it has none, a part of every class is set apart for testing.
    """
    if root.is_file():
        return read_arrays([root], wishes)
    if arrays := sorted(root.glob("*.npz")):
        return read_arrays(arrays, wishes)
    return _read_pictures(root, wishes)


def _read_pictures(root: Path, wishes: Wishes) -> Dataset:
    train = root / "train" if (root / "train").is_dir() else root
    test = next((root / name for name in TESTS if (root / name).is_dir()), None) if train != root else None
    learnt = _found(train)
    tested = _found(test) if test is not None else []
    if not learnt:
        raise DataError(
            f"{root} holds neither .npz files nor pictures: a data set has a folder for every class with PNG or JPEG files in "
            "it, all below train/ and test/ or directly here."
        )
    shape = _shape([path for path, _ in (*learnt, *tested)], wishes)
    check_room(len(learnt) + len(tested), shape, str(root))
    labels, classes = numbered([name for _, name in learnt])
    check_classes(classes, [name for _, name in tested], str(root))
    places = {name: number for number, name in enumerate(classes)}
    of_test = torch.tensor([places[name] for _, name in tested], dtype=torch.long)
    return own_dataset(
        NAME,
        Samples(_images([path for path, _ in learnt], shape), labels),
        Samples(_images([path for path, _ in tested], shape), of_test) if tested else None,
        classes,
        replace(wishes, size=None, colours=None),  # pictures have them already
    )


def _found(folder: Path) -> list[tuple[Path, str]]:
    """Every picture, with the name of its class."""
    return [
        (path, below.name)
        for below in sorted(folder.iterdir())
        if below.is_dir() and not below.name.startswith((".", "__"))
        for path in sorted(below.rglob("*"))
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    ]


def _shape(paths: Sequence[Path], wishes: Wishes) -> tuple[int, int, int]:
    """Of the images: as wished; else as large as all pictures are, or a usual size where they differ; grey if all are."""
    if wishes.size is not None and wishes.colours is not None:
        return 3 if wishes.colours == "colour" else 1, wishes.size, wishes.size
    sizes: set[tuple[int, int]] = set()
    grey = True
    for path in paths:
        try:
            size, is_grey = look(path)
        except UserError:  # reading them all names it
            continue
        sizes.add(size)
        grey &= is_grey
    channels = {"grey": 1, "colour": 3, None: 1 if grey else 3}[wishes.colours]
    (width, height), *others = sizes or {(USUAL, USUAL)}
    if wishes.size is not None or others or width != height:
        height = width = wishes.size or USUAL
    return channels, height, width


def _images(paths: Sequence[Path], shape: tuple[int, int, int]) -> torch.Tensor:
    """All pictures; raises one error for those that cannot be read."""
    images = torch.empty(len(paths), *shape, dtype=torch.uint8)
    damaged: list[str] = []
    console = Console(stderr=True)
    shown = track(paths, "Reading pictures", console=console, transient=True, disable=len(paths) < MANY)
    for number, path in enumerate(shown):
        try:
            images[number] = read_image(path, shape)
        except UserError as error:
            damaged.append(str(error))
    if damaged:
        more = f"\n… and {len(damaged) - NAMED} more" if len(damaged) > NAMED else ""
        raise DataError(
            f"{len(damaged)} of {len(paths)} pictures cannot be read; mend them or take them away:\n"
            + "\n".join(brief_name(text, 300) for text in damaged[:NAMED])
            + more
        )
    return images
