"""Data that a program hands over: data sets of torch, or a data module of Lightning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.utils.data import IterableDataset

from ffebm.checks import brief_name
from ffebm.experiment.data.dataset import Dataset
from ffebm.experiment.data.found import Found, Labelled
from ffebm.experiment.data.loaders import of_module
from ffebm.experiment.data.own import Wishes, as_bytes, brought, check_room
from ffebm.experiment.errors import DataError
from ffebm.experiment.pictures import GREY_MODES, fitted, upright
from ffebm.experiment.places import GIVEN

__all__ = ["find_given", "given_dataset"]
__dir__ = __all__.copy

MANY = 5000  # samples that take long enough for a bar
HOW = "Hand over a pair (training, test) of data sets, one data set, of which a part is set apart, or a Lightning data module."


def given_dataset(data: Any, wishes: Wishes = Wishes()) -> Dataset:
    """Images as bytes, and their labels, of whatever gives pairs of an image and a label.

    Args:
        data: a data set with a length, whose items are pairs; two of such, for training and for testing; or a
            `LightningDataModule`. Images are bytes, PIL pictures, or tensors between 0 and 1.
    """
    return find_given(data, wishes).dataset(wishes)


def find_given(data: Any, wishes: Wishes = Wishes()) -> Found:
    """The same, before anything is set apart."""
    train, test = _parts(data)
    learnt = _samples(train, "the training data", wishes)
    tested = None if test is None else _samples(test, "the test data", wishes)
    labels = [str(label) for part in (learnt, tested) if part is not None for label in part.labels]
    names = _class_names(train)
    fitting = all(label.isdecimal() and int(label) < len(names) for label in set(labels))
    return Found(GIVEN, "the data", learnt, tested, names if fitting else ())


def _parts(data: Any) -> tuple[Any, Any]:
    if isinstance(data, tuple) and len(data) == 2:
        train, test = data
    elif hasattr(data, "train_dataloader"):
        train, test = of_module(data)
    else:
        train, test = data, None
    for part in (train,) if test is None else (train, test):
        _check_set(part)
    return train, test


def _check_set(data: Any) -> None:
    kind = brief_name(type(data).__name__)
    if hasattr(data, "dataset") and hasattr(data, "batch_sampler"):
        raise DataError(f"A {kind} gives batches, and a run makes its own: hand over its `.dataset`. {HOW}")
    if isinstance(data, IterableDataset) or (hasattr(data, "__iter__") and not hasattr(data, "__len__")):
        raise DataError(
            f"A {kind} is a stream without a length, and all images are held in memory: hand over a list of what it gives, "
            f"`list(...)`. {HOW}"
        )
    if not (hasattr(data, "__getitem__") and hasattr(data, "__len__")) or isinstance(data, str | bytes | dict):
        raise DataError(f"A {kind} is no data that can be learnt from. {HOW}")


def _samples(data: Any, where: str, wishes: Wishes) -> Labelled:
    if not len(data):
        raise DataError(f"There are no samples in {where}.")
    images: Tensor | None = None
    labels: list[object] = []
    console = Console(stderr=True)
    shown = track(_items(data), "Reading samples", len(data), console=console, transient=True, disable=len(data) < MANY)
    for number, item in enumerate(shown):
        if not isinstance(item, Sequence) or len(item) != 2:
            raise DataError(f"{where}: sample {number} is a {type(item).__name__}, not a pair of an image and a label. {HOW}")
        image = _image(item[0], f"{where}, sample {number}", wishes)
        if images is None:
            check_room(len(data), image.shape, where)
            images = torch.empty(len(data), *image.shape, dtype=torch.uint8)
        if image.shape != images.shape[1:]:
            raise DataError(
                f"{where}: sample {number} has the shape {tuple(image.shape)}, and the first one {tuple(images.shape[1:])}: "
                "bring them to one size by data.size, and to the same colours by data.colours."
            )
        images[number] = image
        labels.append(_label(item[1], f"{where}, sample {number}"))
    assert images is not None
    return Labelled(images, labels)


def _items(data: Any) -> Iterator[Any]:
    return (data[number] for number in range(len(data)))


def _image(image: Any, where: str, wishes: Wishes) -> Tensor:
    """Bytes, (C, H, W), in the size and the colours that are wished for."""
    if isinstance(image, Image.Image) and image.mode != "F":  # floats are held to what floats in arrays are
        return as_bytes(_picture(image, where, wishes)[None], where)[0]
    return brought(as_bytes(_tensor(image, where)[None], where), wishes)[0]


def _picture(image: Image.Image, where: str, wishes: Wishes) -> Tensor:
    """As from a file: upright, in grey or in three colours, and white where it is transparent."""
    try:
        width, height = upright(image).size
        return fitted(image, (wishes.channels or (1 if image.mode in GREY_MODES else 3), *(wishes.sides or (height, width))))
    except (OSError, ValueError, SyntaxError) as error:  # Pillow decodes pictures when they are used
        raise DataError(f"{where}: this picture cannot be read: {brief_name(str(error), 200)}.") from None


def _tensor(image: Any, where: str) -> Tensor:
    """Channels first; arrays have them last."""
    if isinstance(image, Tensor):
        return image[None] if image.dim() == 2 else image
    array = np.array(image)
    if array.dtype.kind not in "uifb":
        raise DataError(f"{where}: a {type(image).__name__} is no image.")
    tensor = torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))
    if tensor.dim() == 3 and tensor.shape[2] in (1, 3) and tensor.shape[0] not in (1, 3):
        tensor = tensor.permute(2, 0, 1)
    return tensor[None] if tensor.dim() == 2 else tensor


def _label(label: Any, where: str) -> object:
    alone = isinstance(label, Tensor | np.generic | np.ndarray) and np.prod(label.shape, dtype=int) == 1
    value = label.item() if alone else label
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise DataError(f"{where}: a label must be a whole number or a name, got {type(value).__name__}.")
    return value


def _class_names(data: Any) -> list[str]:
    """What `torchvision` calls the classes that its labels number; a part of a data set asks the whole."""
    while not hasattr(data, "classes") and hasattr(data, "dataset"):
        data = data.dataset
    names = getattr(data, "classes", None)
    return list(map(str, names)) if isinstance(names, Sequence) and not isinstance(names, str) else []
