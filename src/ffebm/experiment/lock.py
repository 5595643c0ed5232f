"""Locks: one process at a time, where the system has such things."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ffebm.experiment.files import open_to_append

__all__ = ["locked"]
__dir__ = __all__.copy

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


@contextmanager
def locked(path: Path, patience: float = 0.0) -> Iterator[bool]:
    """Hold the lock of a file, which is made if need be; gives False where another process keeps it for `patience` seconds.

    Whoever holds it may remove the file, and the folder that it is in. A lock on a file that others no longer find is none.
    """
    deadline = time.monotonic() + patience
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_to_append(path) as file:
            got = _got(file)
            if (got and _is(file, path)) or (not got and time.monotonic() > deadline):
                yield got
                return
        if not got:
            time.sleep(0.1)


def _got(file: IO[bytes]) -> bool:
    """Whether the lock is ours now; it is where the system has none, as some network file systems."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _is(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
