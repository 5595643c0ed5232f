"""Settings of a TOML table as the command line takes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ffebm.checks import brief
from ffebm.experiment.settings.reading import SettingsError

__all__ = ["as_overrides", "written"]
__dir__ = __all__.copy


def as_overrides(table: Mapping[str, Any], section: str = "") -> Iterator[str]:
    """Each setting as `section.key=value`, however deep."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from as_overrides(value, f"{section}{name}.")
        else:
            yield f"{section}{name}={written(value)}"


def written(value: Any) -> str:
    """Bare words, as people type them; numbers, lists, true and false, which TOML writes like JSON; nothing else."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError):  # a date, or a number with thousands of digits
        raise SettingsError(f"A setting cannot be {brief(value)}: it is a text, a number, true or false, or a list.") from None
