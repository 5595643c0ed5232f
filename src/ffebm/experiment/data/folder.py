"""A folder of one's own: pictures in a sub-folder for every class, or arrays in .npz files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track

from ffebm.checks import brief_name
from ffebm.experiment.data.arrays import find_arrays
from ffebm.experiment.data.dataset import Dataset
from ffebm.experiment.data.division import divided
from ffebm.experiment.data.found import Found, Labelled
from ffebm.experiment.data.own import Wishes, check_room
from ffebm.experiment.data.scan import Scan, folders_in, passed_over, scan
from ffebm.experiment.errors import DataError, UserError
from ffebm.experiment.pictures import look, read_image

__all__ = ["find_in", "read_folder"]
__dir__ = __all__.copy

NAME = "folder"
USUAL = 32  # pixels of a side, where pictures differ in size
NAMED = 5  # damaged pictures
MANY = 500  # pictures that take long enough for a bar


def read_folder(root: Path, wishes: Wishes = Wishes()) -> Dataset:
    """Pictures or arrays; sizes, colours and classes as they are found, if nothing else is wished for.

    A data set has `train` and `test` folders, or files; where it has none, a part of every class is set apart for testing.
    """
    return find_in(root, wishes).dataset(wishes)


def find_in(root: Path, wishes: Wishes = Wishes()) -> Found:
    """The same, before anything is set apart."""
    if root.is_file():
        return find_arrays([root], wishes)
    if arrays := sorted(root.glob("*.npz")):
        return find_arrays(arrays, wishes)
    return _find_pictures(root, wishes)


def _find_pictures(root: Path, wishes: Wishes) -> Found:
    folders = folders_in(root)
    parts = divided(folders, str(root))
    if parts.train is None and not parts.tests:
        learnt, tested, unused = scan(root, folders), None, []
    else:
        scans = {path: scan(path) for path in folders}
        learnt = scans[parts.train] if parts.train is not None else None
        tests = [path for path in parts.tests if scans[path].pictures]
        tested = scans[tests[0]] if tests else None
        unused = [scan(root, ()), *(each for each in scans.values() if each not in (learnt, tested))]
        _check_apart(root, learnt, [scans[path] for path in parts.others])
    used = [each for each in (learnt, tested) if each is not None]
    paths = [path for each in used for path, _ in each.pictures]
    if not paths:
        raise DataError(
            f"{root} holds neither .npz files nor pictures: a data set has a folder for every class with PNG or JPEG files in "
            f"it, all below train/ and test/ or directly here.{_seen(used, unused)}"
        )
    shape = _shape(paths, wishes)
    check_room(len(paths), shape, str(root))
    train, test = (
        Labelled(_images([path for path, _ in each.pictures], shape), [name for _, name in each.pictures])
        if each is not None and each.pictures
        else None
        for each in (learnt, tested)
    )
    return Found(NAME, str(root), train, test, remarks=[f"{root}: {words}" for words in passed_over(used, unused)])


def _check_apart(root: Path, learnt: Scan | None, others: Sequence[Scan]) -> None:
    """Where a folder is called like a part of a data set, and is a class beside others, nobody can tell what is meant."""
    beside = [other.folder.name for other in others if other.pictures or other.loose]
    if beside and (learnt is None or not learnt.pictures):
        raise DataError(
            f"{root} holds {brief_name(', '.join(beside), 200)}, and beside them a folder that is called like a part of a data "
            "set. No class here can be called train, training, test, testing, val, valid or validation: put all classes below "
            "train/, and those to test on below test/."
        )


def _seen(used: Iterable[Scan], unused: Iterable[Scan]) -> str:
    """What was seen all the same."""
    return "".join(f" Here {words}" for words in passed_over(list(used), list(unused)))


def _shape(paths: Sequence[Path], wishes: Wishes) -> tuple[int, int, int]:
    """Of the images: as wished; else as large as all pictures are, or a usual size where they differ; grey if all are."""
    if wishes.sides is not None and wishes.channels is not None:
        return wishes.channels, *wishes.sides
    sizes: set[tuple[int, int]] = set()
    grey = True
    for path in paths:
        try:
            size, is_grey = look(path)
        except UserError:  # reading them all names it
            continue
        sizes.add(size)
        grey &= is_grey
    (width, height), *others = sizes or {(USUAL, USUAL)}
    if others or width != height:
        height = width = USUAL
    return wishes.channels or (1 if grey else 3), *(wishes.sides or (height, width))


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
