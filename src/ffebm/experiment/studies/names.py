"""The studies that come with the package."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

__all__ = ["READY", "study_names"]
__dir__ = __all__.copy

READY = Path(str(resources.files("ffebm.experiment") / "studies" / "ready"))


def study_names() -> list[str]:
    return sorted(path.stem for path in READY.glob("*.toml"))
