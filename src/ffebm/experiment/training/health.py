"""Blocks that have stopped learning, and gradients that are no numbers: found, and named."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from rich.console import Console
from rich.markup import escape
from torch import Tensor, nn
from torch.optim import Optimizer

from ffebm.block import EnergyBlock
from ffebm.errors import DivergenceError
from ffebm.experiment.data import Batch
from ffebm.experiment.training.learner import HealthError, Learner
from ffebm.model import FFEBM

__all__ = ["Finding", "Health", "drowned", "frozen", "frozen_shares", "not_finite", "several", "unsettled", "without_error"]
__dir__ = __all__.copy

SAMPLES = 16  # of a batch that the look into the blocks takes
FROZEN = 0.99  # a layer with a larger share of units that cannot move passes hardly any error on
UNSETTLED = 0.1  # units move between 0 and 1


class Finding(NamedTuple):
    """Something wrong with a block."""

    block: str
    kind: str
    message: str


class Health(Callback):
    """Stops at gradients that are not finite; warns, once for each block and reason, of blocks that cannot learn.

    Args:
        settling: whether blocks are meant to settle in training; calibrated ones stop earlier.
    """

    def __init__(self, console: Console, every: int = 100, *, settling: bool = True) -> None:
        self.console = console
        self.settling = settling
        self.every = every
        self.found: list[Finding] = []

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        assert isinstance(pl_module, Learner)
        total = torch.stack([p.grad.square().sum() for p in pl_module.parameters() if p.grad is not None]).sum()
        if not bool(total.isfinite()):
            # Gradients are averaged over processes: all find the same.
            raise HealthError(not_finite(pl_module.model, trainer.global_step + 1))
        if trainer.global_step % self.every == 0 and trainer.is_global_zero:
            self._report(without_error(pl_module.model))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, Learner)
        if (trainer.global_step - 1) % self.every == 0 and trainer.is_global_zero:
            try:
                moving = unsettled(pl_module.model) if self.settling else []
                few = batch.x[:SAMPLES]
                self._report(moving + drowned(pl_module.model) + frozen(pl_module.model, few) + several(pl_module.model, few))
            except (DivergenceError, ValueError) as error:
                raise HealthError(f"{error} This was after step {trainer.global_step}.") from None

    def _report(self, findings: list[Finding]) -> None:
        known = {(finding.block, finding.kind) for finding in self.found}
        for finding in findings:
            if (finding.block, finding.kind) not in known:
                self.console.print(f"[yellow]Warning:[/] {escape(finding.message)}", highlight=False)
                self.found.append(finding)


def not_finite(model: FFEBM, step: int) -> str:
    """The part that comes last: what is not finite there makes everything before it so."""
    parts: list[tuple[str, nn.Module]] = [("the readout", model.readout)]
    for stage, block in reversed(model.chain):
        parts += [(block.label, block), (f"the stage before {block.label}", stage)]
    broken = [name for name, part in parts if not all(_finite(p.grad) for p in part.parameters() if p.grad is not None)]
    return (
        f"The gradient of {broken[0] if broken else 'the model'} is not finite at step {step}. "
        "Try a lower optimiser.learning_rate, optimiser.clip=1, or precision 32-true. No step was taken with it."
    )


def without_error(model: FFEBM) -> list[Finding]:
    """Blocks at whose input the gradient is zero: nothing below them learns."""
    message = (
        "passes no error signal on: all gradients of the stage before it are zero. Its units are saturated, or get none from "
        "above. Try a lower optimiser.learning_rate, a smaller model.variance, or model.clamped_outputs=[]."
    )
    return [_finding(block, "no error", message) for stage, block in model.chain if _all_zero(stage)]


def unsettled(model: FFEBM) -> list[Finding]:
    """Blocks that were still moving after their last sweep, by the mean over the last batch."""
    assume = [block for _, block in model.chain if block.expects_rest]
    moves = [(block, float(block.residual.mean())) for block in assume if block.residual is not None]
    message = (
        "does not settle: units still move by {:.2g} in the last of {} sweeps, so its gradient is not one of an equilibrium. "
        "Try more relaxation.steps, a lower optimiser.learning_rate, a smaller model.variance, or average pooling."
    )
    return [_finding(block, "unsettled", message.format(by, block.relax.steps)) for block, by in moves if by > UNSETTLED]


def drowned(model: FFEBM) -> list[Finding]:
    """Blocks whose batch-norm hands them less than it should: its input varies less than what it adds to every variance."""
    message = (
        "gets a faint signal: the inputs of its batch-norm have a variance of {:.1g}, less than the {:g} that is added before "
        "dividing by it. Blocks of many layers hand on little. Try model.start=0.5."
    )
    findings: list[Finding] = []
    for stage, block in model.chain:
        for norm in stage.modules():
            # The mean over past batches: it starts at 1, so that a faint one shows after some two hundred steps.
            if isinstance(norm, nn.modules.batchnorm._BatchNorm) and norm.running_var is not None:
                variance = norm.running_var.median().item()
                if variance < norm.eps:
                    findings.append(_finding(block, "faint", message.format(variance, norm.eps)))
    return findings


def _finding(block: EnergyBlock, kind: str, message: str) -> Finding:
    return Finding(block.label, kind, f"{block.label} {message}")


@torch.no_grad()
def frozen(model: FFEBM, x: Tensor) -> list[Finding]:
    """Layers in which hardly a unit can move, up or down: its activation is flat there, and stops the error."""
    findings: list[Finding] = []
    training = model.training
    model.eval()  # batch-norm must not count these samples again
    for _, _, block, _, drive, (state, *_) in model.walk(x):
        for layer, share in enumerate(frozen_shares(block.energy, state, drive), 1):
            if share > FROZEN:
                findings.append(
                    Finding(
                        block.label,
                        f"frozen {layer}",
                        f"Layer {layer} of {block.label} is saturated: {100 * share:.1f} % of its units cannot move; "
                        "the error does not get past them. Try a lower optimiser.learning_rate or a smaller model.slope.",
                    )
                )
    model.train(training)
    return findings


@torch.no_grad()
def several(model: FFEBM, x: Tensor) -> list[Finding]:
    """Blocks with more than one equilibrium: some samples end elsewhere from another start.

    A limit rules that out, and backprop through sweeps needs none.
    """
    message = (
        "has more than one equilibrium: {} of {} samples end elsewhere when relaxation starts from the top. Outputs jump "
        "as inputs and weights change. Try model.max_contraction=0.5."
    )
    training = model.training
    model.eval()  # batch-norm must not count these samples again
    assume = [block for _, block in model.chain if block.limit is None and block.estimator.assumes_equilibrium]
    visits = [visit for visit in model.walk(x) if visit.block in assume] if assume else []
    model.train(training)
    found = [(visit.block, *visit.block.ambiguous(visit.x)) for visit in visits]
    return [_finding(block, "several", message.format(apart, seen)) for block, apart, seen in found if apart]


def frozen_shares(energy: Any, state: tuple[Tensor, ...], x: Tensor, nudge: float = 1e-3) -> list[float]:
    """The share of units in every layer whose activation is flat where they are."""
    shares: list[float] = []
    for layer, activation in enumerate(energy.activations):
        v = energy.drive(state, x, layer)
        shares.append((activation.sigma(v + nudge) == activation.sigma(v - nudge)).float().mean().item())
    return shares


def _all_zero(module: nn.Module) -> bool:
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    return bool(gradients) and not any(bool(gradient.any()) for gradient in gradients)


def _finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())
