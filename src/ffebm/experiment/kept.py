"""What is kept of a finished run: its numbers, and its weights in half precision."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ffebm.experiment.files import read_regular, write_atomically
from ffebm.experiment.run import LARGEST, Run
from ffebm.experiment.sealed import seal

__all__ = ["NUMBERS", "keep"]
__dir__ = __all__.copy

NUMBERS = ("metrics.csv", "environment.json", "data.json", "final.json")  # besides settings and weights
SMALL = 1000  # numbers; a tensor of fewer, as the statistics of a batch-norm, stays as it is


def keep(run: Run, folder: Path, *, weights: bool = True) -> Run:
    """Put a run into another folder without what only going on would need: half a megabyte in place of dozens.

    The settings come last, which make a folder a run, and without the place where the data lay.
    """
    kept = Run(folder, trust=run.trust)
    for name in NUMBERS:
        if (run.folder / name).is_file():
            write_atomically(folder / name, read_regular(run.folder / name, LARGEST))
    if weights:
        write_atomically(kept.weights_file, seal({name: _halved(tensor) for name, tensor in run.weights()[0].items()}))
    settings = run.settings()
    settings.model_copy(update={"data": settings.data.model_copy(update={"root": None})}).save(kept.settings_file)
    return kept


def _halved(tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point() or tensor.numel() < SMALL or tensor.abs().max() > torch.finfo(torch.float16).max:
        return tensor
    return tensor.half()
