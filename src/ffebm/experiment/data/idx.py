"""MNIST and Fashion-MNIST, from the official idx files, gzipped or not."""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from ffebm.checks import brief
from ffebm.experiment.data.dataset import Dataset, checked_samples
from ffebm.experiment.errors import DataError
from ffebm.experiment.files import read_regular

__all__ = ["find", "read_fashion_mnist", "read_idx", "read_mnist"]
__dir__ = __all__.copy

SHAPE = (1, 28, 28)
LARGEST = 1 << 28  # bytes of a file, unpacked; the largest official one has 47 million
PACKED = 1 << 26  # bytes of one that is gzipped; the largest official one has 26 million
DIMENSIONS = 4
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
    """An array of bytes in the idx format: two zero bytes, type 8, the number of dimensions, their sizes, the data.

    No more is unpacked than the header announces, and it may announce no more than `LARGEST`.
    """
    try:
        packed = read_regular(path, PACKED if path.suffix == ".gz" else LARGEST)
        with gzip.open(io.BytesIO(packed)) if path.suffix == ".gz" else io.BytesIO(packed) as file:
            header = file.read(4)
            if len(header) < 4 or header[:3] != b"\0\0\x08":
                raise DataError(f"{path} does not start like an idx file of bytes. Remove it and fetch it again.")
            sizes_at = file.read(4 * header[3])
            if len(sizes_at) < 4 * header[3]:
                raise DataError(f"{path} ends within its header. Remove it and fetch it again.")
            sizes = struct.unpack(f">{header[3]}I", sizes_at)
            announced = math.prod(sizes[:DIMENSIONS])
            if header[3] > DIMENSIONS or not 0 < announced <= LARGEST:
                raise DataError(f"{path} announces an array of {header[3]} dimensions, {brief(sizes)}: no data set has that.")
            content = file.read(announced + 1)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"{path} cannot be unpacked: {error}. Remove it and fetch it again.") from None
    if len(content) != announced:
        holds = f"{len(content)}" if len(content) < announced else "more"
        raise DataError(f"{path} announces {announced} bytes and holds {holds}: truncated or damaged. Fetch it again.")
    return np.frombuffer(content, np.uint8).reshape(sizes)
