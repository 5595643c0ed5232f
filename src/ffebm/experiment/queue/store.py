"""A folder in which finished runs are kept, small enough for a repository: the machines that make them do not last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ffebm.experiment.kept import keep
from ffebm.experiment.queue.cell import Cell, Stage

__all__ = ["Store"]
__dir__ = __all__.copy


@dataclass(frozen=True)
class Store:
    """Runs by name, each with its numbers; some with their weights, too, for others to look into."""

    folder: Path

    def bring(self, cells: Sequence[Cell], folder: Path) -> None:
        """Put finished runs that are kept here into the folder of a queue, where it has none of that name."""
        for cell in cells:
            cell.check(self.folder)
            if not cell.run(folder).settings_file.is_file() and cell.progress(self.folder).stage is Stage.FINISHED:
                kept = cell.run(self.folder)
                keep(kept, cell.run(folder).folder, weights=kept.weights_file.is_file())

    def keep(self, cell: Cell, folder: Path) -> None:
        """Keep a run of a queue, if it is finished; what is kept of it already stays, but for numbers that came since."""
        run, kept = cell.run(folder), cell.run(self.folder)
        if cell.progress(folder).stage is not Stage.FINISHED or run.folder.resolve() == kept.folder.resolve():
            return
        new = not kept.settings_file.is_file() or (run.final_file.is_file() and not kept.final_file.is_file())
        if new:
            keep(run, kept.folder, weights=cell.keeps_weights and run.weights_file.is_file())
