"""Refusals of impossible hardware."""

from __future__ import annotations

import math

from ffebm.checks import brief

__all__ = ["check_between", "check_not_negative", "check_positive"]
__dir__ = __all__.copy


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_not_negative(name: str, value: object, what: str) -> None:
    """Refuse what is no size; `what` says of what it is one."""
    if not _is_number(value) or value < 0:  # pyright: ignore[reportOperatorIssue]
        raise ValueError(f"`{name}` must be 0 or more, got {brief(value)}: it is {what}. Use 0 for none.")


def check_positive(name: str, value: object, what: str) -> None:
    if not _is_number(value) or value <= 0:  # pyright: ignore[reportOperatorIssue]
        raise ValueError(f"`{name}` must be positive, got {brief(value)}: it is {what}.")


def check_between(name: str, value: object, low: float, high: float, what: str) -> None:
    if not _is_number(value) or not low <= value <= high:  # pyright: ignore[reportOperatorIssue]
        raise ValueError(f"`{name}` must lie between {low:g} and {high:g}, got {brief(value)}: it is {what}.")
