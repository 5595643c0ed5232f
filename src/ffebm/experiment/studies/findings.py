"""What the runs of a study have come to, and the answer to its question."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from ffebm.experiment.costing import counted_sweeps, price
from ffebm.experiment.errors import UserError
from ffebm.experiment.files import read_regular
from ffebm.experiment.queue import Stage
from ffebm.experiment.run import LARGEST, Run
from ffebm.experiment.studies.axis import Axis, Level
from ffebm.experiment.studies.study import Study
from ffebm.experiment.studies.trial import Trial
from ffebm.hardware.cost import Technology
from ffebm.hardware.cost.quantity import in_units

__all__ = ["Findings", "Outcome", "Point", "find", "first_cosine", "standard_error"]
__dir__ = __all__.copy


@dataclass(frozen=True)
class Outcome:
    """One finished run."""

    run: Run
    seed: int
    accuracy: float  # in per cent, of the test after the last epoch
    cosine: float | None  # between the gradient that the hardware makes and the ideal one, when it was last measured
    energy: float | None  # joules of a training step, for a sample
    inference: float | None  # likewise of an inference
    seconds: float | None  # of a training step, for a sample


@dataclass(frozen=True)
class Point:
    """All seeds of the same levels."""

    levels: tuple[Level, ...]
    outcomes: tuple[Outcome, ...]

    @property
    def accuracy(self) -> float:
        return statistics.fmean(outcome.accuracy for outcome in self.outcomes) if self.outcomes else math.nan

    @property
    def accuracy_error(self) -> float:
        """The standard error of that mean."""
        return standard_error([outcome.accuracy for outcome in self.outcomes])

    @property
    def cosines(self) -> list[float]:
        return [outcome.cosine for outcome in self.outcomes if outcome.cosine is not None]

    @property
    def energy(self) -> float:
        return _mean([outcome.energy for outcome in self.outcomes])

    @property
    def inference(self) -> float:
        return _mean([outcome.inference for outcome in self.outcomes])

    @property
    def seconds(self) -> float:
        return _mean([outcome.seconds for outcome in self.outcomes])

    def losses(self, reference: Point) -> list[float]:
        """Points of accuracy that each seed loses against the same seed elsewhere."""
        others = {outcome.seed: outcome.accuracy for outcome in reference.outcomes}
        return [others[outcome.seed] - outcome.accuracy for outcome in self.outcomes if outcome.seed in others]


@dataclass(frozen=True)
class Findings:
    """A study, and what there is of it."""

    study: Study
    points: tuple[Point, ...]  # in the order of its levels
    unpriced: str = ""  # why there is no energy beside accuracies

    def front(self) -> list[Point]:
        """Points that no other beats in both accuracy and energy, by energy."""
        known = [point for point in self.points if point.outcomes and math.isfinite(point.energy)]
        kept = [point for point in known if not any(_beats(other, point) for other in known)]
        return sorted(kept, key=lambda point: (point.energy, point.accuracy))

    def lines(self) -> Iterator[tuple[Level | None, list[Point]]]:
        """The points along the first axis, for every level of the second, or for none."""
        if len(self.study.axes) == 1:
            yield None, list(self.points)
            return
        for level in self.study.axes[1].levels:
            yield level, [point for point in self.points if point.levels[1] == level]

    def answer(self) -> list[str]:
        """Sentences, one for every level of the second axis."""
        axis, tolerance = self.study.axes[0], self.study.tolerance
        sentences: list[str] = []
        for level, points in self.lines():
            words = _answer(axis, points, tolerance)
            if level is not None:
                name = self.study.axes[1].named(level)
                begin = name[0].upper() if name[0].isascii() else name[0]  # β stays β
                words = f"{begin}{name[1:]}: {words[0].lower()}{words[1:]}"
            sentences.append(words)
        return sentences


def _answer(axis: Axis, points: Sequence[Point], tolerance: float) -> str:
    """How rough the first axis may be."""
    *rougher, reference = points
    if not reference.outcomes:
        return f"No run with {axis.named(axis.reference)} is finished, which all others are compared with."
    enough, fails = reference, None
    for point in reversed(rougher):
        if not (lost := point.losses(reference)):
            continue
        if statistics.fmean(lost) > tolerance:
            fails = point
            break
        enough = point
    best = f"{reference.accuracy:.2f} %"
    if enough is reference:
        words = f"Only with {axis.named(axis.reference)} is accuracy what it is there, {best}"
    else:
        lost = _lost(enough.losses(reference))
        words = (
            f"With {axis.named(enough.levels[0])}, accuracy stays within {tolerance:g} point{'' if tolerance == 1 else 's'} of "
            f"the {best} with {axis.named(axis.reference)}: {lost}"
        )
        if math.isfinite(enough.energy) and math.isfinite(reference.energy):
            share = 100 * enough.energy / reference.energy
            words += f", at {share:.0f} % of the energy of a training step ({in_units(enough.energy, 'J')} a sample)"
    if fails is not None:
        words += f". With {axis.named(fails.levels[0])} it loses {_points(fails.losses(reference))}"
    return f"{words}."


def _lost(losses: Sequence[float]) -> str:
    mean = statistics.fmean(losses)
    return f"it {'loses' if mean >= 0 else 'gains'} {_points([abs(mean)] if len(losses) == 1 else losses, size=True)}"


def _points(losses: Sequence[float], *, size: bool = False) -> str:
    """The mean, with its standard error where there are several seeds."""
    mean = statistics.fmean(losses)
    words = f"{abs(mean) if size else mean:.2f}"
    if len(losses) > 1:
        words += f" ± {standard_error(losses):.2f}"
    return f"{words} points"


def find(study: Study, trials: Sequence[Trial], folder: Path, technology: Technology) -> Findings:
    """Look at the runs of a study in a folder; those that are not finished are left out."""
    finished: dict[tuple[Level, ...], list[Outcome]] = {}
    unpriced = ""
    for trial in trials:
        if trial.progress(folder).stage is not Stage.FINISHED:
            continue
        try:
            found = _outcome(trial, trial.run(folder), technology)
        except UserError as error:
            unpriced, found = str(error), _outcome(trial, trial.run(folder), None)
        finished.setdefault(trial.levels, []).append(found)
    every = product(*(axis.levels for axis in study.axes))
    return Findings(study, tuple(Point(levels, tuple(finished.get(levels, []))) for levels in every), unpriced)


def _outcome(trial: Trial, run: Run, technology: Technology | None) -> Outcome:
    last = run.metrics()[-1]
    accuracy, cosine = 100 * last["test_accuracy"], last.get("block_cosine", first_cosine(run))
    if technology is None:
        return Outcome(run, trial.seed, accuracy, cosine, None, None, None)
    data = run.description()
    cost = price(trial.name, run.settings(), technology, None, (data.shape, len(data.classes)), counted_sweeps(run)).estimate
    training, batch = cost.training, cost.inference.batch
    energy, seconds = (None, None) if training is None else (training.energy / batch, training.time / batch)
    return Outcome(run, trial.seed, accuracy, cosine, energy, cost.inference.energy / batch, seconds)


def first_cosine(run: Run) -> float | None:
    """Of the first gradient, as it was checked before training."""
    try:
        found = json.loads(read_regular(run.gradient_file, LARGEST))["cosine"]
        return float(found) if isinstance(found, int | float) and math.isfinite(found) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # it is only shown
        return None


def _beats(one: Point, other: Point) -> bool:
    as_good = one.accuracy >= other.accuracy and one.energy <= other.energy
    return as_good and (one.accuracy > other.accuracy or one.energy < other.energy)


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else math.nan


def standard_error(values: Sequence[float]) -> float:
    """How far chance may have moved a mean; 0 where a single value cannot tell."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
