"""What runs have come to: seeds of the same recipe together, EP beside ID beside the paper."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from ffebm.experiment.clock import clock
from ffebm.experiment.report.document import Table
from ffebm.experiment.reproduction.published import Published
from ffebm.experiment.run import Run
from ffebm.experiment.settings import Score, Settings

__all__ = [
    "GRADIENTS",
    "Comparison",
    "Outcome",
    "accuracy_table",
    "comparisons_of",
    "recipe_label",
    "tables",
    "time_table",
    "with_error",
]
__dir__ = __all__.copy

GRADIENTS = {"ep": "EP", "id": "ID", "recurrent-backprop": "RBP", "bptt": "BPTT", "bp": "backprop"}


@dataclass
class Outcome:
    """The seeds of one recipe by one gradient, after their last epoch."""

    runs: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    top1: list[float] = field(default_factory=list)  # in per cent, like the paper's
    top5: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)  # runs that stopped before their last epoch, or are going on

    def add(self, run: Run, settings: Settings) -> None:
        rows = run.metrics()
        if len(rows) < settings.trainer.epochs:
            self.unfinished.append(run.folder.name)
            return
        self.runs.append(run.folder.name)
        self.seeds.append(settings.seed)
        self.top1.append(100 * rows[-1]["test_accuracy"])
        self.top5.append(100 * rows[-1]["test_top5"])
        self.seconds.append(rows[-1]["seconds"])


@dataclass(frozen=True)
class Comparison:
    """One recipe, by every gradient that it was trained by."""

    label: str
    settings: Settings  # of one of its runs
    outcomes: dict[str, Outcome]
    runs: list[Run] = field(default_factory=list)

    def score(self, kind: str) -> Score | None:
        """What the paper prints."""
        return None if self.settings.paper is None else {"ep": self.settings.paper.ep, "id": self.settings.paper.id}.get(kind)

    def gaps(self, other: str = "id", *, top5: bool = False) -> list[float]:
        """EP − ID, or another, seed by seed: all begin with the same weights and see the same batches."""
        found = [dict(zip(self.outcome(kind).seeds, self.values(kind, top5), strict=True)) for kind in ("ep", other)]
        return [found[0][seed] - found[1][seed] for seed in sorted(found[0].keys() & found[1].keys())]

    def values(self, kind: str, top5: bool = False) -> list[float]:
        """Accuracies of all seeds, in per cent."""
        return self.outcome(kind).top5 if top5 else self.outcome(kind).top1

    def outcome(self, kind: str) -> Outcome:
        """Without runs where it was not trained by this gradient."""
        return self.outcomes.get(kind, Outcome())


def comparisons_of(runs: Sequence[Run]) -> list[Comparison]:
    """Runs by recipe, in the order in which recipes first come."""
    found: dict[str, Comparison] = {}
    for run in runs:
        settings = run.settings()
        gradient = settings.gradient.model_copy(update={"kind": "ep"})
        same = settings.recipe.model_copy(update={"seed": 0, "gradient": gradient}).model_dump_json()
        row = found.setdefault(same, Comparison(recipe_label(settings, run), settings, {}))
        row.outcomes.setdefault(settings.gradient.kind, Outcome()).add(run, settings)
        row.runs.append(run)
    return _told_apart(list(found.values()))


def _told_apart(rows: Sequence[Comparison]) -> list[Comparison]:
    """Recipes of one description, as two versions of a preset, are called by their folders, which somebody has named."""
    labels = Counter(row.label for row in rows)
    names = Counter(run.folder.name for row in rows for run in row.runs)

    def folders(row: Comparison) -> str:
        return ", ".join(run.folder.name if names[run.folder.name] == 1 else str(run.folder) for run in row.runs)

    return [replace(row, label=folders(row)) if labels[row.label] > 1 else row for row in rows]


def recipe_label(settings: Settings, run: Run) -> str:
    """What was trained; with its size, where that is not the paper's."""
    name = settings.description or run.folder.name
    reduced = settings.paper is not None and settings.model.width != 1
    epochs = f"{settings.trainer.epochs} epoch{'s' if settings.trainer.epochs > 1 else ''}"
    return f"{name} (width {settings.model.width:g}, {epochs})" if reduced else name


def accuracy_table(
    rows: Sequence[Comparison],
    title: str = "Top-1 accuracy",
    published: Sequence[Published] = (),
    *,
    top5: bool = False,
    planned: Mapping[str, int] = MappingProxyType({}),
) -> Table:
    """Means over seeds in per cent, the differences, and the paper's; what others printed comes last.

    Args:
        planned: how many seeds there are to be, by the names of runs without their seed.
    """
    kinds = [kind for kind in GRADIENTS if any(kind in row.outcomes for row in rows)]
    beside = _printed_kinds(rows) if not published else {"ep", "id"}  # gradients with the paper's result
    others = [kind for kind in ("id", "bp") if {"ep", kind} <= set(kinds)]
    printed = [kind for kind in kinds if kind in beside]
    header = ["net", *(GRADIENTS[kind] for kind in kinds), *(f"EP − {GRADIENTS[kind]}" for kind in others)]
    header += [f"paper, {GRADIENTS[kind]}" for kind in printed]
    lines: list[tuple[str, ...]] = []
    for row in rows:
        line = [row.label]
        for kind in kinds:
            values = row.values(kind, top5)
            wanted = max((planned.get(name.rpartition("-seed")[0], 0) for name in row.outcome(kind).runs), default=0)
            count = f"{len(values)} of {wanted}" if len(values) < wanted else f"{len(values)}"
            line.append(f"{with_error(values)} ({count})" if values else "–")
        line += [with_error(row.gaps(kind, top5=top5), signed=True) for kind in others]
        for kind in printed:
            mean, deviation = _printed(row.score(kind), top5)
            line.append("" if mean is None else f"{mean} ± {deviation}")
        lines.append(tuple(line))
    for other in published:
        line = [other.source, *[""] * (len(header) - 1)]
        line[header.index("paper, EP") if "paper, EP" in header else -1] = str(other.top5 if top5 else other.top1)
        lines.append(tuple(line))
    return Table(f"{title} in %, ± standard error (seeds); the paper's ±, deviation of three", tuple(header), lines)


def time_table(rows: Sequence[Comparison]) -> Table:
    """How long training took, and how many seeds there are."""
    kinds = [kind for kind in GRADIENTS if any(kind in row.outcomes for row in rows)]
    beside = _printed_kinds(rows)
    header = ["net"]
    for kind in kinds:
        header += [f"{GRADIENTS[kind]}, time", "seeds", *(["paper, on an A100"] if kind in beside else [])]
    lines: list[tuple[str, ...]] = []
    for row in rows:
        line = [row.label]
        for kind in kinds:
            outcome = row.outcome(kind)
            line.append(clock(statistics.fmean(outcome.seconds)) if outcome.seconds else "")
            line.append(", ".join(map(str, outcome.seeds)))
            score = row.score(kind)
            line += ["" if score is None else score.hours] if kind in beside else []
        lines.append(tuple(line))
    return Table("Training time, h:mm:ss, without tests", tuple(header), lines)


def tables(
    rows: Sequence[Comparison], published: Sequence[Published] = (), planned: Mapping[str, int] = MappingProxyType({})
) -> list[Table]:
    """All that a report shows of these runs."""
    accuracies = [accuracy_table(rows, published=published, planned=planned)]
    if any(_printed(row.score("ep"), top5=True)[0] is not None for row in rows):
        accuracies.append(accuracy_table(rows, "Top-5 accuracy", published, top5=True, planned=planned))
    return [*accuracies, time_table(rows)]


def with_error(values: Sequence[float], *, signed: bool = False) -> str:
    """A mean, and how far chance may have moved it: its standard error, where there are several values."""
    if not values:
        return ""
    mean = f"{statistics.fmean(values):{'+' if signed else ''}.2f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values) / math.sqrt(len(values)):.2f}"


def _printed_kinds(rows: Sequence[Comparison]) -> set[str]:
    """The gradients by which the paper trained any of these nets."""
    return {kind for kind in ("ep", "id") if any(row.score(kind) is not None for row in rows)}


def _printed(score: Score | None, top5: bool) -> tuple[float | None, float | None]:
    if score is None:
        return None, None
    return (score.top5, score.top5_spread) if top5 else (score.top1, score.top1_spread)
