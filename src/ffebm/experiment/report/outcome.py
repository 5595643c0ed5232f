"""What runs have come to: seeds of the same recipe together, EP beside ID beside the paper."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

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
    "spread",
    "tables",
    "time_table",
    "with_error",
]
__dir__ = __all__.copy

GRADIENTS = {"ep": "EP", "id": "ID", "recurrent-backprop": "RBP", "bptt": "BPTT", "bp": "BP"}


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
    rows: Sequence[Comparison], title: str = "Top-1 accuracy", published: Sequence[Published] = (), *, top5: bool = False
) -> Table:
    """Mean and spread over seeds beside the paper's, in per cent, with the differences; what others printed comes last."""
    kinds = [kind for kind in GRADIENTS if any(kind in row.outcomes for row in rows)]
    beside = _printed_kinds(rows) if not published else {"ep", "id"}  # gradients with the paper's result
    header = ["net"]
    for kind in kinds:
        header += [GRADIENTS[kind], "paper", "difference"] if kind in beside else [GRADIENTS[kind]]
    both = {"ep", "id"} <= set(kinds)
    lines: list[tuple[str, ...]] = []
    for row in rows:
        line = [row.label]
        for kind in kinds:
            values = row.values(kind, top5)
            line.append(spread(values))
            if kind in beside:
                printed, deviation = _printed(row.score(kind), top5)
                line.append("" if printed is None else f"{printed} ± {deviation}")
                line.append("" if printed is None or not values else f"{statistics.fmean(values) - printed:+.1f}")
        if both:
            line.append(with_error(row.gaps(top5=top5)))
        lines.append(tuple(line))
    header += ["EP − ID"] if both else []
    for other in published:
        line = [other.source, *[""] * (len(header) - 1)]
        line[header.index("paper")] = str(other.top5 if top5 else other.top1)
        lines.append(tuple(line))
    several = any(len(row.gaps()) > 1 for row in rows)  # a wide header would push its column off the page
    return Table(f"{title} (EP − ID: ± its standard error)" if both and several else title, tuple(header), lines)


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


def tables(rows: Sequence[Comparison], published: Sequence[Published] = ()) -> list[Table]:
    """All that a report shows of these runs."""
    accuracies = [accuracy_table(rows, published=published)]
    if any(_printed(row.score("ep"), top5=True)[0] is not None for row in rows):
        accuracies.append(accuracy_table(rows, "Top-5 accuracy", published, top5=True))
    return [*accuracies, time_table(rows)]


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation (of a sample), or the one value that there is."""
    if not values:
        return "–"
    mean = f"{statistics.fmean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2f}"


def with_error(gaps: Sequence[float]) -> str:
    """The mean of differences, and how far chance may have moved it: its standard error, where there are several."""
    if not gaps:
        return ""
    mean = f"{statistics.fmean(gaps):+.2f}"
    return mean if len(gaps) == 1 else f"{mean} ± {statistics.stdev(gaps) / math.sqrt(len(gaps)):.2f}"


def _printed_kinds(rows: Sequence[Comparison]) -> set[str]:
    """The gradients by which the paper trained any of these nets."""
    return {kind for kind in ("ep", "id") if any(row.score(kind) is not None for row in rows)}


def _printed(score: Score | None, top5: bool) -> tuple[float | None, float | None]:
    if score is None:
        return None, None
    return (score.top5, score.top5_spread) if top5 else (score.top1, score.top1_spread)
