"""Data and networks of the paper's experiments, built on the library; the library never imports this.

From Python: `train`, `resume`, `evaluate_run`, `read_preset` and `Run`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ffebm.errors import needs_tool

_PLACES = {  # loaded when they are asked for: training loads Lightning
    "Run": "ffebm.experiment.run",
    "Settings": "ffebm.experiment.settings",
    "evaluate_run": "ffebm.experiment.evaluation",
    "read_preset": "ffebm.experiment.preset",
    "resume": "ffebm.experiment.training",
    "train": "ffebm.experiment.training",
}
__all__ = sorted(_PLACES)  # pyright: ignore[reportUnsupportedDunderAll]
__dir__ = __all__.copy


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_PLACES[name]), name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(needs_tool(f"`ffebm.experiment.{name}`", error), name=error.name) from None
