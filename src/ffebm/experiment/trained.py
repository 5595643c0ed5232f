"""The model of a run, as it was trained, ready to be used."""

from __future__ import annotations

import torch

from ffebm.experiment.architectures import build_model
from ffebm.experiment.data import Description
from ffebm.experiment.forecast import survey
from ffebm.experiment.run import Run
from ffebm.model import FFEBM


def load_trained(run: Run, data: Description | None = None) -> tuple[FFEBM, str]:
    """The model with the weights of a run, in evaluation mode, and the name of the file that they came from.

    It takes images as `run.description().normalise` makes them.

    Args:
        data: what it was trained on; by default as the run remembers it.
    """
    settings, data = run.settings(), data or run.description()
    survey(settings, data.shape, len(data.classes), training=False)
    model = build_model(settings, data.shape, len(data.classes))
    source = run.load_weights(model)
    return model.eval().to(memory_format=torch.channels_last), source  # pyright: ignore[reportCallIssue]
