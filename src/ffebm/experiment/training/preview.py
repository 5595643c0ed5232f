"""What a run is going to be: the parts of its model, and how long it may take."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, islice, repeat

import torch
from rich import box
from rich.console import Console, Group
from rich.table import Table

from ffebm.calibration import calibrate
from ffebm.diagnostics import fidelity
from ffebm.experiment.data import Batches
from ffebm.experiment.settings import Settings
from ffebm.experiment.tables import titled
from ffebm.experiment.training.calibrating import SAMPLES, calibrations_of, few_samples
from ffebm.experiment.training.gradient_check import SAMPLES as CHECKED
from ffebm.experiment.training.learner import Learner
from ffebm.experiment.training.preparing import prepare
from ffebm.summary import Summary

__all__ = ["Preview", "model_table", "preview"]
__dir__ = __all__.copy

TIMED = 9  # steps at most, of which the median counts
LONG_ENOUGH = 20.0  # seconds of steps that tell enough, even where they are fewer


@dataclass(frozen=True)
class Preview:
    """A run that has not begun, timed on one process of this machine as busy as it is now."""

    summary: Summary
    steps: int  # of the optimiser
    step_seconds: float
    start_seconds: float  # before the first step
    calibration_seconds: float  # of all calibrations
    test_seconds: float  # of the test after every epoch
    epochs: int

    @property
    def seconds(self) -> float:
        """Of the whole run."""
        steps, tests = self.steps * self.step_seconds, self.epochs * self.test_seconds
        return self.start_seconds + steps + self.calibration_seconds + tests


def preview(settings: Settings, console: Console | None = None, begun: float | None = None) -> Preview:
    """Build what would be trained, and time a few steps of it; nothing is written.

    Args:
        begun: by `time.perf_counter`, when what a run needs began to be loaded; by default now.
    """
    begun = time.perf_counter() if begun is None else begun
    learner = prepare(settings, console)
    model = learner.model.train()
    summary = model.summary()
    fidelity(model, *few_samples(learner, CHECKED))
    start = time.perf_counter() - begun
    model.eval()
    tested = few_samples(learner, min(settings.trainer.test_batch, len(learner.dataset.train)))[0]
    with torch.no_grad():  # before calibration: tests relax until settled
        test = statistics.median(_seconds(lambda: model(tested)) for _ in range(2)) * len(learner.dataset.test) / len(tested)
    model.train()
    calibrations = 0.0
    if settings.calibrates:
        calibrations = calibrations_of(learner.steps) * _seconds(
            lambda: calibrate(model, *few_samples(learner, SAMPLES), settings.gradient.quality).apply(model)
        )
    return Preview(summary, learner.steps, _step_seconds(learner), start, calibrations, test, settings.trainer.epochs)


def model_table(summary: Summary) -> Group:
    """The parts of a model, narrow enough for a small terminal."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("part", no_wrap=True)
    table.add_column("layers")
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("MACs", justify="right", no_wrap=True)
    table.add_column("a sweep leaves", no_wrap=True)
    for row in summary.rows:
        analog = row.kind == "analog"
        known = row.certificate if analog and len(row.shapes) > 1 else None
        leaves = ""
        if known is not None and known.settles:
            leaves = f"{known.contraction:.2f} at most"
        elif analog and len(row.shapes) > 1:
            leaves = f"{row.limit:g} at most" if row.limit is not None else "less" if row.settles else "not certain"
        shapes = ", ".join("×".join(map(str, shape)) for shape in row.shapes)
        macs = "unknown" if row.macs is None else f"{row.macs / 1e6:,.2f} M"
        table.add_row(row.part, shapes, f"{row.parameters:,}", macs, leaves)
    table.add_section()
    table.add_row("all", "", f"{summary.parameters:,}", "", "")
    return titled("", table, "MACs: multiply-accumulates for a sample; those of a block are of one sweep")


def _step_seconds(learner: Learner) -> float:
    """Of whole steps, one after another as in training: batch, forward and backward pass, optimiser, limits on gains."""
    optimiser, schedule = learner.make_optimiser(learner.model.parameters())
    chosen, accumulate = learner.settings.trainer, learner.settings.trainer.accumulate
    batches = Batches(learner.dataset, learner.dataset.train, chosen.batch, parts=accumulate, **learner.augmentation)
    parts = chain.from_iterable(repeat(batches))

    def step() -> None:
        optimiser.zero_grad()
        for batch in islice(parts, accumulate):
            losses = learner.model(batch.x, batch.y).losses
            assert losses is not None
            (losses.sum() / batch.whole).backward()
        if (clip := learner.settings.optimiser.clip) is not None:
            torch.nn.utils.clip_grad_norm_(learner.model.parameters(), clip)
        optimiser.step()
        schedule.step()

    step()  # the first makes what later ones use again
    taken: list[float] = []
    while len(taken) < TIMED and sum(taken) < LONG_ENOUGH:
        taken.append(_seconds(step))
    return statistics.median(taken)


def _seconds(task: Callable[[], object]) -> float:
    begun = time.perf_counter()
    task()
    return time.perf_counter() - begun
