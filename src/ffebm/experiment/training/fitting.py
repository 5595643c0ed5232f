"""A run from its beginning, or from where it was, to its end."""

from __future__ import annotations

import logging
import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.exceptions import SIGTERMException
from rich.console import Console
from rich.markup import escape

from ffebm.experiment.architectures import build_model
from ffebm.experiment.data import Dataset, load
from ffebm.experiment.environment import describe_environment
from ffebm.experiment.processes import is_first
from ffebm.experiment.run import Run, RunError
from ffebm.experiment.settings import Settings, SettingsError
from ffebm.experiment.settings import Trainer as TrainerSettings
from ffebm.experiment.training.calibrating import Calibrating
from ffebm.experiment.training.checkpoints import AtomicCheckpointIO, Checkpoints, Stopped
from ffebm.experiment.training.health import Health
from ffebm.experiment.training.learner import Learner
from ffebm.experiment.training.progress import Progress, Recorder


def train(settings: Settings, run: Run, console: Console | None = None) -> Learner:
    """Train from the beginning, into a fresh folder."""
    console = console or Console(stderr=True)
    learner = prepare(settings)
    _fit(learner, run, console, None)
    return learner


def resume(run: Run, console: Console | None = None, root: Path | None = None) -> Learner:
    """Go on with a run from its newest sound checkpoint; one that was not yet reached means from the beginning.

    Args:
        root: where the data lies now, if not where it was.
    """
    console = console or Console(stderr=True)
    settings = run.settings()
    learner = prepare(settings if root is None else settings.model_copy(update={"data": settings.data.at(root)}))
    checkpoint, content, damaged = run.newest_checkpoint()
    if checkpoint is None and damaged:
        raise RunError(f"None of the {len(damaged)} checkpoints in {run.checkpoint_folder} is sound; start a new run.")
    if is_first(learner.settings.trainer.processes):
        for report in damaged:
            console.print(f"[yellow]Warning:[/] {escape(report)}", highlight=False)
        where = (
            "the beginning: there is no checkpoint yet"
            if checkpoint is None
            else f"step {content['global_step']} ({checkpoint.name})"
        )
        console.print(f"Going on from {where}.", highlight=False)
    if checkpoint is not None:
        _check_fits(learner, content, run)
    _fit(learner, run, console, checkpoint)
    return learner


def prepare(settings: Settings) -> Learner:
    """Data and model, ready to be trained."""
    trainer = settings.trainer
    _check_processes(trainer)
    threads = trainer.threads or max(1, (os.cpu_count() or 1) // trainer.devices)
    torch.set_num_threads(threads)
    if trainer.processes > 1:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # or Lightning would choose another number for its processes
    dataset = load(settings.data.name, settings.data.root)
    _check_batches(settings, dataset)
    seed_everything(settings.seed, verbose=False)
    try:
        model = build_model(settings, dataset.shape, len(dataset.classes))
        model.summary()  # walks through all shapes
    except (ValueError, RuntimeError) as error:
        raise SettingsError(f"No model can be built from these settings: {error}") from None
    return Learner(model, settings, dataset)


def _fit(learner: Learner, run: Run, console: Console, checkpoint: Path | None) -> None:
    settings = learner.settings.trainer
    first = is_first(settings.processes)
    calibrated = learner.settings.sweeps == "calibrated"
    callbacks = [
        *([Calibrating(console, learner.settings.gradient.quality)] if calibrated else []),
        Health(console, settling=not calibrated),
        *([Progress(console), Recorder(run)] if first else []),
        Checkpoints(run, settings.checkpoint_every, settings.keep),
    ]
    step = None if checkpoint is None else int(checkpoint.stem.partition("-")[2])
    plugins: list[Any] = [AtomicCheckpointIO()]
    if SLURMEnvironment.detect() and not TorchElasticEnvironment.detect():
        plugins.append(SLURMEnvironment(auto_requeue=False))  # its checkpoints would be taken in the middle of a step
    on_gpu = settings.accelerator in ("auto", "gpu") and torch.cuda.is_available()
    with _calm():
        try:
            trainer = Trainer(
                accelerator=settings.accelerator,
                devices=settings.devices,
                num_nodes=settings.nodes,
                strategy=_together() if settings.processes > 1 else "auto",
                precision=settings.precision,
                max_epochs=settings.epochs,
                accumulate_grad_batches=settings.accumulate,
                gradient_clip_val=learner.settings.optimiser.clip,
                deterministic=settings.deterministic,
                sync_batchnorm=settings.sync_batch_norm and settings.processes > 1 and on_gpu,
                logger=TensorBoardLogger(run.folder, "tensorboard", "", purge_step=step) if first else False,
                callbacks=callbacks,
                plugins=plugins,
                use_distributed_sampler=False,  # batches know their process
                num_sanity_val_steps=0,
                enable_progress_bar=False,
                enable_model_summary=False,
                log_every_n_steps=1,
                default_root_dir=run.folder,
            )
        except (MisconfigurationException, ValueError, RuntimeError) as error:
            raise SettingsError(f"These trainer settings do not fit this machine: {error}") from None
        if trainer.world_size != settings.processes:
            raise SettingsError(_started(trainer.world_size, settings))
        if first and not run.settings_file.exists():
            learner.settings.save(run.settings_file)  # first: it is what makes a folder a run
    with run.locked() if first else nullcontext(), _calm():
        if first:
            run.tidy()
            run.save_description(learner.dataset.description)
            run.save_environment({**describe_environment(learner.settings.seed), "steps": learner.steps})
        try:
            trainer.fit(learner, ckpt_path=checkpoint, weights_only=True)
        except SIGTERMException:  # which came before the first step, to Lightning's own handler
            raise Stopped(signal.SIGTERM, "before the first step") from None
        except Stopped:
            raise
        except BaseException:
            if trainer.strategy.launcher is not None:
                trainer.strategy.launcher.kill(signal.SIGTERM)  # processes that would wait for this one
            raise


def _together() -> DDPStrategy:
    """Processes wait for each other once a step, for the gradient: batch-norm's statistics can wait until they are used."""
    return DDPStrategy(broadcast_buffers=False, gradient_as_bucket_view=True)


def _check_processes(trainer: TrainerSettings) -> None:
    """Refuse to be one of several processes that do not know of each other."""
    started = os.environ.get("WORLD_SIZE", "1")
    if TorchElasticEnvironment.detect() and int(started) != trainer.processes:
        raise SettingsError(_started(int(started), trainer))


def _started(processes: int, trainer: TrainerSettings) -> str:
    return (
        f"{processes} processes were started, but the settings are for {trainer.devices} devices on {trainer.nodes} nodes. "
        "Make trainer.devices and trainer.nodes agree with torchrun's --nproc-per-node and --nnodes, or with SLURM's "
        "--ntasks-per-node and --nodes; under SLURM start processes by srun."
    )


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


def _check_fits(learner: Learner, content: dict[str, Any], run: Run) -> None:
    saved = {name.removeprefix("model."): tuple(t.shape) for name, t in content["state_dict"].items()}
    built = {name: tuple(t.shape) for name, t in learner.model.state_dict().items()}
    if saved != built or "ffebm" not in content:
        raise RunError(f"The checkpoints in {run.checkpoint_folder} are of another model than {run.settings_file} describes.")


@contextmanager
def _calm() -> Iterator[None]:
    """Without Lightning's remarks on what was set on purpose."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*isinstance.treespec, LeafSpec.*")  # of Lightning's own making
            yield
    finally:
        logger.setLevel(level)
