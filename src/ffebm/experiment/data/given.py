"""Data that a program hands over: data sets of torch, or a data module of Lightning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from ffebm.experiment.data.dataset import Dataset, Samples
from ffebm.experiment.data.own import Wishes, as_bytes, check_classes, check_room, numbered, own_dataset
from ffebm.experiment.errors import DataError
from ffebm.experiment.places import GIVEN

MANY = 5000  # samples that take long enough for a bar
HOW = "Hand over a pair (training, test) of data sets, one data set, of which a part is set apart, or a Lightning data module."


def given_dataset(data: Any, wishes: Wishes = Wishes()) -> Dataset:
    """Images as bytes, and their labels, of whatever gives pairs of an image and a label.

    Args:
        data: a data set with a length, whose items are pairs; two of such, for training and for testing; or a
            `LightningDataModule`. Images are bytes, PIL pictures, or tensors between 0 and 1.
    """
    train, test = _parts(data)
    images, labels = _samples(train, "the training data")
    named = _class_names(train)
    tested = None if test is None else _samples(test, "the test data")
    numbers, classes = numbered(labels)
    check_classes(classes, list(map(str, tested[1])) if tested else [], "the data")
    of_test = None
    if tested is not None:
        places = {name: number for number, name in enumerate(classes)}
        of_test = Samples(tested[0], torch.tensor([places[str(label)] for label in tested[1]], dtype=torch.long))
    if named and all(name.isdecimal() and int(name) < len(named) for name in classes):
        classes = tuple(named[int(name)] for name in classes)
    return own_dataset(GIVEN, Samples(images, numbers), of_test, classes, wishes)


def _parts(data: Any) -> tuple[Any, Any]:
    if isinstance(data, tuple) and len(data) == 2:
        return data
    if hasattr(data, "train_dataloader"):
        return _of_module(data)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, str | bytes | dict):
        return data, None
    raise DataError(f"A {type(data).__name__} is no data that can be learnt from. {HOW}")


def _of_module(module: Any) -> tuple[Any, Any]:
    """The data sets behind the loaders of a Lightning data module, which itself says how they are brought."""
    module.prepare_data()
    module.setup("fit")
    module.setup("test")
    train, *tests = (getattr(module, f"{part}_dataloader") for part in ("train", "test", "val"))
    for loader in tests:
        try:
            found = loader()
        except Exception:  # Lightning's own default raises, and so may others
            continue
        if hasattr(found, "dataset"):
            return train().dataset, found.dataset
    return train().dataset, None


def _samples(data: Any, where: str) -> tuple[Tensor, list[object]]:
    if not len(data):
        raise DataError(f"There are no samples in {where}.")
    images: Tensor | None = None
    labels: list[object] = []
    console = Console(stderr=True)
    shown = track(_items(data), "Reading samples", len(data), console=console, transient=True, disable=len(data) < MANY)
    for number, item in enumerate(shown):
        if not isinstance(item, Sequence) or len(item) != 2:
            raise DataError(f"{where}: sample {number} is a {type(item).__name__}, not a pair of an image and a label. {HOW}")
        image = as_bytes(_tensor(item[0], f"{where}, sample {number}")[None], f"{where}, sample {number}")[0]
        if images is None:
            check_room(len(data), image.shape, where)
            images = torch.empty(len(data), *image.shape, dtype=torch.uint8)
        if image.shape != images.shape[1:]:
            raise DataError(
                f"{where}: sample {number} has the shape {tuple(image.shape)}, and the first one {tuple(images.shape[1:])}: "
                "bring them to one size, for example by `torchvision.transforms.Resize`."
            )
        images[number] = image
        labels.append(_label(item[1], f"{where}, sample {number}"))
    assert images is not None
    return images, labels


def _items(data: Any) -> Iterator[Any]:
    return (data[number] for number in range(len(data)))


def _tensor(image: Any, where: str) -> Tensor:
    """Channels first; pictures and arrays have them last."""
    if isinstance(image, Tensor):
        return image[None] if image.dim() == 2 else image
    array = np.array(image)
    if array.dtype.kind not in "uifb":
        raise DataError(f"{where}: a {type(image).__name__} is no image.")
    tensor = torch.from_numpy(array)
    if tensor.dim() == 3 and tensor.shape[2] in (1, 3) and tensor.shape[0] not in (1, 3):
        tensor = tensor.permute(2, 0, 1)
    return tensor[None] if tensor.dim() == 2 else tensor


def _label(label: Any, where: str) -> object:
    value = label.item() if isinstance(label, Tensor | np.generic) and getattr(label, "ndim", 0) == 0 else label
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise DataError(f"{where}: a label must be a whole number or a name, got {type(value).__name__}.")
    return value


def _class_names(data: Any) -> list[str]:
    """What `torchvision` calls the classes that its labels number."""
    names = getattr(data, "classes", None)
    return list(map(str, names)) if isinstance(names, Sequence) and not isinstance(names, str) else []
