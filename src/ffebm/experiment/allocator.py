"""Memory that one step frees is kept for the next."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["keep_freed_memory"]
__dir__ = __all__.copy

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # glibc's names for them: malloc.h
LARGEST = 2**31 - 1


def keep_freed_memory() -> None:
    """Have glibc keep what tensors free instead of giving it back to the system; other systems are left as they are.

    Getting it back page by page has taken half of the time of a training step, on a virtual machine whose host reclaims memory.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, LARGEST)
        mallopt(TRIM_THRESHOLD, LARGEST)
