"""Pictures, brought to the size and the colours of the images that a model was trained on."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from ffebm.checks import brief_name
from ffebm.experiment.errors import UserError
from ffebm.experiment.files import read_regular

__all__ = ["fitted", "look", "read_image", "upright"]
__dir__ = __all__.copy

T = TypeVar("T")

PIXELS = 40_000_000  # of a picture; a scanned page has 35 million
LARGEST, SCANS = 1 << 26, 1000  # bytes of its file, and what look like scans of a JPEG: a progressive one has ten
GREY_MODES = ("1", "L", "LA", "I", "I;16", "F")
TURNED = (5, 6, 7, 8)  # orientations that swap width and height


def read_image(path: Path, shape: Sequence[int]) -> Tensor:
    """The middle of a picture, scaled to the size and colours of a data set: bytes, (C, H, W)."""
    return _opened(path, lambda image: fitted(image, shape))


def look(path: Path) -> tuple[tuple[int, int], bool]:
    """Width and height of a picture, and whether it is grey, of which its first bytes tell."""
    return _opened(path, lambda image: (_size(image), image.mode in GREY_MODES))


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
    """The middle of an image, upright, as wide and high as it can be for a size, scaled to that: bytes, (C, H, W)."""
    channels, height, width = shape
    middle = _opaque(_middle(upright(image), width, height)).convert("L" if channels == 1 else "RGB")
    scaled = middle.resize((width, height), Image.Resampling.BOX)
    return torch.from_numpy(np.array(scaled).reshape(height, width, channels).transpose(2, 0, 1).copy())


def upright(image: Image.Image) -> Image.Image:
    """As it is meant to be seen: cameras note how they were held, and leave the pixels as they came."""
    image.load()  # the note may come after the pixels
    return ImageOps.exif_transpose(image) if _orientation(image) > 1 else image  # which would copy all others


def _size(image: Image.Image) -> tuple[int, int]:
    """Width and height, once it is upright."""
    width, height = image.size
    return (height, width) if _orientation(image) in TURNED else (width, height)


def _orientation(image: Image.Image) -> int:
    """From 1, upright, to 8; as far as it is known by now: a PNG's own `getexif` would decode its pixels for a look."""
    try:
        found = Image.Image.getexif(image).get(ExifTags.Base.Orientation, 1)
    except MemoryError:
        raise
    except Exception:  # what a camera notes may be damaged where the picture is not; Pillow's errors have no common type
        return 1
    return found if found in range(1, 9) else 1


def _middle(image: Image.Image, width: int, height: int) -> Image.Image:
    """The largest part around the middle that has the same proportions."""
    scale = min(image.width / width, image.height / height)
    across, down = (max(1, round(scale * side)) for side in (width, height))
    left, upper = (image.width - across) // 2, (image.height - down) // 2
    return image.crop((left, upper, left + across, upper + down))


def _opaque(image: Image.Image) -> Image.Image:
    """In 8 bits and without transparency, which shows white; Pillow's own conversion would clip the one, blacken the other."""
    if image.mode.startswith("I"):
        return Image.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8))
    if "A" in image.getbands() or "transparency" in image.info:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    return image
