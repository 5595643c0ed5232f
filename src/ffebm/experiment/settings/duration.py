"""Long times, in words."""

from __future__ import annotations

__all__ = ["in_words"]
__dir__ = __all__.copy

UNITS = (
    (1, "second"),
    (60, "minute"),
    (3600, "hour"),
    (86_400, "day"),
    (31_557_600, "year"),
    (31_557_600 * 10**6, "million year"),
    (31_557_600 * 10**9, "billion year"),
)
AGE = 14 * 31_557_600 * 10**9  # of the universe, in seconds


def in_words(seconds: float) -> str:
    """About how long that is; `seconds` may be a whole number of any size.

    >>> in_words(100), in_words(10**17)
    ('2 minutes', '3 billion years')
    """
    if seconds > 1000 * AGE:
        return "a thousand times as long as there has been a universe, or longer"
    size, name = max((unit for unit in UNITS if unit[0] <= seconds), default=UNITS[0])
    count = max(1, round(seconds / size))
    return f"{count} {name}{'s' if count > 1 else ''}"
