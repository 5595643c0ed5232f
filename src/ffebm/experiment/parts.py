"""Parts of one's own that settings name as `module:name`: imported only where somebody has said that they may be."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from ffebm.checks import brief_name
from ffebm.experiment.faults import PartError, faults_of
from ffebm.experiment.settings import SettingsError
from ffebm.experiment.settings.sections import Parts

__all__ = ["check_parts", "made", "part", "trust"]
__dir__ = __all__.copy

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
    here = _look_here()
    try:
        with faults_of(key, name):
            found: Any = import_module(module)
    except PartError as error:
        missing = error.__cause__
        if not isinstance(missing, ModuleNotFoundError) or not f"{module}.".startswith(f"{missing.name}."):
            raise
        raise PartError(
            f"{said}, but there is no module {missing.name}: it is looked for in {here}, and among what is installed."
        ) from missing
    for step in path.split("."):
        if not hasattr(found, step):
            raise SettingsError(f"{said}, but {module} has no {step}.")
        found = getattr(found, step)
    return found


def _look_here() -> str:
    """Find modules where we are, as `python -m` does, from now on: parts import what they need when they need it."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    return here


def check_parts(parts: Parts) -> None:
    """Look for everything that settings name, before anything is begun."""
    for key, name in parts.named():
        part(parts, key, name)


def made(parts: Parts, key: str, name: str, kind: type, *arguments: Any) -> Any:
    """The object that a setting names, or what that returns for these arguments; it must be of a kind."""
    found = part(parts, key, name)
    if callable(found) and not isinstance(found, kind):
        taken = _taken(found, arguments)
        if taken is None:
            raise SettingsError(
                f"`{key}` names {brief_name(name)}, which cannot be called with {len(arguments)} "
                f"argument{'s' if len(arguments) > 1 else ''}: it takes {brief_name(str(inspect.signature(found)))}."
            )
        with faults_of(key, name):
            found = found(*taken)
    if not isinstance(found, kind):
        raise SettingsError(f"`{key}` names {brief_name(name)}, which is a {type(found).__name__} and no {kind.__name__}.")
    return found


def _taken(found: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The arguments, or none: many a class of Lightning's needs none, and would take settings for something else.

    None where it can be called with neither.
    """
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):  # what is not written in Python need not say what it takes
        return arguments
    alone, together = _fits(signature, ()), _fits(signature, arguments)
    if alone and (inspect.isclass(found) or not together):
        return ()
    return arguments if together else None


def _fits(signature: inspect.Signature, arguments: tuple[Any, ...]) -> bool:
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True
