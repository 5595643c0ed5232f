"""What settings would take, before any of it is taken: memory, and the time of a step."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from ffebm.experiment.architectures import build_model
from ffebm.experiment.faults import PartError, blamed
from ffebm.experiment.settings import Settings, SettingsError, Trainer as TrainerSettings
from ffebm.experiment.settings.duration import in_words
from ffebm.model import FFEBM
from ffebm.summary import Summary

__all__ = ["sketch", "survey", "warning_of_slow_steps"]
__dir__ = __all__.copy

SLOW, FAST = 1e10, 1e12  # multiply-accumulates a second: rough guesses at two CPU cores and a GPU, for a warning
PATIENCE = 60.0  # seconds that a step may take without remark


def survey(settings: Settings, shape: Sequence[int], classes: int) -> Summary:
    """All sizes of the model that settings describe, or a `SettingsError`: there is none, or the machine cannot train it."""
    model = sketch(settings, shape, classes)
    with _refusing(settings), torch.device("meta"):
        found = model.summary()  # walks through all of them
        for _, block in model.chain:
            precision = torch.float64 if settings.trainer.precision == "64-true" else torch.float32
            block.estimator.check_precision(precision, block.label)
    (*_, readout) = found.rows
    if readout.shapes != ((classes,),):
        raise SettingsError(
            f"The model gives {_sized(readout.shapes[0])} numbers for an image, and the data has {classes} classes: its last "
            "module must return one number for each."
        )
    _check_memory(settings, found.parameters, training=True)
    return found


def sketch(settings: Settings, shape: Sequence[int], classes: int) -> FFEBM:
    """The model without numbers, on the meta device, or a `SettingsError`: there is none, or the machine cannot hold it."""
    with _refusing(settings), torch.device("meta"):  # shapes alone: nothing is allocated yet
        model = build_model(settings, shape, classes)
    _check_memory(settings, sum(p.numel() for p in model.parameters()), training=False)
    return model


@contextmanager
def _refusing(settings: Settings) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if words := blamed(error, settings.parts):
            raise PartError(words) from error
        if not isinstance(error, ValueError | RuntimeError | TypeError):
            raise
        raise SettingsError(f"No model can be built from these settings: {error}") from None


def _sized(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape)) or "single"


def warning_of_slow_steps(settings: Settings, summary: Summary, images: int) -> str:
    """What to say first where a single step may take long; nothing, where it does not."""
    free, batch = settings.effective[0].steps, min(settings.trainer.batch, images)
    nudged = free if settings.gradient.kind in ("bptt", "bp") else settings.gradient.steps  # these go back through all
    digital, analog = summary.digital_macs or 0, summary.analog_macs or 0
    # If no phase settles before its last sweep; a nudge goes both ways.
    macs = batch * (3 * digital + (free + 2 * nudged) * analog) / settings.trainer.processes
    seconds = macs / (FAST if _on_accelerator(settings.trainer) else SLOW)
    if seconds <= PATIENCE:
        return ""
    return (
        f"A single step may take about {in_words(seconds)}: a batch of {settings.trainer.batch:,} goes through up to {free:,} "
        f"free and {nudged:,} nudged or recorded sweeps. For less, lower relaxation.steps, gradient.steps, trainer.batch or "
        "model.width."
    )


def _check_memory(settings: Settings, parameters: int, training: bool) -> None:
    """Weights, and in training their gradient and what the optimiser remembers of each; a GPU holds its own part."""
    remembered = {"adam": 2, "adamw": 2, "sgd": int(settings.optimiser.momentum > 0)}[settings.optimiser.kind]
    numbers = 2 + remembered if training and not _on_accelerator(settings.trainer) else 1
    processes = settings.trainer.devices if training else 1
    needed = parameters * numbers * (8 if settings.trainer.precision == "64-true" else 4) * processes
    there = _physical_memory()
    if there is not None and needed > there:
        what = "Training takes at least" if training else "They take"
        raise SettingsError(
            f"The model has {parameters:,} parameters. {what} {needed / 1e9:,.1f} GB, and this machine has "
            f"{there / 1e9:,.1f} GB: take a smaller model.width, or fewer layers."
        )


def _physical_memory() -> int | None:
    """In bytes, where the system says."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _on_accelerator(trainer: TrainerSettings) -> bool:
    return trainer.accelerator in ("auto", "gpu") and torch.cuda.is_available()
