"""Pickles that pretend to be batches of CIFAR or ImageNet32."""

from __future__ import annotations

import os
import pickle
import random
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from ffebm.experiment.data import load
from hostile import Attack, mutated

CODES = bytes(
    sorted({ord(letter) for letter in "(.0123FNTUVXBC]}abcdeghijlopqrstu)KMJIRLGSQP"} | set(range(0x80, 0x99)) | {0x8A, 0x8E})
)
CALLED = b"cnumpy\nndarray\n"
DTYPE = b"cnumpy\ndtype\n"
KIND = DTYPE + b"U\x02%sK\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n" + CALLED + b"K\x00\x85U\x01b\x87R"


class Command:
    """Would leave a trace if it were called."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch '{self.trace}'",)


def attacks(chance: random.Random, folder: Path) -> Iterator[Attack]:
    """Damaged and crafted batches, read as `ffebm train` reads them."""
    trace = folder / "executed"
    sound = _write(folder)
    crafted = [_batch(value) for value in _values()] + [*_bombs(), pickle.dumps({b"data": Command(trace)}, 2)]
    crafted += [pickle.dumps({b"data": Command(trace)}, protocol) for protocol in (0, 3, 4, 5)]
    names = [name for name in sound if name.parent.name == "cifar-10-batches-py"]
    while True:
        for content in crafted:
            yield partial(_try, names[0], content, sound, trace)
        for _ in range(20 * len(crafted)):
            path = chance.choice(list(sound))
            content = chance.choice((sound[path], chance.choice(crafted)))
            match chance.randrange(4):
                case 0:
                    content = _program(chance)
                case 1:
                    other, cut = chance.choice(crafted), chance.randrange(len(content) + 1)
                    content = content[:cut] + other[chance.randrange(len(other) + 1) :]
                case _:
                    content = mutated(content, chance)
            yield partial(_try, path, content, sound, trace)


def _try(path: Path, content: bytes, sound: dict[Path, bytes], trace: Path) -> None:
    path.write_bytes(content)
    try:
        load({"cifar-10-batches-py": "cifar10", "imagenet32": "imagenet32"}[path.parent.name], path.parent.parent)
    finally:
        path.write_bytes(sound[path])
        assert not trace.exists(), "a pickle was executed"


def _write(folder: Path) -> dict[Path, bytes]:
    """Two small sets, as Python 2 and as Python 3 write them."""
    pixels = np.zeros((1, 3072), np.uint8)
    files = {
        **{f"cifar-10-batches-py/data_batch_{i}": _batch(KIND % b"u1", pixels.tobytes()) for i in range(1, 6)},
        "cifar-10-batches-py/test_batch": pickle.dumps({b"data": pixels, b"labels": [3], b"filenames": [b"a.png"]}, 2),
        "cifar-10-batches-py/batches.meta": pickle.dumps({b"label_names": [b"x"] * 10}, 2),
        **{f"imagenet32/train_data_batch_{i}": pickle.dumps({"data": pixels, "labels": [1]}, 3) for i in range(1, 11)},
        "imagenet32/val_data": pickle.dumps({"data": pixels, "labels": [1000], "mean": np.zeros(3)}, 4),
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    return {folder / name: content for name, content in files.items()}


def _batch(kind: bytes, pixels: bytes = bytes(3072)) -> bytes:
    """A batch of one image as Python 2 wrote it, with an array of this kind of number."""
    data = b"T" + struct.pack("<I", len(pixels)) + pixels
    array = RECONSTRUCT + b"(K\x01K\x01M\x00\x0c\x86" + kind + b"\x89" + data + b"tb"
    return b"\x80\x02}(U\x06labels](K\x03eU\x04data" + array + b"u."


def _values() -> list[bytes]:
    """Types of numbers that are none: objects, records, texts, times, whole structures."""
    return [
        KIND.replace(b"\x02%s", bytes([len(name)]) + name) for name in (b"O", b"V8", b"S9", b"U9", b"M8", b"O8", b"u16", b"")
    ]


def _bombs() -> list[bytes]:
    """Few bytes that would take much memory, much time, the stack, or a pointer of the file's own."""
    start = b"\x80\x02}(U\x06labels](K\x03eU\x04data"
    text = b"X" + struct.pack("<I", 60_000) + b"x" * 60_000
    encode = b"c_codecs\nencode\n"
    shared = b"]q\x00" + b"".join(b"(h%ch%ce]q%c0" % (i, i, i + 1) for i in range(60))
    return [
        start + CALLED + b"(K\x01\x85U\x01OU\x08\x41\x41\x41\x41\x41\x41\x41\x41tRu.",  # an object at the file's address
        start + CALLED + b"(J\xff\xff\xff\x7f\x85U\x02u1tRu.",  # two gigabytes
        start + CALLED + b"(\x8a\x05\xff\xff\xff\xff\x00\x85U\x02u1U\x01xK\x00K\x00\x85tRu.",  # one byte, four billion times
        b"\x80\x02Nr\xff\xff\xff\xff.",  # a memo of four billion
        b"\x80\x02Nr\xff\xff\xff\x7f.",
        b"\x80\x02" + b"]" * 300_000 + b"a" * 299_999 + b".",  # lists in lists
        b"\x80\x02" + b"(" * 300_000 + b"t" * 300_000 + b".",  # tuples in tuples
        b"\x80\x02K\x01" + b"\x85" * 300_000 + b".",
        b"\x80\x02" + b"}" * 300_000 + b".",
        b"\x80\x02" + shared + b".",  # lists of the same lists
        b"\x80\x02K\x01q\x00" + b"h\x00h\x00\x86q\x00" * 500 + b".",  # pairs of the same pairs
        b"\x80\x02K\x01q\x00(" + b"h\x00" * 100_000 + b"tq\x01" + b"h\x01\x850" * 100_000 + b".",
        start + encode + b"q\x00" + text + b"U\x06latin1\x86q\x01" + b"h\x00h\x01R0" * 20_000 + b"u.",  # the same text, again
        b"\x80\x02](" + text + b"q\x00" + b"h\x00" * 100_000 + b"e.",
        start + b"\x8e" + struct.pack("<Q", 1 << 62) + b"xu.",
        start + b"\x8d" + struct.pack("<Q", (1 << 64) - 1) + b"xu.",
        start + b"B\xff\xff\xff\xffxu.",
        b"\x80\x04\x95" + struct.pack("<Q", 1 << 63) + b"}.",
        b"\x80\x02\x8b\xff\xff\xff\x7fx.",  # a number of two billion bytes
        b"\x80\x02}(U\x06labels](K\x03" + text + b"e" + b"U\x04data" + RECONSTRUCT + b"u.",
        start + RECONSTRUCT + b"(K\x01(" + b"J\xff\xff\xff\x7f" * 3 + b"t" + KIND % b"u1" + b"\x89U\x01xtbu.",
        start + RECONSTRUCT + b"(K\x01(K\x00" + b"J\xff\xff\xff\x7f" * 3 + b"t" + KIND % b"u1" + b"\x89U\x00tbu.",
        b"\x80\x02}(" + b"".join(b"U\x03%03dK\x01" % i for i in range(999)) + b"u.",
        b"\x80\x02cos\nsystem\nU\x04true\x85R.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
        b"cbuiltins\neval\n(S'1'\ntR.",
    ]


def _program(chance: random.Random) -> bytes:
    """Instructions in any order, with arguments of the right size or not."""
    pieces = [b"\x80\x02"]
    for _ in range(chance.randint(1, 60)):
        code = chance.choice(CODES)
        sizes = {ord("K"): 1, ord("M"): 2, ord("J"): 4, ord("q"): 1, ord("r"): 4, ord("h"): 1, ord("j"): 4}
        pieces.append(bytes([code]) + chance.randbytes(sizes.get(code, 0)))
        pieces.append(chance.choice((b"", b"", b"", CALLED, DTYPE, RECONSTRUCT, b"K\x01", b"U\x01x", b"]", b"}", b"(")))
    return b"".join([*pieces, b"."])
