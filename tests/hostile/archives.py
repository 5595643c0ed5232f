"""Archives and idx files: damaged, lying about their size, or reaching for other folders."""

from __future__ import annotations

import gzip
import io
import random
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from ffebm.experiment.data.archives import ArchiveError, unpack
from ffebm.experiment.data.idx import read_idx
from ffebm.experiment.errors import UserError
from hostile import Attack, mutated

LIMIT = 1 << 20  # bytes that an archive here may unpack to
ZEROS = bytes(1 << 24)


def attacks(chance: random.Random, folder: Path) -> Iterator[Attack]:
    archives = [("x.tar.gz", content) for content in _tars()] + [("x.zip", content) for content in _zips()]
    arrays = [*_arrays()]
    while True:
        for name, content in archives:
            yield partial(_unpack, folder, name, content)
        for name, content in arrays:
            yield partial(_read, folder, name, content)
        for _ in range(300):
            name, content = chance.choice(archives)
            yield partial(_unpack, folder, name, mutated(content, chance))
            name, content = chance.choice(arrays)
            yield partial(_read, folder, name, mutated(content, chance))
            raw = gzip.decompress(content) if name.endswith(".gz") and len(content) < 10_000 else content
            yield partial(_read, folder, "y.gz", gzip.compress(mutated(raw, chance)))


def _unpack(folder: Path, name: str, content: bytes) -> None:
    place = folder / "inside" / "deeper"
    place.mkdir(parents=True)
    (folder / name).write_bytes(content)
    try:
        unpack(folder / name, place, LIMIT)
    except ArchiveError as error:
        raise UserError(str(error)) from None
    finally:
        unpacked = sum(path.stat().st_size for path in place.iterdir())
        assert unpacked <= LIMIT, "more was unpacked than allowed"
        assert {path.name for path in folder.iterdir()} <= {"inside", name}, "a file landed outside of its folder"
        assert not any(path.is_symlink() or path.is_dir() for path in place.iterdir())
        shutil.rmtree(folder / "inside")
        (folder / name).unlink()


def _read(folder: Path, name: str, content: bytes) -> None:
    path = folder / name
    path.write_bytes(content)
    try:
        read_idx(path)
    finally:
        path.unlink()


def _tars() -> Iterator[bytes]:
    for entries in (
        [("a", b"abc"), ("b", b"def")],
        [("../../escaped", b"evil")],
        [("/tmp/escaped", b"evil"), ("..", b"x"), ("a/..", b"x"), ("", b"x")],
        [("zeros", ZEROS)],
        [(f"file {i}", b"x") for i in range(300)],
        [("x" * 300, b"long name")],
    ):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            for name, content in entries:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        yield buffer.getvalue()
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            info = tarfile.TarInfo("link")
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
            info = tarfile.TarInfo("link")
            info.size = 4
            tar.addfile(info, io.BytesIO(b"evil"))
        yield buffer.getvalue()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=tarfile.PAX_FORMAT, pax_headers={"comment": "x" * (1 << 24)}) as tar:
        tar.addfile(tarfile.TarInfo("a"), io.BytesIO())
    yield buffer.getvalue()
    yield gzip.compress(ZEROS)
    yield gzip.compress(_sparse())


def _sparse() -> bytes:
    """A file of a terabyte, of which a tar archive holds a few bytes."""
    header = bytearray(512)
    header[0:1] = b"s"
    header[100:108] = b"0000644\0"
    header[124:136] = b"00000000010\0"
    header[156:157] = b"S"
    header[257:265] = b"ustar  \0"
    header[386:410] = b"00000000000\00000000000010\0"
    header[483:495] = b"\x80" + (1 << 40).to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    return bytes(header) + bytes(512 * 4)


def _zips() -> Iterator[bytes]:
    for entries, kind in (
        ([("a", b"abc"), ("folder/b", b"def")], zipfile.ZIP_DEFLATED),
        ([("../../escaped", b"evil"), ("/tmp/escaped", b"evil"), ("c:\\x\\..\\escaped", b"x")], zipfile.ZIP_STORED),
        ([("zeros", ZEROS)], zipfile.ZIP_DEFLATED),
        ([("zeros", ZEROS)], zipfile.ZIP_LZMA),
        ([(f"file {i}", b"x") for i in range(300)], zipfile.ZIP_STORED),
    ):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", kind) as packed:
            for name, content in entries:
                packed.writestr(name, content)
        yield buffer.getvalue()


def _arrays() -> Iterator[tuple[str, bytes]]:
    sound = b"\0\0\x08\x03" + struct.pack(">3I", 2, 28, 28) + bytes(2 * 784)
    yield "x", sound
    yield "x.gz", gzip.compress(sound)
    for sizes in ((2**32 - 1,) * 3, (2**32 - 1,), (2**16, 2**16), (0, 2**32 - 1), (1, 2**25), ()):
        content = bytes([0, 0, 8, len(sizes)]) + struct.pack(f">{len(sizes)}I", *sizes)
        yield "x", content + bytes(100)
        yield "x.gz", gzip.compress(content + ZEROS)
    yield "x.gz", gzip.compress(b"\0\0\x08\xff" + b"\0\0\0\1" * 255 + b"x")
    yield "x.gz", gzip.compress(b"\0\0\x08\x01\0\0\0\1" + ZEROS)  # far more than it announces
