"""Whether the gradient that a run begins with is the one it should be."""

from __future__ import annotations

from dataclasses import asdict

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from rich.console import Console
from rich.markup import escape

from ffebm.diagnostics import Fidelity, fidelity
from ffebm.experiment.data import Batch
from ffebm.experiment.files import write_json
from ffebm.experiment.run import Run
from ffebm.experiment.training.calibrating import few_samples, on_its_own
from ffebm.experiment.training.learner import HealthError, Learner

__all__ = ["SAMPLES", "GradientCheck"]
__dir__ = __all__.copy

SAMPLES = 8  # training images that are looked at
FAR = 0.9  # a smaller cosine hardly leads downhill


class GradientCheck(Callback):
    """Before the first step of a run, holds its gradient against recurrent backprop at equilibrium; warns where it is far off.

    A nudge that rounding drowns, or that saturates all units, trains without a word and learns nothing. The look is in the
    precision of the blocks, without autocast.
    """

    def __init__(self, console: Console, run: Run, quiet: bool = False) -> None:
        self.console = console
        self.run = run
        self.quiet = quiet

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int) -> None:
        assert isinstance(pl_module, Learner)
        if trainer.global_step == 0 and batch_idx == 0:
            x, y = few_samples(pl_module, SAMPLES)
            try:
                found = fidelity(on_its_own(pl_module.model).train(), x, y)
            except ValueError as error:  # which names the block
                raise HealthError(f"{pl_module.blamed(error) or error} This was before the first step.") from None
            write_json(self.run.gradient_file, {**asdict(found), "images": len(y)})
            if found.cosine < FAR or not self.quiet:
                self.console.print(_sentence(found, len(y)), highlight=False)


def _sentence(found: Fidelity, images: int) -> str:
    where = f" ({escape(found.parameter)})" if found.parameter else ""
    measured = (
        f"the smallest cosine of a parameter's first gradient with recurrent backprop's at equilibrium is "
        f"{found.cosine:.4f}{where}, on {images} images."
    )
    if not found.settled:
        measured += " Some blocks do not settle, and have no true gradient."
    elif found.unsettled is not None:
        measured += (
            # Without a space, at which a terminal would break the line.
            f" Free phases end within {100 * found.unsettled:.2g}% of equilibrium, by the certificates of their blocks."
        )
    if found.cosine >= FAR:
        return f"Gradient check: {measured}"
    return (
        f"[yellow]Warning:[/] {measured} A run hardly learns from that. Look at gradient.beta first (0.001 to 0.2 suits most "
        "nets, less where the readout is large), then at gradient.steps and relaxation.steps, then at model.variance."
    )
