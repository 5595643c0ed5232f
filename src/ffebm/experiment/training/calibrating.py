"""As many sweeps as a good gradient needs, found anew as weights change."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import asdict
from types import MethodType
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from rich.console import Console
from rich.markup import escape
from torch import Tensor, nn

from ffebm.calibration import Calibration, Tuning, calibrate, tune
from ffebm.errors import DivergenceError
from ffebm.experiment.data import Batch
from ffebm.experiment.training.learner import Learner
from ffebm.gradient import GradientEstimator
from ffebm.model import FFEBM
from ffebm.relaxation import Relaxation

__all__ = ["SAMPLES", "Calibrating", "calibrations_of", "few_samples", "next_calibration", "on_its_own"]
__dir__ = __all__.copy

SAMPLES = 32  # training images that calibration looks at
SOONEST, LATEST = 100, 1000  # steps between two calibrations: weights change fastest in the beginning


class Calibrating(Callback):
    """Calibrates every so often while weights change; tests relax until settled, so that their results can be had again.

    The first process calibrates for all. What it chose is part of checkpoints: a run goes on with the sweeps it had.
    """

    def __init__(self, console: Console, quality: float) -> None:
        self.console = console
        self.quality = quality
        self._due = 0  # the step before which to calibrate
        self._chosen: list[Tuning] = []
        self._given: list[tuple[Relaxation, GradientEstimator]] = []
        self._warned = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        assert isinstance(pl_module, Learner)
        self._given = [(block.relax, block.estimator) for _, block in pl_module.model.chain]

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int) -> None:
        assert isinstance(pl_module, Learner)
        step = trainer.global_step
        if step >= self._due:
            self._give_back(pl_module.model)
            self._chosen = self._calibrated(trainer, pl_module)
            self._due = next_calibration(step)
            self._give(pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Learner)
        if self._chosen:  # by the run that is resumed
            self._give(pl_module)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Learner)
        self._give_back(pl_module.model)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Learner)
        self._give(pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Learner)
        self._give_back(pl_module.model)

    def state_dict(self) -> dict[str, Any]:
        return {"due": self._due, "tunings": [asdict(tuning) for tuning in self._chosen]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._due = state_dict["due"]
        self._chosen = [Tuning(**tuning) for tuning in state_dict["tunings"]]

    def _calibrated(self, trainer: Trainer, learner: Learner) -> list[Tuning]:
        found: Calibration | None = None
        failure = ""
        if trainer.is_global_zero:
            try:
                found = calibrate(on_its_own(learner.model).train(), *few_samples(learner, SAMPLES), self.quality)
            except (DivergenceError, ValueError) as error:  # which name the block
                failure = f"{learner.blamed(error) or error} This was after step {trainer.global_step}."
        learner.fail_together(failure)
        if found is not None and not found.reached and not self._warned:
            self._warned = True
            self.console.print(f"[yellow]Warning:[/] {escape(_short_of(found, learner.model, self.quality))}", highlight=False)
        tunings: Any = None if found is None else found.tunings
        return list(trainer.strategy.broadcast(tunings))

    def _give(self, learner: Learner) -> None:
        tune(learner.model, self._chosen)
        free, nudged = ([getattr(tuning, phase) for tuning in self._chosen] for phase in ("free", "nudged"))
        learner.sweeps = {"free_sweeps": sum(free) / len(free), "nudged_sweeps": sum(nudged) / len(nudged)}

    def _give_back(self, model: FFEBM) -> None:
        for (_, block), (relax, estimator) in zip(model.chain, self._given, strict=True):
            block.relax, block.estimator = relax, estimator


def next_calibration(step: int) -> int:
    """The step before which to calibrate again, after having done so before this one."""
    return step + min(max(step, SOONEST), LATEST)


def calibrations_of(steps: int) -> int:
    """How often a run of so many steps calibrates."""
    count, due = 0, 0
    while due < steps:
        count, due = count + 1, next_calibration(due)
    return count


def few_samples(learner: Learner, count: int) -> tuple[Tensor, Tensor]:
    """Images from all over the training set, as the model takes them."""
    x, y = learner.dataset.few(count)
    return x.to(learner.device, next(learner.model.parameters()).dtype), y.to(learner.device)


def on_its_own(model: FFEBM) -> FFEBM:
    """A copy whose batch-norms ask no other process."""
    model = deepcopy(model)
    for module in model.modules():
        if isinstance(module, nn.SyncBatchNorm):
            module.forward = MethodType(nn.modules.batchnorm._BatchNorm.forward, module)
    return model


def _short_of(found: Calibration, model: FFEBM, quality: float) -> str:
    contraction, slowest = max(
        (contraction, block.label) for contraction, (_, block) in zip(found.contractions, model.chain, strict=True)
    )
    return (
        f"All sweeps that the settings allow make a gradient with a cosine of {found.cosine:.3f} to that of settled phases; "
        f"{quality:g} is asked for. Slowest is {slowest}, where a sweep leaves {100 * contraction:.0f} % of the way. Try more "
        "relaxation.steps and gradient.steps, a lower optimiser.learning_rate, a smaller model.variance, or average pooling."
    )
