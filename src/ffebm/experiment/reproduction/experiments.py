"""The paper's tables as lists of runs: which presets, by which gradients, at which scale."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ffebm.checks import check_choice
from ffebm.experiment.data.generated import write_generated
from ffebm.experiment.files import write_atomically
from ffebm.experiment.preset import read_preset
from ffebm.experiment.reproduction.published import Published
from ffebm.experiment.reproduction.recipe import read_recipe
from ffebm.experiment.reproduction.table_cell import KINDS, TableCell
from ffebm.experiment.settings import IdleError, SettingsError

__all__ = ["EXPERIMENTS", "SCALES", "Experiment", "Row", "Scale", "prepare_data"]
__dir__ = __all__.copy


@dataclass(frozen=True)
class Row:
    """A row of a table that the paper does not have: a preset, and what is changed in it besides the scale's recipe."""

    name: str
    preset: str
    changes: tuple[str, ...]


@dataclass(frozen=True)
class Experiment:
    """A table of the paper: presets are its rows, gradients its columns."""

    name: str
    title: str
    rows: tuple[str, ...]
    published: tuple[Published, ...] = ()

    def cells(
        self,
        scale: str,
        seeds: int | None = None,
        rows: Sequence[str] = (),
        overrides: Sequence[str] = (),
        kinds: Sequence[str] = (),
    ) -> list[TableCell]:
        """All runs. Where nothing is chosen and the scale has a list of its own, those of the list, in its order.

        Else all combinations, seed by seed, so that an early end leaves whole tables of fewer seeds.

        Args:
            seeds: how many of each; the scale's own number by default.
            rows: to keep; all by default.
            overrides: settings besides the scale's own, as for `ffebm train`.
            kinds: gradients to keep; the scale's own by default.
        """
        names = self.row_names(scale)
        for row in rows:
            check_choice("row", row, names)
        for kind in kinds:
            check_choice("gradient", kind, KINDS)
        listed = SCALES[scale].runs.get(self.name, ())
        if listed and seeds is None and not rows and not kinds:
            return [self._cell(scale, row, kind, seed, overrides) for row, kind, seed in listed]
        chosen = [row for row in names if row in rows or (not rows and row in self.rows)]
        count = SCALES[scale].seeds if seeds is None else seeds
        columns = [kind for kind in KINDS if kind in (kinds or SCALES[scale].kinds)]
        return [self._cell(scale, row, kind, seed, overrides) for seed in range(count) for row in chosen for kind in columns]

    def row_names(self, scale: str) -> tuple[str, ...]:
        """The paper's rows, and those that a scale has besides."""
        return (*self.rows, *(row.name for row in SCALES[scale].besides.get(self.name, ())))

    def present(self, scale: str, folder: Path, overrides: Sequence[str] = ()) -> list[TableCell]:
        """All runs of this table and scale that lie in a folder, row by row, whoever put them there."""
        seeds = {path.name.rpartition("-seed")[2] for path in folder.glob("*-seed*/")}
        numbers = sorted(int(seed) for seed in seeds if re.fullmatch(r"\d{1,9}", seed))
        rows = self.row_names(scale)
        cells = [self._cell(scale, row, kind, seed, overrides) for row in rows for seed in numbers for kind in KINDS]
        return [cell for cell in cells if cell.was_begun(folder)]

    def _cell(self, scale: str, row: str, kind: str, seed: int, overrides: Sequence[str]) -> TableCell:
        besides = {each.name: each for each in SCALES[scale].besides.get(self.name, ())}
        found = besides.get(row, Row(row, row, ()))
        own = {change.partition("=")[0] for change in found.changes}
        recipe = [change for change in read_recipe(scale, found.preset) if change.partition("=")[0] not in own]
        changes = (*recipe, *found.changes)
        try:
            read_preset(found.preset, [*changes, *overrides])
        except IdleError as idle:  # what the scale chooses for sweeps that were chosen otherwise
            changes = tuple(change for change in changes if change.partition("=")[0] not in idle.keys)
        except SettingsError:  # which is said where all runs are checked
            pass
        return TableCell(found.preset, kind, seed, (*changes, *overrides), row)


SPLIT = Experiment(
    "split",
    "Table 1, splitting: CIFAR-10, the same layers in blocks of different sizes",
    ("cifar10-l6-bs6", "cifar10-l6-bs3", "cifar10-l6-bs2", "cifar10-l12-bs4", "cifar10-l12-bs3", "cifar10-l12-bs2"),
)
SCALING = Experiment(
    "scaling",
    "Table 2, scaling: CIFAR-100 and ImageNet32, 12 and 15 layers in blocks of two",
    ("cifar100-l12", "cifar100-l15", "imagenet32-l12", "imagenet32-l15"),
    (
        Published("ImageNet32, holomorphic EP (Laborieux & Zenke 2022)", 36.5, 60.8),
        Published("ImageNet32, dual propagation (Høier et al. 2023)", 41.5, 64.9),
    ),
)
EXPERIMENTS = {experiment.name: experiment for experiment in (SPLIT, SCALING)}


@dataclass(frozen=True)
class Scale:
    """How much of the full recipe is run; what that changes in a row is a file below `recipes`."""

    words: str  # what it reduces
    seeds: int
    chosen: str = ""  # what its settings were chosen by
    kinds: tuple[str, ...] = ("ep", "id")  # the gradients to train by
    runs: Mapping[str, tuple[tuple[str, str, int], ...]] = field(default_factory=dict)  # by table: row, gradient, seed
    besides: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)  # rows that the paper does not have, by table
    goals: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # accuracies to come to by EP, by table and row
    checked: bool = False  # whether blocks and gradient are measured when a run ends


LARGER = Row("cifar10-l12-bs2-w4", "cifar10-l12-bs2", ("model.width=0.25", "trainer.epochs=40"))
# The most telling first: an interruption leaves the claims that matter most.
CONVERGED_RUNS = {
    "split": (
        ("cifar10-l12-bs2", "ep", 0),
        ("cifar10-l12-bs2", "bp", 0),
        ("cifar10-l12-bs2", "id", 0),
        ("cifar10-l12-bs4", "ep", 0),
        *(("cifar10-l12-bs2", kind, seed) for seed in (1, 2) for kind in ("ep", "id")),
        ("cifar10-l12-bs3", "ep", 0),
        ("cifar10-l12-bs4", "id", 0),
        ("cifar10-l6-bs2", "ep", 0),
        ("cifar10-l6-bs6", "ep", 0),
        ("cifar10-l6-bs6", "id", 0),
        ("cifar10-l6-bs2", "bp", 0),
        *(("cifar10-l12-bs2", "bp", seed) for seed in (1, 2)),
        (LARGER.name, "ep", 0),
    ),
    "scaling": (("cifar100-l12", "ep", 0), ("cifar100-l12", "id", 0)),
}
SCALES = {
    "paper": Scale("the full recipe: full width, all epochs, fixed plain sweeps, pooling that may jump while nudged", 3),
    "converged": Scale(
        "an eighth of the width and twenty epochs, one recipe for all rows, whatever the split",
        1,
        "The recipe was chosen on images set apart from those for training, with seed 100, which no table has. Test images are "
        "counted after every epoch, for the curves alone: nothing was chosen by them, and what stands here is the last epoch.",
        KINDS,
        CONVERGED_RUNS,
        {"split": (LARGER,)},
        {"split": {"cifar10-l12-bs2": 83, LARGER.name: 88}},
        checked=True,
    ),
    "tiny": Scale("a path through everything: generated images, 1/32 of the width, one epoch, a few sweeps", 1),
}
# Training and test images of the tiny scale
GENERATED = {"cifar10": (60, 20), "cifar100": (200, 100), "imagenet32": (1000, 1000)}


def prepare_data(scale: str, cells: Sequence[TableCell], folder: Path, data: Path | None) -> Path | None:
    """Where the runs find their data: the tiny scale gets images of its own, made here once, unless it is given others."""
    if scale != "tiny" or data is not None:
        return data
    made = folder / "data"
    for name in sorted({cell.settings.data.name for cell in cells}):
        mark = made / f"{name}.txt"
        if not mark.exists():  # written last: an interruption before it means to begin again
            train, test = GENERATED[name]
            write_generated(name, made, train=train, test=test)
            write_atomically(mark, f"{train} training and {test} test images, generated: coloured waves under noise\n".encode())
    return made
