"""What a scale changes in a row of a table: TOML files, one for each, of nothing but what differs from the row's preset."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from ffebm.experiment.settings.reading import read_toml

FOLDER = Path(str(resources.files("ffebm.experiment") / "recipes"))


def read_recipe(scale: str, row: str) -> tuple[str, ...]:
    """Its settings as `ffebm train` takes them: `section.key=value`."""
    return tuple(f"{key}={_text(value)}" for key, value in _settings(read_toml(FOLDER / scale / f"{row}.toml")))


def _settings(table: Mapping[str, Any], section: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _settings(value, f"{section}{name}.")
        else:
            yield f"{section}{name}", value


def _text(value: Any) -> str:
    """Bare words, as people type them; numbers, lists, true and false, which TOML writes like JSON."""
    return value if isinstance(value, str) else json.dumps(value)
