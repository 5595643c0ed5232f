"""What a trained model sees in pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from ffebm.experiment.architectures import build_model
from ffebm.experiment.errors import UserError
from ffebm.experiment.run import Run

Guesses = list[tuple[str, float]]  # class and probability, the likeliest first


@torch.no_grad()
def predict_images(run: Run, paths: Sequence[Path], top: int = 3) -> list[tuple[Path, Guesses]]:
    settings = run.settings()
    known = run.description()
    model = build_model(settings, known.shape, len(known.classes))
    run.load_weights(model)
    images = torch.stack([read_image(path, known.shape) for path in paths])
    probabilities = model.eval()(known.normalise(images)).logits.softmax(1)
    best = probabilities.topk(min(top, len(known.classes)))
    return [
        (path, [(known.classes[i], p) for i, p in zip(indices.tolist(), values.tolist(), strict=True)])
        for path, indices, values in zip(paths, best.indices, best.values, strict=True)
    ]


def read_image(path: Path, shape: Sequence[int]) -> Tensor:
    """The middle square of a picture, scaled to the size and colours of a data set: bytes, (C, H, W)."""
    channels, height, width = shape
    try:
        with Image.open(path, formats=("PNG", "JPEG")) as image:
            picture = _opaque(image).convert("L" if channels == 1 else "RGB")
    except FileNotFoundError:
        raise UserError(f"There is no file {path}.") from None
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
        raise UserError(f"{path} is not a readable PNG or JPEG picture: {error}") from None
    side = min(picture.size)
    left, upper = (picture.width - side) // 2, (picture.height - side) // 2
    square = picture.crop((left, upper, left + side, upper + side)).resize((width, height), Image.Resampling.BOX)
    return torch.from_numpy(np.array(square).reshape(height, width, channels).transpose(2, 0, 1).copy())


def _opaque(image: Image.Image) -> Image.Image:
    """In 8 bits and without transparency, which shows white; Pillow's own conversion would clip the one, blacken the other."""
    if image.mode.startswith("I"):
        return Image.fromarray((np.asarray(image).astype(np.float64) / 257).clip(0, 255).astype(np.uint8))
    if "A" in image.getbands() or "transparency" in image.info:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    return image
