"""What a scale changes in the rows of a table: a TOML file for all of them, or one for each of what differs from its preset."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from ffebm.experiment.settings.overrides import as_overrides
from ffebm.experiment.settings.reading import read_toml

__all__ = ["FOLDER", "read_recipe"]
__dir__ = __all__.copy

FOLDER = Path(str(resources.files("ffebm.experiment") / "recipes"))


def read_recipe(scale: str, row: str) -> tuple[str, ...]:
    """Its settings as `ffebm train` takes them: `section.key=value`."""
    for_all = FOLDER / f"{scale}.toml"
    path = for_all if for_all.is_file() else FOLDER / scale / f"{row}.toml"
    return tuple(as_overrides(read_toml(path)))
