"""Parts of one's own that settings name as `module:name`: imported only where somebody has said that they may be."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from ffebm.checks import brief_name
from ffebm.experiment.settings import SettingsError
from ffebm.experiment.settings.sections import Parts

_said: bool | None = None  # by a command line, which has the say where there is one


def trust(yes: bool | None) -> None:
    """Say whether settings may name code that is then run; None leaves it to where each is from."""
    global _said
    _said = yes


def part(parts: Parts, key: str, name: str) -> Any:
    """The object that a setting names.

    Args:
        parts: where it is named, which know whether they are trusted.
        key: of the setting, for errors.
    """
    said = f"`{key}` names {brief_name(name)}"
    if not (parts.trusted if _said is None else _said):
        how = "open the run with trust=True, for example `ffebm.load(folder, trust=True)`"
        how = how if _said is None else "add --trust to the command"
        raise SettingsError(f"{said}, code that would be run. If you know who wrote it and these settings, {how}.")
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
    for key, name in parts.named():
        part(parts, f"parts.{key}", name)


def made(parts: Parts, key: str, name: str, kind: type, *arguments: Any) -> Any:
    """The object that a setting names, or what that returns for these arguments; it must be of a kind."""
    found = part(parts, key, name)
    if callable(found) and not isinstance(found, kind):
        found = found(*arguments)
    if not isinstance(found, kind):
        raise SettingsError(f"`{key}` names {brief_name(name)}, which is a {type(found).__name__} and no {kind.__name__}.")
    return found
