"""Mistakes that a person can mend: the command line shows their message, not a traceback."""

from __future__ import annotations

__all__ = ["DataError", "Remark", "RunError", "UserError"]
__dir__ = __all__.copy


class Remark(UserWarning):
    """Something that a person should know; the command line shows it as a line."""


class UserError(Exception):
    """Something outside the program is wrong; the message says what, and what to do about it."""


class DataError(UserError):
    """Files that are missing, damaged or not what their name says."""


class RunError(UserError):
    """A run folder that cannot be used as asked."""
