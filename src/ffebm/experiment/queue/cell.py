"""One run of many: how it is started, and how far it has come."""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from ffebm.experiment.errors import UserError
from ffebm.experiment.final_check import final_check_of
from ffebm.experiment.preset import read_preset_or_file
from ffebm.experiment.run import Run, RunError, step_of
from ffebm.experiment.settings import Settings

__all__ = ["Cell", "Progress", "Stage"]
__dir__ = __all__.copy


class Stage(StrEnum):
    WAITING = "waiting"
    BEGUN = "begun"
    FINISHED = "finished"
    DAMAGED = "damaged"


@dataclass(frozen=True)
class Progress:
    """How far a run has come."""

    stage: Stage
    share: float = 0.0  # of all steps
    epoch: int = 0
    accuracy: float | None = None  # on the test set, after that epoch
    seconds: float = 0.0  # of training so far


class Cell(ABC):
    """A run by its settings, and the folder that it has among others."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Of its folder."""

    @property
    @abstractmethod
    def source(self) -> str:
        """The preset, or the TOML file, that its settings change."""

    @property
    @abstractmethod
    def overrides(self) -> Sequence[str]:
        """What they change in it, as for `ffebm train`."""

    @property
    def keeps_weights(self) -> bool:
        """Whether a store keeps its weights beside its numbers."""
        return False

    @cached_property
    def settings(self) -> Settings:
        return read_preset_or_file(self.source, self.overrides)

    def run(self, folder: Path) -> Run:
        return Run(folder / self.name)

    def arguments(self, folder: Path, data: Path | None = None, threads: int | None = None) -> list[str]:
        """Of `ffebm`, to begin this run below `folder` or to go on with it."""
        begin, go_on = self._ways(folder, data, threads)
        return go_on if self.run(folder).settings_file.is_file() else begin

    def command(self, folder: Path, data: Path | None = None) -> str:
        """For a shell, whenever it comes to it: begins the run, or goes on with it if it was begun."""
        begin, go_on = (shlex.join(["ffebm", *arguments]) for arguments in self._ways(folder, data))
        return f"if [ -e {shlex.quote(str(self.run(folder).settings_file))} ]; then {go_on}; else {begin}; fi"

    def _ways(self, folder: Path, data: Path | None, threads: int | None = None) -> tuple[list[str], list[str]]:
        """Arguments that begin this run, and those that go on with it."""
        output = str(self.run(folder).folder)
        where = [] if data is None else ["--data", str(data)]
        chosen = any(change.partition("=")[0] == "trainer.threads" for change in self.overrides)
        more = [] if threads is None or chosen else [f"trainer.threads={threads}"]
        begin = ["train", self.source, *self.overrides, *more, *where, "--output", output]
        return begin, ["train", "--resume", output, *where]

    def progress(self, folder: Path) -> Progress:
        run = self.run(folder)
        if not run.settings_file.is_file():
            return Progress(Stage.WAITING)
        if self.damage(folder):
            return Progress(Stage.DAMAGED)
        rows, epochs = run.metrics(), self.settings.trainer.epochs
        last = rows[-1] if rows else {}
        seen = int(last.get("epoch", 0)), last.get("test_accuracy"), last.get("seconds", 0.0)
        published = not run.checkpoints()  # all epochs, and nothing to go on from: numbers that were kept without the rest
        if seen[0] >= epochs and (run.weights_file.is_file() or published):
            return Progress(Stage.FINISHED, 1.0, *seen)
        return Progress(Stage.BEGUN, _share(run), *seen)

    def lacks_check(self, folder: Path) -> bool:
        """Whether it could be measured how its blocks and its gradient stand at the end, and was not."""
        run = self.run(folder)
        if not self.settings.relaxes or not run.weights_file.is_file():
            return False
        try:
            return final_check_of(run) is None
        except UserError:
            return True

    def check_arguments(self, folder: Path, data: Path | None = None) -> list[str]:
        """Of `ffebm`, to measure that."""
        return ["check", str(self.run(folder).folder), *([] if data is None else ["--data", str(data)])]

    def damage(self, folder: Path) -> str:
        """Why what is there of this run cannot be read; nothing, where it can, or is not there."""
        run = self.run(folder)
        return run.damage() if run.settings_file.is_file() else ""

    def was_begun(self, folder: Path) -> bool:
        """Whether there is such a run, with these very settings."""
        run = self.run(folder)
        return run.settings_file.is_file() and not self.damage(folder) and run.settings().recipe == self.settings.recipe

    def check(self, folder: Path) -> None:
        """Refuse settings that cannot be, and a run begun with others: it would stand in the table for what it is not."""
        wanted, run = self.settings.recipe, self.run(folder)
        if run.settings_file.is_file() and not self.damage(folder) and run.settings().recipe != wanted:
            raise RunError(
                f"{run.folder} was begun with other settings than `{shlex.join(self.overrides)}` for {self.source}. "
                "Name another folder by --output, or remove that run."
            )


def _share(run: Run) -> float:
    """Of all steps, those before the newest checkpoint."""
    checkpoints = run.checkpoints()
    try:
        steps = int(run.environments()[0]["steps"])
    except (RunError, LookupError, TypeError, ValueError, OverflowError):  # how far it has come is only shown
        return 0.0
    return min(step_of(checkpoints[0]) / steps, 1.0) if checkpoints and steps > 0 else 0.0
