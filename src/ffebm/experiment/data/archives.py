"""Archives from elsewhere: the files in them, and no more of them than a data set has."""

from __future__ import annotations

import gzip
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import IO, cast

from ffebm.checks import brief_name

__all__ = ["ArchiveError", "Budget", "Limited", "copy", "unpack"]
__dir__ = __all__.copy

CHUNK = 1 << 18
MEMBERS = 100  # files in an archive; the official ones have up to eleven
WRAPPING = 1 << 20  # what a tar file needs besides its files


class ArchiveError(ValueError):
    """An archive that is damaged, or holds more than it should."""


class Budget:
    """Bytes that may still come."""

    def __init__(self, limit: int) -> None:
        self.limit = self.left = limit

    def spend(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise ArchiveError(f"it unpacks to more than the {self.limit:,} bytes that the data set has")


class Limited:
    """A file that ends in an error rather than giving more than its budget: an archive's own tables are unpacked, too."""

    def __init__(self, file: gzip.GzipFile, limit: int) -> None:
        self.file = file
        self.budget = Budget(limit)

    def read(self, size: int = CHUNK) -> bytes:
        content = self.file.read(min(size, self.budget.left + 1))
        self.budget.spend(len(content))
        return content


def unpack(archive: Path, folder: Path, limit: int) -> None:
    """Put the files of a .tar.gz or .zip archive into a folder, whatever folders they were in; nothing can land elsewhere.

    Raises:
        ArchiveError: it is damaged, or unpacks to more than `limit` bytes.
        OSError: the folder cannot be written to.
    """
    try:
        (_unpack_zip if archive.suffix == ".zip" else _unpack_tar)(archive, folder, Budget(limit))
    except _FullError as error:
        raise error.reason from None
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
        raise ArchiveError(brief_name(str(error), 200)) from None  # damaged tables point anywhere, which the system refuses


def _unpack_tar(archive: Path, folder: Path, budget: Budget) -> None:
    with (
        gzip.open(archive) as unzipped,
        tarfile.open(fileobj=cast(IO[bytes], Limited(unzipped, budget.limit + WRAPPING)), mode="r|") as tar,
    ):
        for number, member in enumerate(tar):
            _check_number(number)
            source = tar.extractfile(member) if member.isfile() else None
            if source is not None:
                copy(source, folder / _name(member.name), budget)


def _unpack_zip(archive: Path, folder: Path, budget: Budget) -> None:
    with zipfile.ZipFile(archive) as packed:
        for number, item in enumerate(packed.infolist()):
            _check_number(number)
            if item.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ArchiveError("it is compressed in an unusual way")
            if not item.is_dir():
                with packed.open(item) as source:
                    copy(source, folder / _name(item.filename), budget)


def copy(source: IO[bytes], path: Path, budget: Budget) -> None:
    with _open(path) as sink:
        while chunk := source.read(CHUNK):
            budget.spend(len(chunk))
            _write(sink, chunk)


def _open(path: Path) -> IO[bytes]:
    try:
        return path.open("wb")
    except OSError as error:
        raise _FullError(error) from None


def _write(sink: IO[bytes], chunk: bytes) -> None:
    try:
        sink.write(chunk)
    except OSError as error:
        raise _FullError(error) from None


class _FullError(Exception):
    """What the system says of the place that is written to, not of the archive."""

    def __init__(self, reason: OSError) -> None:
        self.reason = reason


def _check_number(number: int) -> None:
    if number >= MEMBERS:
        raise ArchiveError(f"it holds more than {MEMBERS} files")


def _name(name: str) -> str:
    """Of the file itself: without folders, and one that a file can have."""
    last = Path(name.replace("\\", "/")).name
    if not last or last == ".." or "\0" in last or len(last.encode("utf-8", "replace")) > 200:
        raise ArchiveError("it holds a file without a usable name")
    return last
