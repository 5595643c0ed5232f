"""A trained model with all that it takes to use it: from pictures to the names of classes."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from ffebm.checks import brief_name
from ffebm.experiment.data import Description
from ffebm.experiment.errors import UserError
from ffebm.experiment.pictures import fitted, read_image
from ffebm.experiment.run import Run, RunError
from ffebm.experiment.settings import Settings
from ffebm.experiment.trained import finite, load_trained, usable
from ffebm.experiment.zoo import located
from ffebm.model import FFEBM

__all__ = ["Classifier", "Guesses", "Picture", "Prediction", "predict_images"]
__dir__ = __all__.copy

Picture = Tensor | np.ndarray | Image.Image | str | Path
Guesses = list[tuple[str, float]]  # class and probability, the likeliest first


class Prediction(NamedTuple):
    """What a classifier sees in some images."""

    labels: list[str]  # the likeliest class of every image
    probabilities: Tensor  # (images, classes)
    classes: tuple[str, ...]

    def top(self, count: int = 3) -> list[Guesses]:
        """The likeliest classes of every image, with their probabilities."""
        best = self.probabilities.topk(min(count, len(self.classes)))
        rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [[(self.classes[i], p) for i, p in zip(indices, values, strict=True)] for indices, values in rows]


class Classifier(nn.Module):
    """A trained model that predicts; made by `ffebm.load`.

    Called as a module it takes images as `normalise` makes them, and returns logits, with gradients if wanted.

    Args:
        model: in any mode; it is put into evaluation mode.
        settings: what the run was asked for.
        description: shape of images, names of classes, mean and deviation of the data set.
    """

    def __init__(self, model: FFEBM, settings: Settings, description: Description) -> None:
        super().__init__()
        self.model = model
        self.settings = settings
        self.description = description
        self.eval()

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, trust: bool = False) -> Self:
        """From the folder of a run, one that `save_pretrained` wrote, or by the name of a model that `ffebm zoo` lists.

        Args:
            trust: whether code may be run that its settings name, as a model of somebody's own.
        """
        return cls.of(Run.open(located(Path(folder)), trust=trust))

    @classmethod
    def of(cls, run: Run) -> Self:
        """The model of a run."""
        description = run.description()
        model, _ = load_trained(run, description)
        return cls(model, run.settings(), description)

    def save_pretrained(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write settings, data.json and weights into a folder: all that `from_pretrained` and `ffebm predict` need.

        Args:
            overwrite: replace a model that was saved there. A folder that holds anything else stays as it is.
        """
        run = Run(Path(folder))
        taken = run.folder.exists() and (not run.folder.is_dir() or run.holds_something)
        if taken and not (overwrite and run.is_saved_model):
            instead = "Name another folder, or replace a saved model by `save_pretrained(folder, overwrite=True)`."
            instead = "It is no saved model, so it is not replaced: name another folder." if overwrite else instead
            raise RunError(f"{run.folder} exists already. {instead}")
        run.folder.mkdir(parents=True, exist_ok=True)
        self.settings.save(run.settings_file)
        run.save_description(self.description)
        run.save_weights(deepcopy(self.model).float())  # what such files hold, whatever it computes with now

    @property
    def classes(self) -> tuple[str, ...]:
        return self.description.classes

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one image: channels, height, width."""
        return self.description.shape

    def normalise(self, images: Tensor) -> Tensor:
        """Images as bytes, made what the model takes: numbers as precise as its own, of mean 0 and deviation 1, by channel."""
        return self.description.normalise(images).to(next(self.model.parameters()).dtype)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of images that are normalised."""
        return self.model(x).logits

    @torch.no_grad()
    def predict(self, images: Picture | Sequence[Picture]) -> Prediction:
        """Say what is in some images.

        Args:
            images: paths of PNG or JPEG files, Pillow images, or arrays of bytes: one, or several in a list. Tensors have
                channels first and arrays have them last; both may hold a whole batch. Pictures are scaled, arrays are not.
        """
        given = [images] if isinstance(images, Picture) else list(images)
        if not given:
            raise UserError("There is nothing to predict: the list of images is empty.")
        batch = torch.cat([_bytes(image, self.input_shape) for image in given])
        device = next(self.model.parameters()).device
        probabilities = finite(self(self.normalise(batch.to(device)))).float().softmax(1).cpu()
        labels = [self.classes[number] for number in probabilities.argmax(1).tolist()]
        return Prediction(labels, probabilities, self.classes)


def predict_images(run: Run, paths: Sequence[Path], top: int = 3) -> list[tuple[Path, Guesses]]:
    """What the model of a run sees in some files."""
    classifier = Classifier.of(run)
    images = [read_image(path, classifier.input_shape) for path in paths]
    with usable(run):
        return list(zip(paths, classifier.predict(images).top(top), strict=True))


def _bytes(image: Picture, shape: tuple[int, ...]) -> Tensor:
    """A batch of images, (N, C, H, W), of one or more that somebody has."""
    if isinstance(image, str | Path):
        return read_image(Path(image), shape).unsqueeze(0)
    if isinstance(image, Image.Image):
        return fitted(image, shape).unsqueeze(0)
    if not isinstance(image, Tensor | np.ndarray):
        raise UserError(
            f"An image is a path, a Pillow image, a tensor or an array of bytes, got a {brief_name(type(image).__name__, 60)}."
        )
    last = not isinstance(image, Tensor)
    tensor = torch.from_numpy(np.ascontiguousarray(image)) if last else image
    channels, height, width = shape
    one = (height, width, channels) if last else shape
    if channels == 1 and tuple(tensor.shape[-2:]) == (height, width) and tuple(tensor.shape[-3:]) != one:
        tensor = tensor.unsqueeze(-1 if last else -3)  # grey images need not say that they have one channel
    if tensor.dtype != torch.uint8 or tensor.dim() not in (3, 4) or tuple(tensor.shape[-3:]) != one:
        raise UserError(
            f"Images must be bytes of shape {one}, one or a batch of them, got {tensor.dtype} of shape {tuple(tensor.shape)}. "
            "Give paths or Pillow images to have them scaled; what is normalised already goes through the classifier itself."
        )
    batch = tensor.unsqueeze(0) if tensor.dim() == 3 else tensor
    return batch.permute(0, 3, 1, 2) if last else batch
