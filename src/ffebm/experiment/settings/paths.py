"""Folders as people name them: with ~, from anywhere, or by an environment variable."""

from __future__ import annotations

import os
from pathlib import Path

from ffebm.checks import brief_name
from ffebm.experiment.errors import UserError

__all__ = ["absolute", "check_writable", "expanded", "folder_in_environment"]
__dir__ = __all__.copy


def absolute(path: Path) -> Path:
    """The same folder, from wherever it is looked for."""
    return expanded(path).absolute()


def expanded(path: Path) -> Path:
    """With a home folder instead of ~; a ValueError where no file can have this name."""
    name = os.fspath(path)
    if "\0" in name:
        raise ValueError("a path cannot hold the character of code 0")
    check_writable(name)
    try:
        return path.expanduser()
    except RuntimeError:  # pathlib knows no such user
        raise ValueError(f"there is no home folder {brief_name(path.parts[0])}; name the folder in full") from None


def check_writable(text: str) -> None:
    """Refuse text that no file of ours can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("it cannot be written as UTF-8, which settings and reports are saved in; take another name") from None


def folder_in_environment() -> Path | None:
    """What the environment variable FFEBM_DATA names."""
    named = os.environ.get("FFEBM_DATA")
    try:
        return absolute(Path(named)) if named else None
    except ValueError as error:
        raise UserError(f"The environment variable FFEBM_DATA is {brief_name(named or '')}: {error}.") from None
