"""How far the gradients of blocks on hardware are from those of ideal blocks, while a run goes on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from rich.console import Console
from rich.markup import escape

from ffebm.errors import DivergenceError
from ffebm.experiment.data import Batch
from ffebm.experiment.fidelity_log import FidelityLog
from ffebm.experiment.run import Run
from ffebm.experiment.training.calibrating import few_samples, on_its_own
from ffebm.experiment.training.learner import Learner
from ffebm.hardware import BlockFidelity, block_fidelities

__all__ = ["METERED", "FidelityMeter"]
__dir__ = __all__.copy

SAMPLES = 16  # training images that are looked at
EVERY = 200  # steps: a look takes as long as two or three
FAR = 0.5  # a smaller cosine hardly leads downhill
METERED: tuple[str, ...] = ("block_cosine", "block_ratio", "handed_cosine", "handed_ratio", "saturated", "unmoved")


class FidelityMeter(Callback):
    """Now and then holds every block against its ideal self, on a few images; the numbers go where all metrics go.

    The row of an epoch has those of the worst block. Each block's own are in the file `fidelity.csv`, and in the loggers. What
    was measured last is part of checkpoints, so that a run goes on to the same rows.
    """

    def __init__(self, run: Run, console: Console, every: int = EVERY) -> None:
        self.run = run
        self.console = console
        self.every = every
        self._last = dict.fromkeys(METERED, 0.0)
        self._warned = False

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int) -> None:
        assert isinstance(pl_module, Learner)
        due = trainer.global_step % self.every == 0 and batch_idx % trainer.accumulate_grad_batches == 0
        if due and trainer.is_global_zero:
            # Draws are those of the step, and are put back: the run is what it would be without a look.
            with torch.random.fork_rng([]):
                torch.manual_seed(trainer.global_step)
                try:
                    found = block_fidelities(on_its_own(pl_module.model).train(), *few_samples(pl_module, SAMPLES))
                except DivergenceError:  # of which the step itself will tell
                    return
            self._last = _worst(found)
            pl_module.fidelity = self._last
            self._keep(found, trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Learner)
        pl_module.fidelity = self._last  # of the run that is resumed

    def state_dict(self) -> dict[str, Any]:
        return {"last": self._last}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._last = state_dict["last"]

    def _keep(self, found: Sequence[BlockFidelity], trainer: Trainer) -> None:
        step = trainer.global_step
        FidelityLog(self.run.folder).add(step, found)
        for number, fidelity in enumerate(found, 1):
            values = {f"{name}/block {number}": value for name, value in asdict(fidelity).items() if name != "block"}
            for logger in trainer.loggers:
                logger.log_metrics({name: value for name, value in values.items() if math.isfinite(value)}, step)
        worst = min(found, key=lambda fidelity: _or(fidelity.cosine, 1.0))
        if worst.cosine < FAR and not self._warned:
            self._warned = True
            self.console.print(
                f"[yellow]Warning:[/] On this hardware the gradient of {escape(worst.block)} has a cosine of "
                f"{worst.cosine:.2f} with that of an ideal block. {escape(_advice(worst))}",
                highlight=False,
            )


def _worst(found: Sequence[BlockFidelity]) -> dict[str, float]:
    """Of all blocks, what a row of metrics has of each number."""
    farthest = lambda ratios: max(ratios, key=lambda ratio: abs(math.log(ratio)) if ratio > 0 else math.inf)  # noqa: E731
    return {
        "block_cosine": min(_or(f.cosine, 1.0) for f in found),
        "block_ratio": farthest([_or(f.ratio, 1.0) for f in found]),
        "handed_cosine": min(_or(f.handed_cosine, 1.0) for f in found),
        "handed_ratio": farthest([_or(f.handed_ratio, 1.0) for f in found]),
        "saturated": max(_or(f.saturated, 0.0) for f in found),
        "unmoved": max(_or(f.unmoved, 0.0) for f in found),
    }


def _or(value: float, instead: float) -> float:
    """A number that is one: where the ideal gradient vanishes, or there are no parameters, there is no cosine."""
    return value if math.isfinite(value) else instead


def _advice(worst: BlockFidelity) -> str:
    if worst.unmoved > 0.5:
        return (
            f"Of its read-outs {100 * worst.unmoved:.0f} % do not move by a step of their converter. Try "
            "gradient.automatic_beta=true or a larger gradient.beta, hardware.rounding=stochastic, or more hardware.adc_bits."
        )
    if worst.saturated > 0.1:
        return f"Of its read-outs {100 * worst.saturated:.0f} % are at the end of their range. Try a larger hardware.adc_range."
    return "Try gradient.automatic_beta=true, or less noise."
