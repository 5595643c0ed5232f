"""A run from its beginning, or from where it was, to its end."""

from __future__ import annotations

import re
import signal
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.exceptions import SIGTERMException
from rich.console import Console
from rich.markup import escape

from ffebm.checks import brief_name
from ffebm.experiment.data import Dataset, Wishes, given_dataset
from ffebm.experiment.environment import describe_environment
from ffebm.experiment.errors import UserError
from ffebm.experiment.faults import PartError
from ffebm.experiment.forecast import survey
from ffebm.experiment.places import GIVEN
from ffebm.experiment.processes import is_first
from ffebm.experiment.run import Run, RunError, remake_command, step_of
from ffebm.experiment.settings import Settings, SettingsError
from ffebm.experiment.training.calibrating import Calibrating
from ffebm.experiment.training.calm import calm
from ffebm.experiment.training.checkpoints import AtomicCheckpointIO, Checkpoints, Stopped
from ffebm.experiment.training.fidelity_meter import FidelityMeter
from ffebm.experiment.training.gradient_check import GradientCheck
from ffebm.experiment.training.health import Health
from ffebm.experiment.training.learner import Learner
from ffebm.experiment.training.loggers import loggers
from ffebm.experiment.training.preparing import prepare, wrongly_started
from ffebm.experiment.training.preview import model_table
from ffebm.experiment.training.progress import Progress, Recorder
from ffebm.experiment.training.resumable import Pattern, check_resumable

__all__ = ["resume", "train"]
__dir__ = __all__.copy


def train(
    settings: Settings, run: Run | None = None, console: Console | None = None, *, quiet: bool = False, data: Any = None
) -> Learner:
    """Train from the beginning, into a fresh folder.

    Args:
        run: where to; by default a fresh folder below runs/, which is `learner.run`.
        console: is told of the model and of every epoch.
        quiet: tell it only of what is wrong.
        data: what to learn in place of what settings name: a pair (training, test) of data sets that give an image and
            its label, one such set, or a Lightning data module.
    """
    console = console or Console(stderr=True)
    settings, given = _handed_over(settings, data)
    run = Run.create(None, settings.data.name) if run is None else run
    learner = prepare(settings, console, given)
    learner.run = replace(run, trust=True)  # whose settings are those of the caller
    if not quiet:
        _introduce(learner, console)
    with _folder_locked(learner, run, new=True):
        _fit(learner, run, console, None, quiet)
    return learner


def resume(
    run: Run, console: Console | None = None, root: Path | None = None, *, quiet: bool = False, data: Any = None
) -> Learner:
    """Go on with a run from its newest sound checkpoint; where there is none yet, from the beginning.

    Args:
        root: where the data lies now, if not where it was.
        quiet: tell the console only of what is wrong.
        data: the same that `train` was given, where it was.
    """
    console = console or Console(stderr=True)
    if run.is_saved_model:
        raise RunError(
            f"{run.folder} holds a saved model, not a run: there are weights, and neither checkpoints nor metrics.csv to go on "
            f"from. To train such a model from the beginning: `{remake_command(run)}`."
        )
    settings = run.settings()
    moved = settings if root is None else settings.model_copy(update={"data": settings.data.at(root)})
    learner = prepare(moved, console, _handed_over(settings, data)[1])
    if run.described and run.description() != learner.dataset.description:
        raise RunError(
            f"The data is not what {run.folder} was begun with: its shape, classes, mean or deviation differ from those in "
            "data.json. Bring it back, or start a new run."
        )
    learner.run = run
    if not quiet:
        _introduce(learner, console)
    pattern = Pattern.of(learner)
    with _folder_locked(learner, run):
        checkpoint, content, damaged = run.newest_checkpoint(lambda found: check_resumable(found, learner, pattern))
        if checkpoint is None and damaged:
            raise RunError(
                f"None of the checkpoints in {run.checkpoint_folder} ({len(damaged)}) is sound; start a new run. "
                f"The newest: {damaged[0]}"
            )
        if is_first(learner.settings.trainer.processes):
            for report in damaged:
                console.print(f"[yellow]Warning:[/] {escape(report)}", highlight=False)
            where = "the beginning: there is no checkpoint yet"
            if checkpoint is not None:
                where = f"step {content['global_step']} ({checkpoint.name})"
            if not quiet:
                console.print(f"Going on from {where}.", highlight=False)
        _fit(learner, run, console, checkpoint, quiet)
    return learner


def _introduce(learner: Learner, console: Console) -> None:
    """Show what is going to be trained."""
    settings = learner.settings
    if is_first(settings.trainer.processes):
        summary = survey(settings, learner.dataset.shape, len(learner.dataset.classes))
        console.print(model_table(summary))


def _handed_over(settings: Settings, data: Any) -> tuple[Settings, Dataset | None]:
    """Data that is not read by name, and settings that say so."""
    if data is None:
        return settings, None
    named = settings.model_copy(update={"data": settings.data.model_copy(update={"name": GIVEN, "root": None})})
    return named, given_dataset(data, Wishes.of(settings.data))


def _folder_locked(learner: Learner, run: Run, *, new: bool = False) -> AbstractContextManager[None]:
    """The folder is this run's alone, from before the first byte is written; processes besides the first write none."""
    return run.locked(new=new) if is_first(learner.settings.trainer.processes) else nullcontext()


def _fit(learner: Learner, run: Run, console: Console, checkpoint: Path | None, quiet: bool) -> None:
    settings = learner.settings.trainer
    first = is_first(settings.processes)
    calibrated = learner.settings.calibrates
    callbacks = [
        *([Calibrating(console, learner.settings.gradient.quality)] if calibrated else []),
        Health(console, settling=not calibrated),
        *([FidelityMeter(run, console)] if not learner.settings.hardware.is_ideal else []),
        *([GradientCheck(console, run, quiet)] if first and learner.settings.relaxes else []),
        *([*([] if quiet else [Progress(console)]), Recorder(run)] if first else []),
        *learner.own_callbacks,
        Checkpoints(run, settings.checkpoint_every, settings.keep),
    ]
    step = None if checkpoint is None else step_of(checkpoint)
    plugins: list[Any] = [AtomicCheckpointIO()]
    # Processes wait for each other before and after a backward pass: batch-norm's statistics can wait until they are used.
    together = DDPStrategy(broadcast_buffers=False, gradient_as_bucket_view=True) if settings.processes > 1 else "auto"
    on_gpu = settings.accelerator in ("auto", "gpu") and torch.cuda.is_available()
    with calm():
        try:
            if SLURMEnvironment.detect() and not TorchElasticEnvironment.detect():
                plugins.append(SLURMEnvironment(auto_requeue=False))  # its checkpoints would be taken in the middle of a step
            trainer = Trainer(
                accelerator=settings.accelerator,
                devices=settings.devices,
                num_nodes=settings.nodes,
                strategy=together,
                precision=settings.precision,
                max_epochs=settings.epochs,
                accumulate_grad_batches=settings.accumulate,
                gradient_clip_val=learner.settings.optimiser.clip,
                deterministic=settings.deterministic,
                sync_batchnorm=settings.sync_batch_norm and settings.processes > 1 and on_gpu,
                logger=loggers(learner.settings.parts, run.folder, step) if first else False,
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
            raise wrongly_started(trainer.world_size, settings)
        if first:
            if not run.settings_file.exists():
                learner.settings.save(run.settings_file)  # first: it is what makes a folder a run
            run.tidy()
            run.save_description(learner.dataset.description)
            run.save_environment({**describe_environment(learner.settings.seed), "steps": learner.steps})
        try:
            trainer.fit(learner, ckpt_path=checkpoint, weights_only=True)
        except SIGTERMException:  # which came before the first step, to Lightning's own handler
            raise Stopped(signal.SIGTERM, "before the first step") from None
        except Stopped:
            raise
        except BaseException as error:
            if trainer.strategy.launcher is not None:
                trainer.strategy.launcher.kill(signal.SIGTERM)  # processes that would wait for this one
            _explain(error, learner, checkpoint)
            raise


def _explain(error: BaseException, learner: Learner, checkpoint: Path | None) -> None:
    """Say in a line what a page of somebody else's code would hide; what is ours to mend keeps its page."""
    words = str(error).strip()
    cut_off = isinstance(error, ConnectionError | EOFError) and learner.settings.data.workers > 0
    if cut_off or words.startswith("DataLoader worker"):
        raise RunError(
            "A process that prepares batches has ended: it was killed, perhaps for lack of memory. Resume the run; it loses "
            "the steps since its last checkpoint. With data.workers=0 there is none."
        ) from error
    if sentence := learner.blamed(error):
        raise PartError(sentence) from error
    if isinstance(error, UserError | OSError | MemoryError) or not isinstance(error, Exception):
        return
    if checkpoint is not None and learner.restoring and "memory" not in words:
        reason = f"{type(error).__name__}: {words.splitlines()[0] if words else ''}"
        raise RunError(
            f"{checkpoint} is sound, but no run can go on from what it holds ({brief_name(reason, 200)}). "
            "Move it away to go on from the one before."
        ) from error
    if isinstance(error, torch.distributed.DistError) or re.search(r"\b(gloo|NCCL)\b|(closed|reset) by peer", words):
        raise RunError(
            "Another process of this run has ended, killed or by an error of its own, and this one cannot go on without it. "
            "Resume the run; it loses the steps since its last checkpoint."
        ) from error
