"""Pictures for `ffebm predict`: damaged, or with more pixels than bytes."""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from PIL import Image

from ffebm.experiment.pictures import read_image
from hostile import Attack, mutated


def attacks(chance: random.Random, folder: Path) -> Iterator[Attack]:
    pictures = [*_pictures()]
    while True:
        for content in pictures:
            yield partial(_read, folder / "picture", content, (3, 32, 32))
        for _ in range(300):
            content = mutated(chance.choice(pictures[:-3]), chance)
            yield partial(_read, folder / "picture", content, chance.choice(((1, 8, 8), (3, 32, 32))))


def _read(path: Path, content: bytes, shape: tuple[int, ...]) -> None:
    path.write_bytes(content)
    assert tuple(read_image(path, shape).shape) == shape


def _pictures() -> Iterator[bytes]:
    for mode, kind in (
        ("L", "PNG"),
        ("RGB", "PNG"),
        ("RGBA", "PNG"),
        ("P", "PNG"),
        ("1", "PNG"),
        ("I;16", "PNG"),
        ("LA", "PNG"),
    ):
        yield _saved(mode, kind)
    for mode in ("L", "RGB", "CMYK"):
        yield _saved(mode, "JPEG")
    yield _saved("RGB", "GIF")  # which is not read
    text = zlib.compress(bytes(1 << 24))
    yield _png(8, 8, zlib.compress(bytes(8 * 25)), (b"zTXt", b"x\0\0" + text), (b"iCCP", b"x\0\0" + text))
    for width, height in ((60_000, 60_000), (2**31 - 1, 1), (12_000, 12_000)):
        yield _png(width, height, zlib.compress(bytes(1 << 20)))


def _saved(mode: str, kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (12, 10)).save(buffer, kind)
    return buffer.getvalue()


def _png(width: int, height: int, pixels: bytes, *more: tuple[bytes, bytes]) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), *more, (b"IDAT", pixels), (b"IEND", b""))
    parts = [struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
