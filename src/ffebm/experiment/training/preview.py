"""What a run is going to be: the parts of its model, and how long it may take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from ffebm.calibration import calibrate
from ffebm.experiment.settings import Settings
from ffebm.experiment.training.calibrating import SAMPLES, few_samples
from ffebm.experiment.training.learner import Learner
from ffebm.experiment.training.preparing import prepare
from ffebm.summary import Summary

TIMED = 3  # steps, of which the fastest counts


@dataclass(frozen=True)
class Preview:
    """A run that has not begun."""

    summary: Summary
    steps: int  # of the optimiser
    step_seconds: float
    test_seconds: float  # of the test after every epoch
    epochs: int

    @property
    def seconds(self) -> float:
        """Of the whole run, on one process of this machine as busy as it is now."""
        return self.steps * self.step_seconds + self.epochs * self.test_seconds


def preview(settings: Settings, console: Console | None = None) -> Preview:
    """Build what would be trained, and time a few steps of it; nothing is written."""
    learner = prepare(settings, console)
    model, trainer = learner.model.train(), settings.trainer
    if settings.sweeps == "calibrated":
        calibrate(model, *few_samples(learner, SAMPLES), settings.gradient.quality).apply(model)
    batch = few_samples(learner, min(trainer.batch, len(learner.dataset.train)))
    step_seconds = min(_seconds(lambda: _gradient(learner, *batch)) for _ in range(TIMED))
    with torch.no_grad():
        model.eval()
        test_seconds = _seconds(lambda: model(batch[0])) * len(learner.dataset.test) / len(batch[0])
    return Preview(model.summary(), learner.steps, step_seconds, test_seconds, trainer.epochs)


def model_table(summary: Summary, limit: float | None = None) -> Table:
    """The parts of a model, narrow enough for a small terminal.

    Args:
        limit: on the contraction of blocks, where their weights are not known yet.
    """
    caption = "MACs: multiply-accumulates for a sample; those of a block are of one sweep"
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, caption=caption, caption_justify="left")
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
            leaves = "not certain" if limit is None else f"{limit:g} at most"
        shapes = ", ".join("×".join(map(str, shape)) for shape in row.shapes)
        macs = "unknown" if row.macs is None else f"{row.macs / 1e6:,.2f} M"
        table.add_row(row.part, shapes, f"{row.parameters:,}", macs, leaves)
    table.add_section()
    table.add_row("all", "", f"{summary.parameters:,}", "", "")
    return table


def _gradient(learner: Learner, x: Tensor, y: Tensor) -> None:
    losses = learner.model(x, y).losses
    assert losses is not None
    learner.model.zero_grad()
    losses.mean().backward()


def _seconds(task: Callable[[], object]) -> float:
    begun = time.perf_counter()
    task()
    return time.perf_counter() - begun
