"""Where the numbers of a run are logged: TensorBoard, and what else settings name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from ffebm.experiment.parts import made
from ffebm.experiment.settings import SettingsError
from ffebm.experiment.settings.sections import Parts

__all__ = ["loggers"]
__dir__ = __all__.copy

PROJECT = "ffebm"

KNOWN: dict[str, Callable[[Path], Logger]] = {
    "csv": lambda folder: CSVLogger(folder, "csv", ""),
    "wandb": lambda folder: WandbLogger(name=folder.name, save_dir=folder, project=PROJECT),
    "mlflow": lambda folder: MLFlowLogger(PROJECT, folder.name, tracking_uri=(folder / "mlruns").absolute().as_uri()),
}


def loggers(parts: Parts, folder: Path, step: int | None) -> list[Any]:
    """TensorBoard, which forgets what came after `step`, and the one that settings name."""
    tensorboard = TensorBoardLogger(folder, "tensorboard", "", purge_step=step)
    name = parts.logger
    if name is None:
        return [tensorboard]
    if name not in KNOWN:
        return [tensorboard, made(parts, "parts.logger", name, Logger, folder)]
    try:
        return [tensorboard, KNOWN[name](folder)]
    except ImportError:
        raise SettingsError(f"`parts.logger` is {name}, which is not installed: `pip install {name}`.") from None
