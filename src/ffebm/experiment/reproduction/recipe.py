"""What a scale changes in the rows of a table: a TOML file for all of them, or one for each of what differs from its preset."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from ffebm.experiment.settings.reading import read_toml

__all__ = ["FOLDER", "read_recipe"]
__dir__ = __all__.copy

FOLDER = Path(str(resources.files("ffebm.experiment") / "recipes"))


def read_recipe(scale: str, row: str) -> tuple[str, ...]:
    """Its settings as `ffebm train` takes them: `section.key=value`."""
    for_all = FOLDER / f"{scale}.toml"
    path = for_all if for_all.is_file() else FOLDER / scale / f"{row}.toml"
    return tuple(f"{key}={_text(value)}" for key, value in _settings(read_toml(path)))


def _settings(table: Mapping[str, Any], section: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _settings(value, f"{section}{name}.")
        else:
            yield f"{section}{name}", value


def _text(value: Any) -> str:
    """Bare words, as people type them; numbers, lists, true and false, which TOML writes like JSON."""
    return value if isinstance(value, str) else json.dumps(value)
