"""Arrays of one's own: .npz files with images and labels. Nothing in them is run; what they announce is not believed."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from ffebm.checks import brief_name
from ffebm.experiment.data.division import divided
from ffebm.experiment.data.found import Found, Labelled
from ffebm.experiment.data.own import Wishes, as_bytes, brought
from ffebm.experiment.errors import DataError

__all__ = ["find_arrays"]
__dir__ = __all__.copy

LARGEST = 4 * 2**30  # bytes of an array
KINDS = tuple(np.dtype(kind) for kind in (np.uint8, np.bool_, np.float16, np.float32, np.float64))


def find_arrays(files: Sequence[Path], wishes: Wishes = Wishes()) -> Found:
    """`train.npz` and `test.npz`, or a single file, which may hold `test_images` and `test_labels` as well.

    Each has `images` (N, H, W), (N, H, W, C) or (N, C, H, W) and `labels` (N), numbers or names, and may have `classes`, the
    names of numbered classes.
    """
    first, apart, remarks = _chosen(files)
    arrays = _arrays(first)
    where = str(first)
    if first == apart:
        train, test = None, _samples(arrays, "", first, wishes)
    else:
        train, test = _samples(arrays, "", first, wishes), None
        if apart is not None:
            test = _samples(_arrays(apart), "", apart, wishes)
        elif "test_images" in arrays:
            test = _samples(arrays, "test_", first, wishes)
    labels = [label for part in (train, test) if part is not None for label in part.labels]
    return Found("folder", where, train, test, _class_names(arrays, labels, first), remarks)


def _chosen(files: Sequence[Path]) -> tuple[Path, Path | None, list[str]]:
    """The file to read first, the one to test on, which may be the same, and a remark on one that is not read."""
    folder = files[0].parent
    if len(files) == 1:
        return files[0], None, []
    parts = divided(files, str(folder))
    if parts.others or not (parts.train or parts.tests):
        names = ", ".join(brief_name(path.name) for path in files[:5])
        raise DataError(f"{folder} holds {names}: name them train.npz and test.npz, or name the one that is to be read.")
    test = parts.tests[0] if parts.tests else None
    unused = [f"{folder}: {path.name} is passed over, as {test.name} is there." for path in parts.tests[1:] if test]
    return parts.train or parts.tests[0], test, unused


def _samples(arrays: dict[str, np.ndarray], prefix: str, path: Path, wishes: Wishes) -> Labelled:
    where = brief_name(str(path), 200)
    try:
        images, labels = arrays[prefix + "images"], arrays[prefix + "labels"]
    except KeyError as error:
        raise DataError(
            f"{where} has no array {error}, but {', '.join(map(brief_name, arrays)) or 'none at all'}. Save it by "
            f"`numpy.savez({brief_name(path.name)!r}, images=..., labels=...)`."
        ) from None
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iuUSb" or not len(labels):
        raise DataError(
            f"{where}: {len(images) if images.ndim else 0} images need as many labels, numbers or names, got "
            f"{labels.dtype} of shape {labels.shape}."
        )
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[3] in (1, 3) and images.shape[1] not in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    native = images.dtype.newbyteorder("=")
    if native not in KINDS:
        raise DataError(f"{where}: images must be bytes, or floats between 0 and 1, got {images.dtype}.")
    x = as_bytes(torch.from_numpy(images.astype(native, order="C")), where)  # a copy: what was read is not to be written to
    return Labelled(brought(x, wishes), _texts(labels, where).tolist())


def _texts(names: np.ndarray, where: str) -> np.ndarray:
    """Names that were saved as bytes."""
    if names.dtype.kind != "S":
        return names
    try:
        return np.char.decode(names, "utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{where}: names of classes must be UTF-8: save them as text, by `.astype(str)`.") from None


def _class_names(arrays: dict[str, np.ndarray], labels: Sequence[object], path: Path) -> list[str]:
    """What the classes are called that labels number; nothing, where labels say it themselves."""
    if "classes" not in arrays:
        return []
    where = brief_name(str(path), 200)
    names = _texts(arrays["classes"], where)
    found = sorted(set(map(str, labels)))
    numbers = [int(label) for label in found if label.isdecimal()]
    if names.dtype.kind != "U" or names.ndim != 1 or len(numbers) < len(found):
        raise DataError(f"{where}: `classes` must name, in order, the classes that labels number from 0.")
    if max(numbers) >= len(names):
        how = " Labels count from 0: save `labels - 1`." if min(numbers) == 1 and max(numbers) == len(names) else ""
        raise DataError(
            f"{where}: `classes` must name, in order, the classes that labels number from 0. It names {len(names)}, and labels "
            f"run from {min(numbers)} to {max(numbers)}.{how}"
        )
    return names.tolist()


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
