"""MNIST and Fashion-MNIST, from the official idx files, gzipped or not."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from ffebm.experiment.data.dataset import DataError, Dataset, checked_samples

SHAPE = (1, 28, 28)
FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
FASHION = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


def read_mnist(folder: Path) -> Dataset:
    return _read(folder, "mnist", tuple("0123456789"), (0.1307,), (0.3081,))


def read_fashion_mnist(folder: Path) -> Dataset:
    return _read(folder, "fashion-mnist", FASHION, (0.2860,), (0.3530,))


def _read(folder: Path, name: str, classes: tuple[str, ...], mean: tuple[float], std: tuple[float]) -> Dataset:
    arrays = [read_idx(find(folder, file)) for file in FILES]
    train, test = (
        checked_samples(images, labels, SHAPE, len(classes), str(folder)) for images, labels in (arrays[:2], arrays[2:])
    )
    return Dataset(name, train, test, classes, mean, std)


def find(folder: Path, file: str) -> Path:
    """The file, or its gzipped twin."""
    plain, packed = folder / file, folder / f"{file}.gz"
    if plain.is_file() or packed.is_file():
        return plain if plain.is_file() else packed
    raise DataError(f"{plain} (or {packed.name}) is missing. `ffebm data fetch` brings the official files.")


def read_idx(path: Path) -> np.ndarray:
    """An array of bytes in the idx format: two zero bytes, type 8, the number of dimensions, their sizes, the data."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be unpacked: {error}. Remove it and fetch it again.") from None
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise DataError(f"{path} does not start like an idx file of bytes. Remove it and fetch it again.")
    dimensions = content[3]
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise DataError(f"{path} ends within its header. Remove it and fetch it again.")
    sizes = struct.unpack(f">{dimensions}I", content[4:start])
    if len(content) - start != math.prod(sizes):
        raise DataError(
            f"{path} announces {math.prod(sizes)} bytes and holds {len(content) - start}: truncated or damaged. Fetch it again."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(sizes)
