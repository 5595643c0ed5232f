"""Small pictures of three classes, each with a colour of its own: as files, arrays and tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import TensorDataset

CLASSES = ("cats", "dogs", "newts")
TINY = ["model.channels=[4, 4]", "model.pooled=[]", "model.split=2", "trainer.epochs=1", "trainer.batch=8", "trainer.threads=1"]


def picture(number: int, side: int = 12, grey: bool = False) -> Image.Image:
    generator = np.random.default_rng(number)
    array = generator.integers(0, 80, (side, side, 3), dtype=np.uint8)
    array[..., number % 3] += 120
    image = Image.fromarray(array)
    return image.convert("L") if grey else image


def pictures(root: Path, parts: dict[str, int], *, side: int = 12, grey: bool = False, suffix: str = "png") -> Path:
    """So many pictures of every class below every part; "" is the folder itself."""
    for part, count in parts.items():
        for label, name in enumerate(CLASSES):
            folder = root / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                picture(3 * number + label, side, grey).save(folder / f"{number}.{suffix}")
    return root


def arrays(count: int = 12) -> dict[str, np.ndarray]:
    labels = np.arange(count) % 3
    images = np.stack([np.asarray(picture(number)) for number in range(count)])
    return {"images": images, "labels": labels}


def tensors(count: int) -> TensorDataset:
    some = arrays(count)
    images = torch.from_numpy(some["images"]).permute(0, 3, 1, 2).float() / 255
    return TensorDataset(images, torch.from_numpy(some["labels"]))
