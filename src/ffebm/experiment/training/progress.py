"""What a person sees while a run goes on, and the files that grow with it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress as Bar, TextColumn, TimeRemainingColumn
from rich.table import Column

from ffebm.experiment.clock import clock
from ffebm.experiment.data import Batch
from ffebm.experiment.figures import save_curves
from ffebm.experiment.run import Run
from ffebm.experiment.training.learner import Learner, epoch_metrics

__all__ = ["Progress", "Recorder", "fitting"]
__dir__ = __all__.copy

FORGET = 0.98  # of what the bar shows, per step: it averages over about fifty
QUIET = 600  # seconds between lines in an epoch where there is no terminal to draw a bar on
DRAWN = 60  # seconds between pictures of the curves
BESIDE = 45  # columns of a terminal that the epoch, the bar, the count and the time left take


class Progress(Callback):
    """A bar over the whole run, and a line for every epoch."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=8),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("left · {task.fields[shown]}", table_column=Column(no_wrap=True, overflow="crop")),
            console=console,
            transient=True,
            speed_estimate_period=300,
        )
        self.averages: dict[str, float] = {}
        self._weight = 0.0
        self._clock = self._spoke = time.perf_counter()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Learner)
        self.task = self.bar.add_task("", total=pl_module.steps, completed=trainer.global_step, shown="")
        self.bar.start()
        self._clock = self._spoke = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, Learner)
        now = time.perf_counter()
        seconds, self._clock = now - self._clock, now
        samples, loss, right, residual = (pl_module.training_sums - self._before).tolist()
        if not samples:  # a part that failed, and will stop all at the end of the batch
            return
        self._average(loss=loss / samples, accuracy=right / samples, residual=residual / samples, pace=seconds / samples)
        pace = trainer.world_size / self.averages["pace"]
        shown = fitting(
            [
                f"loss {self.averages['loss']:.3f}",
                f"{100 * self.averages['accuracy']:.1f} %",
                f"{pace:,.0f}/s",
                f"residual {self.averages['residual']:.0e}",
            ],
            self.console.width - BESIDE if self.console.is_terminal else None,
        )
        epoch = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
        self.bar.update(self.task, completed=trainer.global_step, description=epoch, shown=shown)
        if not self.console.is_terminal and now - self._spoke > QUIET:
            self._spoke = now
            left = (pl_module.steps - trainer.global_step) * pl_module.settings.trainer.batch / pace
            self.console.print(
                f"{epoch}, step {trainer.global_step}: {shown} · {clock(left)} left", highlight=False, soft_wrap=True
            )

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int) -> None:
        assert isinstance(pl_module, Learner)
        self._before = pl_module.training_sums.clone()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.bar.update(self.task, shown="testing …")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._clock = time.perf_counter()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Learner)
        row = pl_module.history[-1]
        line = fitting(
            [
                f"epoch {row['epoch']:.0f}/{trainer.max_epochs}: loss {row['train_loss']:.3f}, "
                f"{100 * row['train_accuracy']:.1f} %",
                f"test {row['test_loss']:.3f}, {100 * row['test_accuracy']:.2f} %",
                f"{row['images_per_second']:,.0f}/s",
                clock(row["seconds"]),
                f"residual {row['residual']:.0e}",
                *_promised(pl_module),
            ],
            self.console.width if self.console.is_terminal else None,
        )
        self.console.print(line, highlight=False, soft_wrap=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.bar.stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.bar.stop()

    def _average(self, **values: float) -> None:
        """Exponential averages, without the bias of the first steps."""
        self._weight = FORGET * self._weight + 1 - FORGET
        share = (1 - FORGET) / self._weight
        for name, value in values.items():
            self.averages[name] = self.averages.get(name, 0.0) * (1 - share) + value * share


def fitting(parts: Sequence[str], width: int | None) -> str:
    """The first of these parts, as many as fit between the edges of a terminal; all of them where there is none."""
    shown = parts[0]
    for part in parts[1:]:
        longer = f"{shown} · {part}"
        if width is not None and len(longer) > width:
            break
        shown = longer
    return shown


def _promised(learner: Learner) -> list[str]:
    """By how much a sweep of the slowest block brings it nearer at least, where blocks have a limit."""
    kept = [block.limit.certificate for _, block in learner.model.chain if block.limit is not None]
    slowest = max((certificate.contraction for certificate in kept if certificate is not None), default=None)
    return [] if slowest is None else [f"contraction {slowest:.2f}"]


class Recorder(Callback):
    """Metrics, curves, TensorBoard events and weights, at the end of every epoch."""

    def __init__(self, run: Run, every: int = 10) -> None:
        self.run = run
        self.every = every  # steps between events
        self._drew = 0.0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, Learner)
        if trainer.global_step % self.every == 0 and trainer.loggers:
            self.run.check_there()
            residuals = {f"residual/block {i}": value for i, value in enumerate(pl_module.residuals().tolist(), 1)}
            rate = trainer.optimizers[0].param_groups[0]["lr"]
            row = {"step/loss": float(outputs["loss"]), "step/learning_rate": rate, **residuals}
            for logger in trainer.loggers:
                logger.log_metrics(row, trainer.global_step)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Learner)
        self.run.check_there()
        rows = pl_module.history
        for logger in trainer.loggers:
            logger.log_metrics(epoch_metrics(rows[-1]), trainer.global_step)
        self.run.save_weights(pl_module.model)
        self.run.save_metrics(rows)
        if time.monotonic() - self._drew > DRAWN or len(rows) == trainer.max_epochs:
            self._draw(rows)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Learner)
        if len(pl_module.history) not in (0, trainer.max_epochs):  # a callback has stopped it early
            self._draw(pl_module.history)

    def _draw(self, rows: Sequence[Mapping[str, float]]) -> None:
        save_curves(rows, self.run.folder / "curves.png", self.run.folder.name)
        self._drew = time.monotonic()
