"""Which folders or files are for training and which for testing, by what they are called."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ffebm.checks import brief_name
from ffebm.experiment.errors import DataError

__all__ = ["Division", "divided"]
__dir__ = __all__.copy

TRAININGS = ("train", "training")
TESTS = ("test", "testing")
VALIDATIONS = ("val", "valid", "validation")  # in place of test images, where there are none


class Division(NamedTuple):
    """Paths by what they are for; names count in capitals as well."""

    train: Path | None
    tests: list[Path]  # which images are tested on: those of the first that holds any
    others: list[Path]


def divided(paths: Sequence[Path], where: str) -> Division:
    """Raises a `DataError` where two of them have the same part to play."""
    train, test, validation = (_only(paths, names, where) for names in (TRAININGS, TESTS, VALIDATIONS))
    tests = [path for path in (test, validation) if path is not None]
    return Division(train, tests, [path for path in paths if path not in (train, *tests)])


def _only(paths: Sequence[Path], names: Sequence[str], where: str) -> Path | None:
    found = [path for path in paths if _name(path) in names]
    if len(found) > 1:
        named = " and ".join(brief_name(path.name) for path in found)
        raise DataError(f"{where} holds {named}, which are called alike: keep the one that is meant, as {names[0]}.")
    return found[0] if found else None


def _name(path: Path) -> str:
    return (path.stem if path.suffix == ".npz" else path.name).casefold()
