"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

__all__ = ["open_to_append", "read_regular", "write_atomically", "write_json"]
__dir__ = __all__.copy


def write_atomically(path: Path, content: bytes | memoryview | Callable[[IO[bytes]], object]) -> None:
    """Put `content`, or what it writes, at `path`: under another name first, flushed to disk, then renamed.

    Whoever reads `path`, even after a power cut, sees the old content or the new one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with suppress(OSError):  # some file systems know no permissions
            os.chmod(temporary, 0o666 & ~_umask())  # mkstemp lets nobody else read
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def read_regular(path: Path, limit: int) -> bytes:
    """What a file holds, if it is one, of at most `limit` bytes: neither a pipe nor a device can keep the reader waiting.

    Raises:
        OSError: it is not there, may not be read, or is a folder, a pipe or a device.
        ValueError: it is larger than that, or its name is none that a file can have.
    """
    # Opening a pipe waits for somebody to write into it, unless told not to.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("this is a folder, a pipe or a device, not a file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(limit + 1)
    finally:
        os.close(descriptor)
    if len(content) > limit:
        raise ValueError(f"this file is larger than {limit:,} bytes, the most that is read of it")
    return content


def open_to_append(path: Path) -> IO[bytes]:
    """A file, made if need be; neither a pipe can keep the writer waiting, nor a link lead it elsewhere."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
    file = os.fdopen(os.open(path, flags | getattr(os, "O_BINARY", 0), 0o666), "ab")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "this is a pipe, a device or a socket, not a file", str(path))
    return file


def write_json(path: Path, value: Any) -> None:
    """Atomically, with null for what JSON does not know: NaN and infinity."""
    write_atomically(path, json.dumps(_finite(value), indent=1, allow_nan=False).encode())


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _umask() -> int:
    """There is no asking without setting."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut, where the system lets folders be opened."""
    with suppress(OSError):  # nor do all let a folder be synchronised
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
