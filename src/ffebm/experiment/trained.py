"""The model of a run, as it was trained, ready to be used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ffebm.errors import DivergenceError
from ffebm.experiment.data import Description
from ffebm.experiment.forecast import sketch
from ffebm.experiment.run import Run, RunError
from ffebm.model import FFEBM

__all__ = ["finite", "load_relaxing", "load_trained", "usable"]
__dir__ = __all__.copy


def load_trained(run: Run, data: Description | None = None) -> tuple[FFEBM, str]:
    """The model with the weights of a run, in evaluation mode and single precision, and the file that they came from.

    It takes images as `run.description().normalise` makes them.

    Args:
        data: what it was trained on; by default as the run remembers it.
    """
    settings, data = run.settings(), data or run.description()
    model = sketch(settings, data.shape, len(data.classes))  # no room is made for what a few bytes of settings announce
    weights, source = run.weights()
    run.check_fit(weights, source, model)
    model.load_state_dict(weights, assign=True)
    return model.eval().to(memory_format=torch.channels_last), source.name  # pyright: ignore[reportCallIssue]


def load_relaxing(run: Run, data: Description | None = None) -> FFEBM:
    """The same, of a run whose blocks relax."""
    if not run.settings().relaxes:
        raise RunError(
            f"{run.folder} was trained by plain backprop: its blocks do not relax, so there is nothing to see of energies and "
            "equilibria. Name a run by another gradient."
        )
    return load_trained(run, data)[0]


@contextmanager
def usable(run: Run) -> Iterator[None]:
    """Weights may be finite, and yet no block relaxes with them, or no number holds what comes out."""
    try:
        yield
    except (DivergenceError, ValueError, ArithmeticError) as error:
        raise RunError(f"The weights of {run.folder} are of no use: {error}") from None


def finite(logits: Tensor) -> Tensor:
    if not bool(logits.isfinite().all()):
        raise ArithmeticError("what the model says is not finite.")
    return logits
