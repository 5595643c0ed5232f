"""Arrays of one's own: .npz files with images and labels. Nothing in them is run; what they announce is not believed."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from ffebm.checks import brief_name
from ffebm.experiment.data.dataset import Dataset, Samples
from ffebm.experiment.data.own import Wishes, as_bytes, check_classes, numbered, own_dataset
from ffebm.experiment.errors import DataError

LARGEST = 4 * 2**30  # bytes of an array
KINDS = tuple(np.dtype(kind) for kind in (np.uint8, np.bool_, np.float16, np.float32, np.float64))
TESTS = ("test", "val", "valid", "validation")


def read_arrays(files: Sequence[Path], wishes: Wishes = Wishes()) -> Dataset:
    """`train.npz` and `test.npz`, or a single file, which may hold `test_images` and `test_labels` as well.

    Each has `images` (N, H, W), (N, H, W, C) or (N, C, H, W) and `labels` (N), numbers or names, and may have `classes`, the
    names of numbered classes.
    """
    by_name = {path.stem: path for path in files}
    test = next((by_name[name] for name in TESTS if name in by_name), None)
    if "train" in by_name:
        first, others = by_name["train"], [path for path in files if path not in (by_name["train"], test)]
    else:
        first, others, test = files[0], files[1:], None
    if others:
        names = ", ".join(brief_name(path.name) for path in files[:5])
        raise DataError(f"{first.parent} holds {names}: name them train.npz and test.npz, or name the one that is to be read.")
    arrays = _arrays(first)
    images, labels = _samples(arrays, "", first)
    tested = None
    if test is not None:
        tested = _samples(_arrays(test), "", test)
    elif "test_images" in arrays:
        tested = _samples(arrays, "test_", first)
    numbers, classes = numbered(labels)
    check_classes(classes, list(map(str, tested[1])) if tested else [], str(first))
    of_test = None
    if tested is not None:
        places = {name: number for number, name in enumerate(classes)}
        of_test = Samples(tested[0], torch.tensor([places[str(label)] for label in tested[1]], dtype=torch.long))
    named = _class_names(arrays, classes, first)
    return own_dataset("folder", Samples(images, numbers), of_test, named, wishes)


def _samples(arrays: dict[str, np.ndarray], prefix: str, path: Path) -> tuple[torch.Tensor, list[object]]:
    where = brief_name(str(path), 200)
    try:
        images, labels = arrays[prefix + "images"], arrays[prefix + "labels"]
    except KeyError as error:
        raise DataError(
            f"{where} has no array {error}, but {', '.join(map(brief_name, arrays)) or 'none at all'}. Save it by "
            f"`numpy.savez({brief_name(path.name)!r}, images=..., labels=...)`."
        ) from None
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iuUb" or not len(labels):
        raise DataError(
            f"{where}: {len(images) if images.ndim else 0} images need as many labels, numbers or names, got "
            f"{labels.dtype} of shape {labels.shape}."
        )
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[3] in (1, 3) and images.shape[1] not in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.dtype not in KINDS:
        raise DataError(f"{where}: images must be bytes, or floats between 0 and 1, got {images.dtype}.")
    return as_bytes(torch.from_numpy(images.copy()), where), labels.tolist()


def _class_names(arrays: dict[str, np.ndarray], found: tuple[str, ...], path: Path) -> tuple[str, ...]:
    if "classes" not in arrays:
        return found
    names = arrays["classes"]
    if names.dtype.kind != "U" or names.ndim != 1 or not all(name.isdecimal() and int(name) < len(names) for name in found):
        raise DataError(f"{brief_name(str(path), 200)}: `classes` must name, in order, the classes that labels number from 0.")
    return tuple(str(names[int(name)]) for name in found)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """What the archive holds: arrays of numbers and texts, never objects, each no larger than it really is."""
    where = brief_name(str(path), 200)
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
            return {member.filename.removesuffix(".npy"): _array(archive, member) for member in members}
    except OSError as error:
        raise DataError(f"{where} cannot be read: {error.strerror or error}.") from None
    except MemoryError:
        raise
    except Exception as error:  # zipfile, zlib and numpy raise what they like on damaged files
        raise DataError(f"{where} is not a sound .npz file: {brief_name(str(error), 200)}.") from None


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    if member.file_size > LARGEST:
        raise ValueError(
            f"{brief_name(member.filename)} takes {member.file_size / 2**30:.0f} GiB, and {LARGEST >> 30} are read"
        )
    with archive.open(member) as file:
        content = io.BytesIO(file.read(LARGEST))
    version = np.lib.format.read_magic(content)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"numpy's format {version} is not read")
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, in_columns, kind = read_header(content)
    if kind.hasobject:
        raise ValueError("it holds Python objects, which could run code")
    count = int(np.prod(shape, dtype=object))
    left = content.getbuffer().nbytes - content.tell()
    if count * kind.itemsize != left:
        raise ValueError(f"{brief_name(member.filename)} announces {count * kind.itemsize} bytes and holds {left}")
    return np.frombuffer(content.getbuffer()[content.tell() :], kind).reshape(shape, order="F" if in_columns else "C")
