"""What Lightning trains: a model with its losses, its optimiser, and the sums that make an epoch's row of metrics."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ffebm.checks import brief_name
from ffebm.errors import DivergenceError
from ffebm.experiment.architectures import build_pulses
from ffebm.experiment.data import Batch, Batches, Dataset
from ffebm.experiment.data.augmentation import seeded
from ffebm.experiment.errors import UserError
from ffebm.experiment.faults import blamed
from ffebm.experiment.parts import made
from ffebm.experiment.run import Run
from ffebm.experiment.settings import Settings, SettingsError
from ffebm.model import FFEBM, per_sample_losses

__all__ = ["HealthError", "Learner", "epoch_metrics"]
__dir__ = __all__.copy


class HealthError(UserError):
    """Training that cannot go on."""


def epoch_metrics(row: Mapping[str, float]) -> dict[str, float]:
    """A row of an epoch, by the names that loggers and callbacks know."""
    return {f"epoch/{name}": value for name, value in row.items()}


class Learner(LightningModule):
    """Trains a model, and keeps the metrics of every epoch; both are part of its checkpoints."""

    model: FFEBM
    run: Run  # where its results go

    def __init__(self, model: FFEBM, settings: Settings, dataset: Dataset) -> None:
        super().__init__()
        # Convolutions on CPU and GPU are fastest with the channels of a pixel side by side.
        self.model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        for _, block in model.chain:
            block.unsettled = "ignore"  # `Health` says it in words of the settings, where blocks are meant to settle
        self.settings = settings
        self.dataset = dataset
        self.own_callbacks: list[Callback] = [  # besides those of every run
            made(settings.parts, "parts.callbacks", name, Callback, settings) for name in settings.parts.callbacks
        ]
        self.history: list[dict[str, float]] = []
        self.training_sums = torch.zeros(4, dtype=torch.float64)  # samples, loss, right, residual
        self.test_sums = torch.zeros(4, dtype=torch.float64)  # samples, loss, right, among the first five
        self.sweeps: dict[str, float] = {}  # of the free and the nudged phase, the mean over blocks, where they are calibrated
        self.fidelity: dict[str, float] = {}  # of blocks on hardware to ideal ones, when it was last measured
        self.restoring = False  # from a checkpoint, whose fault it is if something goes wrong meanwhile
        self.seconds = 0.0  # that training took, before and since the last resumption
        self._clock = time.perf_counter()

    @property
    def steps(self) -> int:
        """Of the optimiser, in the whole run."""
        trainer = self.settings.trainer
        return trainer.epochs * -(-len(self.dataset.train) // trainer.batch)

    def train_dataloader(self) -> Batches:
        trainer = self.settings.trainer
        batches = Batches(
            self.dataset, self.dataset.train, trainer.batch, parts=trainer.parts, **self.augmentation, **self._place
        )
        # Lightning restores where in an epoch a run was, but forgets it at the end of one.
        batches.load_state_dict({"taken": self.global_step * trainer.accumulate})
        return batches

    def val_dataloader(self) -> Batches:
        trainer = self.settings.trainer
        parts = trainer.processes
        return Batches(self.dataset, self.dataset.test, trainer.test_batch * parts, parts=parts, **self._place)

    @property
    def augmentation(self) -> dict[str, Any]:
        """What becomes of training images, and in which order."""
        data = self.settings.data
        return {"seed": self.settings.seed, "padding": data.crop_padding, "flip": data.flip}

    @property
    def _place(self) -> dict[str, Any]:
        ranks = {"rank": self.trainer.global_rank, "ranks": self.trainer.world_size}
        return {**ranks, "workers": self.settings.data.workers, "pin": self.device.type == "cuda"}

    def configure_optimizers(self) -> Any:
        optimiser, schedule = self.make_optimiser(self.model.parameters())
        if (pulses := build_pulses(self.settings.hardware)) is not None:
            stored = [p for _, block in self.model.chain for p in block.parameters() if p.dim() > 1]
            pulses.attach(optimiser, stored)
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    @property
    def has_own_optimiser(self) -> bool:
        return self.settings.parts.optimiser is not None

    def make_optimiser(self, parameters: Iterator[nn.Parameter]) -> tuple[Optimizer, LRScheduler]:
        chosen = self.settings.optimiser
        schedule = lambda step: chosen.rate(step / self.steps) / chosen.learning_rate  # noqa: E731
        if (own := self.settings.parts.optimiser) is not None:
            optimiser = made(self.settings.parts, "parts.optimiser", own, Optimizer, list(parameters), self.settings)
            _check_steps_once(optimiser, own)
            return optimiser, LambdaLR(optimiser, schedule)
        shared: dict[str, Any] = {"lr": chosen.learning_rate, "weight_decay": chosen.weight_decay}
        if chosen.kind == "sgd":
            optimiser = torch.optim.SGD(parameters, momentum=chosen.momentum, **shared)
        else:
            optimiser = (torch.optim.Adam if chosen.kind == "adam" else torch.optim.AdamW)(parameters, **shared)
        return optimiser, LambdaLR(optimiser, schedule)

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        return batch._replace(x=batch.x.to(memory_format=torch.channels_last))

    def training_step(self, batch: Batch, index: int) -> Tensor:
        # What a step draws, as random signs of nudges, depends on where it is alone: a run goes on to the same result.
        accumulate = self.settings.trainer.accumulate
        torch.manual_seed(seeded(self.settings.seed, self.global_step, index % accumulate, self.global_rank).initial_seed())
        output = None
        try:
            output = self.model(batch.x, batch.y)
            failure = "" if bool(output.losses.detach().isfinite().all()) else self._lost()
        except (DivergenceError, ValueError) as error:  # which name the block
            failure = f"{self.blamed(error) or error} This was step {self.global_step + 1}; no step was taken with it."
            if any(isinstance(module, nn.SyncBatchNorm) for module in self.model.modules()):
                # The others are asking for our share of a batch-norm, not whether we failed. They end when this one is gone.
                raise HealthError(failure) from None
        self.fail_together(failure)
        assert output is not None
        losses = output.losses
        right = (output.logits.argmax(1) == batch.y).sum()
        self._add(self.training_sums, len(batch.y), losses, right, self.residuals().max() * len(batch.y))
        # The mean over the whole batch, whatever it was cut into: Lightning averages over processes, and over what it
        # accumulates, as if all parts were equal.
        return losses.sum() * (self.trainer.world_size * self.trainer.accumulate_grad_batches / batch.whole)

    def validation_step(self, batch: Batch, _index: int) -> None:
        logits = self.model(batch.x).logits
        losses = per_sample_losses(self.model.criterion, logits, batch.y)
        ranked = logits.topk(min(5, logits.shape[1])).indices == batch.y.unsqueeze(1)
        self._add(self.test_sums, len(batch.y), losses, ranked[:, 0].sum(), ranked.sum())

    def on_validation_epoch_start(self) -> None:
        self.test_sums.zero_()
        if self.trainer.world_size > 1:  # each has the statistics of its own batches; those of the first are saved
            for buffer in self.model.buffers():
                torch.distributed.broadcast(buffer, 0)

    def residuals(self) -> Tensor:
        """By how much units of every block still moved in the last sweep of the last batch: the mean over its samples."""
        return torch.stack([block.residual.mean() for _, block in self.model.chain if block.residual is not None])

    def on_train_start(self) -> None:
        self.restoring = False
        self._clock = time.perf_counter()

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        try:
            super().backward(loss, *args, **kwargs)
        except (DivergenceError, ValueError) as error:  # of a nudged phase, or of an adjoint; they name the block
            # Other processes, which wait for this gradient, end when this one is gone.
            raise HealthError(
                f"{self.blamed(error) or error} This was the backward pass of step {self.global_step + 1}."
            ) from None

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        now = time.perf_counter()
        self.seconds, self._clock = self.seconds + now - self._clock, now

    def on_validation_end(self) -> None:
        self._clock = time.perf_counter()  # testing does not count

    def on_validation_epoch_end(self) -> None:
        """An epoch ends with its test: make a row of the sums over all processes.

        Lightning's own metrics would forget what came before a resumption in the middle of an epoch.
        """
        seen, loss, right, residual = self._over_processes(self.training_sums)
        tested, test_loss, test_right, test_top5 = self._over_processes(self.test_sums)
        before = self.history[-1]["seconds"] if self.history else 0.0
        self.history.append(
            {
                "epoch": len(self.history) + 1,
                "step": self.global_step,
                "train_loss": loss / seen,
                "train_accuracy": right / seen,
                "test_loss": test_loss / tested,
                "test_accuracy": test_right / tested,
                "test_top5": test_top5 / tested,
                "residual": residual / seen,
                "learning_rate": self.trainer.optimizers[0].param_groups[0]["lr"],
                "images_per_second": seen / max(self.seconds - before, 1e-9),
                "seconds": self.seconds,
                **self.sweeps,
                **self.fidelity,
            }
        )
        self.training_sums.zero_()
        row = epoch_metrics(self.history[-1])  # for callbacks that watch one, before they see the end of the epoch
        self.trainer.callback_metrics.update({name: torch.tensor(value) for name, value in row.items()})

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        sums = self._over_processes(self.training_sums)  # every process saves, though one alone writes
        checkpoint["ffebm"] = {"history": self.history, "training_sums": sums, "seconds": self.seconds}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.restoring = True
        kept = checkpoint["ffebm"]
        self.history, self.seconds = kept["history"], kept["seconds"]
        if self.trainer.is_global_zero:  # the sums of all processes: one goes on with them, the others start at 0
            self.training_sums = torch.tensor(kept["training_sums"], dtype=torch.float64)

    def blamed(self, error: BaseException) -> str:
        """A sentence that names the part of somebody's own which has raised this; nothing, where none has."""
        names = [("parts.callbacks", name) for name in self.settings.parts.callbacks]
        return blamed(error, self.settings.parts, list(zip(names, self.own_callbacks, strict=True)))

    def fail_together(self, failure: str) -> None:
        """Stop all processes if one cannot go on: all call this, and all raise what the first that failed says.

        Args:
            failure: why this process cannot go on; empty if it can.
        """
        if self.trainer.world_size > 1:
            failed = torch.tensor(int(failure != ""), device=self.device)  # words travel only where there are some
            torch.distributed.all_reduce(failed)
            if failed:
                failures = [""] * self.trainer.world_size
                torch.distributed.all_gather_object(failures, failure)
                failure = next(filter(None, failures))
        if failure:
            raise HealthError(failure)

    def _add(self, sums: Tensor, samples: int, losses: Tensor, *rest: Tensor) -> None:
        new = torch.stack([losses.detach().sum(), *rest]).cpu().double()  # in this order: some devices have no doubles
        sums[0] += samples
        sums[1:] += new

    def _over_processes(self, sums: Tensor) -> list[float]:
        if self.trainer.world_size == 1:
            return sums.tolist()
        copy = sums.to(self.device, copy=True)  # which is summed in place
        return self.trainer.strategy.reduce(copy, reduce_op="sum").tolist()

    def _lost(self) -> str:
        """Which block went wrong first, and what to try."""
        names = [block.label for _, block in self.model.chain]
        unsettled = [name for name, value in zip(names, self.residuals().tolist(), strict=True) if not value <= 1]
        where = f"; {unsettled[0]} has not settled" if unsettled else "; all blocks have settled, so look at the readout"
        rate = self.trainer.optimizers[0].param_groups[0]["lr"]
        return (
            f"The loss is not finite at step {self.global_step + 1}{where}. The learning rate is {rate:.3g}: try a lower "
            "optimiser.learning_rate, a lower model.variance, or optimiser.clip=1. No step was taken with it."
        )


def _check_steps_once(optimiser: Optimizer, name: str) -> None:
    """Refuse one that asks for the loss several times a step: sums over an epoch and random signs are of one pass."""
    parameters = inspect.signature(type(optimiser).step).parameters
    closure = parameters.get("closure")
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if not anything and (closure is None or closure.default is closure.empty):
        raise SettingsError(
            f"`parts.optimiser` names {brief_name(name)}, whose steps cannot be taken here: a {type(optimiser).__name__} asks "
            "for the loss of a batch as often as it likes, or for none. Training needs a `step(closure=None)` that asks once."
        )
