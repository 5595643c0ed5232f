"""Pictures, brought to the size and the colours of the images that a model was trained on."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from ffebm.checks import brief_name
from ffebm.experiment.errors import UserError
from ffebm.experiment.files import read_regular

T = TypeVar("T")

PIXELS = 40_000_000  # of a picture; a scanned page has 35 million
LARGEST, SCANS = 1 << 26, 1000  # bytes of its file, and what look like scans of a JPEG: a progressive one has ten


def read_image(path: Path, shape: Sequence[int]) -> Tensor:
    """The middle square of a picture, scaled to the size and colours of a data set: bytes, (C, H, W)."""
    return _opened(path, lambda image: fitted(image, shape))


def look(path: Path) -> tuple[tuple[int, int], bool]:
    """Width and height of a picture, and whether it is grey, of which its first bytes tell."""
    return _opened(path, lambda image: (image.size, image.mode in ("1", "L", "LA", "I", "I;16", "F")))


def _opened(path: Path, use: Callable[[Image.Image], T]) -> T:
    if not path.is_file():
        raise UserError(f"There is no file {brief_name(str(path), 200)}.")
    try:
        content = read_regular(path, LARGEST)
        if content.startswith(b"\xff\xd8") and content.count(b"\xff\xda") > SCANS:  # each goes through all pixels
            raise ValueError(f"it has more than {SCANS} scans")
        # From memory: a length in the file then makes no room for more than there is.
        # Pillow has remarks on odd pictures that it reads all the same.
        with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(content), formats=("PNG", "JPEG")) as image:
            if image.width * image.height > PIXELS:  # known before any of them is decoded
                raise ValueError(f"{image.width:,} × {image.height:,} pixels are more than {PIXELS:,}; scale it down")
            return use(image)
    except MemoryError:
        raise
    except Exception as error:  # what Pillow raises on damaged chunks has no common type
        reason = "this is neither" if isinstance(error, UnidentifiedImageError) else str(error)
        raise UserError(f"{brief_name(str(path), 200)} is not a readable PNG or JPEG picture: {reason}.") from None


def fitted(image: Image.Image, shape: Sequence[int]) -> Tensor:
    """The middle square of an image, scaled to a size and its colours: bytes, (C, H, W)."""
    channels, height, width = shape
    square = _opaque(_middle(image)).convert("L" if channels == 1 else "RGB")
    scaled = square.resize((width, height), Image.Resampling.BOX)
    return torch.from_numpy(np.array(scaled).reshape(height, width, channels).transpose(2, 0, 1).copy())


def _middle(image: Image.Image) -> Image.Image:
    side = min(image.size)
    left, upper = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, upper, left + side, upper + side))


def _opaque(image: Image.Image) -> Image.Image:
    """In 8 bits and without transparency, which shows white; Pillow's own conversion would clip the one, blacken the other."""
    if image.mode.startswith("I"):
        return Image.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8))
    if "A" in image.getbands() or "transparency" in image.info:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    return image
