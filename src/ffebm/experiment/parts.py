"""Parts of one's own that settings name as `module:name`: imported only where the user has said that they may be."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from ffebm.checks import brief_name
from ffebm.experiment.settings import SettingsError
from ffebm.experiment.settings.sections import Parts

_trusted = True  # a program that calls this library runs code of its own anyway


def trust(yes: bool) -> None:
    """Say whether settings may name code that is then run."""
    global _trusted
    _trusted = yes


def part(key: str, name: str) -> Any:
    """The object that a setting names.

    Args:
        key: of the setting, for errors.
    """
    said = f"`{key}` names {brief_name(name)}"
    if not _trusted:
        raise SettingsError(
            f"{said}, code that would be run. If you know who wrote it and these settings, add --trust to the command."
        )
    module, _, path = name.partition(":")
    here = str(Path.cwd())
    added = here not in sys.path and "" not in sys.path
    if added:
        sys.path.insert(0, here)  # as `python -m` does
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"{said}, but there is no module {error.name}: it is looked for in {here}, and among what is installed."
        ) from error
    finally:
        if added:
            sys.path.remove(here)
    for step in path.split("."):
        if not hasattr(found, step):
            raise SettingsError(f"{said}, but {module} has no {step}.")
        found = getattr(found, step)
    return found


def check_parts(parts: Parts) -> None:
    """Look for everything that settings name, before anything is begun."""
    for key in type(parts).model_fields:
        value = getattr(parts, key)
        for name in value if isinstance(value, list) else [value]:
            if name is not None and ":" in name:
                part(f"parts.{key}", name)


def made(key: str, name: str, kind: type, *arguments: Any) -> Any:
    """The object that a setting names, or what that returns for these arguments; it must be of a kind."""
    found = part(key, name)
    if callable(found) and not isinstance(found, kind):
        found = found(*arguments)
    if not isinstance(found, kind):
        raise SettingsError(f"`{key}` names {brief_name(name)}, which is a {type(found).__name__} and no {kind.__name__}.")
    return found
