"""A trained model on the whole test set."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

from ffebm.experiment.data import Batches, Dataset, given_dataset, load_for
from ffebm.experiment.figures import confusion_figure, picture
from ffebm.experiment.files import write_atomically
from ffebm.experiment.run import Run
from ffebm.experiment.trained import finite, load_trained, usable
from ffebm.model import FFEBM


@dataclass(frozen=True)
class Evaluation:
    """What a model does with the test set; accuracies are shares of 1."""

    name: str
    weights: str  # the file they came from
    images: int
    loss: float
    top1: float
    top5: float
    classes: dict[str, float]  # accuracy on the images of each
    confusion: list[list[int]]  # images by true class (row) and predicted class (column)


def evaluate_run(run: Run, root: Path | None = None, console: Console | None = None, *, data: Any = None) -> Evaluation:
    """Evaluate the weights of a run; writes `evaluation.json` and `confusion.png` beside them.

    Args:
        root: where the data lies now, if not where it was.
        data: what a program hands over in place of files, as `train` takes it.
    """
    settings = run.settings()
    if data is None:
        dataset = load_for(settings.data, root, run.description())
    else:
        dataset = given_dataset(data).described_as(run.description())
    model, source = load_trained(run, dataset.description)
    with usable(run):
        evaluation = evaluate(model, dataset, settings.trainer.test_batch, run.folder.name, source, console)
    write_atomically(run.folder / "evaluation.json", json.dumps(asdict(evaluation), indent=1).encode())
    title = f"{run.folder.name}: {100 * evaluation.top1:.2f} % of {evaluation.images:,} test images"
    figure = confusion_figure(torch.tensor(evaluation.confusion).numpy(), dataset.classes, title)
    write_atomically(run.folder / "confusion.png", picture(figure))
    return evaluation


@torch.no_grad()
def evaluate(
    model: FFEBM, dataset: Dataset, batch: int, name: str = "", source: str = "", console: Console | None = None
) -> Evaluation:
    model = model.eval().to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    batches = Batches(dataset, dataset.test, batch)
    losses, ranks, guesses = [], [], []
    for x, y, _ in track(batches, "Testing", total=len(batches), console=console, transient=True, disable=console is None):
        logits = finite(model(x.to(memory_format=torch.channels_last)).logits)
        losses.append(torch.nn.functional.cross_entropy(logits, y, reduction="none"))
        # How many classes look likelier than the right one.
        ranks.append((logits > logits.gather(1, y.unsqueeze(1))).sum(1))
        guesses.append(logits.argmax(1))
    y, guess, rank = dataset.test.y, torch.cat(guesses), torch.cat(ranks)
    classes = len(dataset.classes)
    confusion = torch.bincount(y * classes + guess, minlength=classes**2).view(classes, classes)
    accuracies = (confusion.diagonal() / confusion.sum(1).clamp(min=1)).tolist()
    return Evaluation(
        name=name,
        weights=source,
        images=len(y),
        loss=finite(torch.cat(losses).mean()).item(),
        top1=(guess == y).double().mean().item(),
        top5=(rank < 5).double().mean().item(),
        classes=dict(zip(dataset.classes, accuracies, strict=True)),
        confusion=confusion.tolist(),
    )
