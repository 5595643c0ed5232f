"""The way from a run folder to a model, for those who have the tool installed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ffebm.errors import needs_tool

if TYPE_CHECKING:
    from ffebm.experiment.classifier import Classifier

__all__ = ["load"]
__dir__ = __all__.copy


def load(folder: str | Path, *, trust: bool = False) -> Classifier:
    """The trained model of a run, in evaluation mode, ready to predict: `ffebm.load("runs/mine").predict("cat.png").labels`.

    Args:
        folder: a run, as `ffebm train` makes it, what `save_pretrained` wrote, or the name of a model that `ffebm zoo` lists. A
            run of that name in the working directory comes first.
        trust: whether code may be run that its settings name, under `[parts]`. Without that, nothing in a folder is executed.
    """
    try:
        from ffebm.experiment.classifier import Classifier
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(needs_tool("`ffebm.load`", error), name=error.name) from None
    return Classifier.from_pretrained(folder, trust=trust)
