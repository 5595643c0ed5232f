"""The model of a run, as it was trained, ready to be used."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ffebm.experiment.architectures import build_model
from ffebm.experiment.forecast import survey
from ffebm.experiment.run import Run
from ffebm.model import FFEBM


def load_trained(run: Run, shape: Sequence[int] | None = None, classes: int | None = None) -> tuple[FFEBM, str]:
    """The model with the weights of a run, in evaluation mode, and the name of the file that they came from.

    It takes images as `run.description().normalise` makes them.

    Args:
        shape: of an image; by default that of the data that the run was trained on, and so with its classes.
    """
    settings = run.settings()
    if shape is None or classes is None:
        known = run.description()
        shape, classes = known.shape, len(known.classes)
    survey(settings, shape, classes, training=False)
    model = build_model(settings, shape, classes)
    source = run.load_weights(model)
    return model.eval().to(memory_format=torch.channels_last), source  # pyright: ignore[reportCallIssue]
