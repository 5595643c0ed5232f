"""Durations, as people read them."""

__all__ = ["clock"]
__dir__ = __all__.copy


def clock(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> clock(3671)
    '1:01:11'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
