"""Data and model, ready to be trained; what cannot work is refused here."""

from __future__ import annotations

import os
from copy import deepcopy

import torch
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch import seed_everything
from rich.console import Console

from ffebm.checks import brief_name
from ffebm.experiment.allocator import keep_freed_memory
from ffebm.experiment.architectures import build_model
from ffebm.experiment.data import Dataset, load_for
from ffebm.experiment.forecast import survey, warning_of_slow_steps
from ffebm.experiment.parts import check_parts
from ffebm.experiment.processes import is_first
from ffebm.experiment.settings import Settings, SettingsError, Trainer as TrainerSettings
from ffebm.experiment.training.learner import Learner
from ffebm.model import FFEBM
from ffebm.start import start_from_data

__all__ = ["prepare", "wrongly_started"]
__dir__ = __all__.copy

STARTING = 256  # training images that the first weights are scaled by


def prepare(settings: Settings, console: Console | None = None, data: Dataset | None = None) -> Learner:
    """Data and model, ready to be trained. Where a single step may take long, the console is told first."""
    trainer = settings.trainer
    check_parts(settings.parts)
    _check_processes(trainer)
    threads = trainer.threads or max(1, (os.cpu_count() or 1) // trainer.devices)
    torch.set_num_threads(threads)
    keep_freed_memory()
    if trainer.processes > 1:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # or Lightning would choose another number for its processes
    dataset = load_for(settings.data) if data is None else data
    dataset = dataset if settings.data.normalise else dataset.as_fractions()
    _check_batches(settings, dataset)
    summary = survey(settings, dataset.shape, len(dataset.classes))
    slow = warning_of_slow_steps(settings, summary, len(dataset.train))
    if slow and console is not None and is_first(trainer.processes):
        console.print(f"[yellow]Warning:[/] {slow}", highlight=False)
    seed_everything(settings.seed, verbose=False)
    model = _at_start(settings, dataset)
    # Lightning would convert it only after it has loaded a checkpoint, and so round the weights to single precision.
    model = model.double() if trainer.precision == "64-true" else model
    learner = Learner(model, settings, dataset)
    if learner.has_own_optimiser:  # what is wrong with it is said before anything is begun
        learner.make_optimiser(deepcopy(model).parameters())
    return learner


def _at_start(settings: Settings, dataset: Dataset) -> FFEBM:
    """The model at its first weights; those of plain backprop, without limit and equilibria, are those of the others."""
    shape, classes = dataset.shape, len(dataset.classes)
    relaxing = settings.gradient if settings.relaxes else settings.gradient.model_copy(update={"kind": "ep"})
    model = build_model(settings.model_copy(update={"gradient": relaxing}), shape, classes)
    if settings.model.start is not None:
        start_from_data(model, dataset.few(STARTING)[0], settings.model.start)
    if settings.relaxes:
        return model
    plain, weights = build_model(settings, shape, classes), model.state_dict()
    plain.load_state_dict({name: weights[name] for name in plain.state_dict()})
    return plain


def wrongly_started(processes: int | str, trainer: TrainerSettings) -> SettingsError:
    return SettingsError(
        f"{processes} processes were started, but the settings are for {trainer.devices} devices on {trainer.nodes} nodes. "
        "Make trainer.devices and trainer.nodes agree with torchrun's --nproc-per-node and --nnodes, or with SLURM's "
        "--ntasks-per-node and --nodes; under SLURM start processes by srun."
    )


def _check_processes(trainer: TrainerSettings) -> None:
    """Refuse to be one of several processes that do not know of each other."""
    started = os.environ.get("WORLD_SIZE", "1")
    if TorchElasticEnvironment.detect() and started != str(trainer.processes):
        raise wrongly_started(brief_name(started), trainer)


def _check_batches(settings: Settings, dataset: Dataset) -> None:
    if settings.data.crop_padding > min(dataset.shape[1:]):
        raise SettingsError(
            f"data.crop_padding={settings.data.crop_padding} is more than the images of {dataset.shape[1:]} pixels."
        )
    parts = settings.trainer.parts
    smallest = len(dataset.train) // -(-len(dataset.train) // settings.trainer.batch)
    if smallest < parts:
        raise SettingsError(f"A batch of {smallest} samples cannot be cut into {parts} parts (devices × nodes × accumulate).")
    if settings.model.batch_norm != "off" and smallest // parts < 2:
        raise SettingsError("Batch-norm needs at least two samples in every part of a batch: take a larger trainer.batch.")
