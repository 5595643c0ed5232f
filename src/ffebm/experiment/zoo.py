"""Trained models that come with the package: where they lie, what they are called, and what was measured of them."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from ffebm.checks import brief_name
from ffebm.experiment.errors import RunError
from ffebm.experiment.places import SETTINGS, check_is_run

__all__ = ["FOLDER", "NOTE", "Entry", "entries", "entry", "is_in_zoo", "located", "zoo_names"]
__dir__ = __all__.copy

FOLDER = Path(str(resources.files("ffebm.experiment") / "models"))
NOTE = "zoo.json"


@dataclass(frozen=True)
class Entry:
    """One model. Nobody types these numbers: `benchmarks/zoo.py` takes them from the files of runs."""

    name: str
    description: str
    data: str  # the name of the data set
    images: int  # for testing
    fingerprint: str  # of those
    accuracy: float  # of these weights on them, as a share of 1
    seed: int  # of these weights
    seeds: dict[str, float]  # test accuracy after the last epoch, of every seed of this recipe that was run
    epochs: int
    command: str  # that made them
    commit: str  # of ffebm, then

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    @property
    def bytes(self) -> int:
        """Of the files that it comes in."""
        return sum(path.stat().st_size for path in self.folder.iterdir())

    @property
    def mean(self) -> float:
        """Over all seeds."""
        return statistics.fmean(self.seeds.values())

    @property
    def error(self) -> float | None:
        """The standard error of that; None where there is one seed."""
        several = len(self.seeds) > 1
        return statistics.stdev(self.seeds.values()) / math.sqrt(len(self.seeds)) if several else None


def zoo_names() -> list[str]:
    return sorted(path.parent.name for path in FOLDER.glob(f"*/{NOTE}"))


def entry(name: str) -> Entry:
    return Entry(name=name, **json.loads((FOLDER / name / NOTE).read_text(encoding="utf-8")))


def entries() -> list[Entry]:
    return [entry(name) for name in zoo_names()]


def is_in_zoo(folder: Path) -> bool:
    """Whether this is where a model of the zoo lies. Nothing is written there."""
    return folder.resolve().parent == FOLDER.resolve()


def located(given: Path) -> Path:
    """The folder of a model, given itself or by the name of one of the zoo; a run of that name comes first."""
    name = str(given)
    if (given / SETTINGS).is_file():
        return given
    if name in (names := zoo_names()):
        return FOLDER / name
    if len(given.parts) == 1 and not given.exists():
        from ffebm.experiment.settings.reading import closest

        close = closest(name, names)
        hint = f"did you mean `{close}`?" if close else "`ffebm zoo` lists those that there are."
        raise RunError(
            f"{brief_name(name, 200)} is no run folder: there is nothing of that name here. Nor is it a model of the zoo: "
            f"{hint}"
        )
    check_is_run(given)
    return given
