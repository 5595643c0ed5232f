"""Refusals of names and numbers that no circuit can have."""

from __future__ import annotations

import math
import re

from ffebm.checks import brief

__all__ = ["check_comment", "check_finite", "check_name", "check_positive"]
__dir__ = __all__.copy

_NAME = re.compile("[a-z][a-z0-9_]{0,39}")  # SPICE takes small and capital letters for the same


def check_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{what} cannot be called {brief(name)}: a netlist takes small letters, digits and underscores, 40 at most, and a "
            "letter first."
        )


def check_comment(words: str) -> None:
    if not words.isprintable():
        raise ValueError(f"A comment is one line of text, got {brief(words)}: in a netlist, a new line would be a new part.")


def check_positive(owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"`{name}` of a {type(owner).__name__} must be positive, got {value!r}.")


def check_finite(owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if not math.isfinite(value):
            raise ValueError(f"`{name}` of a {type(owner).__name__} must be a finite number, got {value!r}.")
