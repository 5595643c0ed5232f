"""A trained model on the whole test set."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.progress import track

from ffebm.checks import brief_name
from ffebm.experiment.data import Batches, Dataset, Description, Wishes, find_given, is_own_place, load_for
from ffebm.experiment.files import read_regular, write_atomically
from ffebm.experiment.run import LARGEST, Run
from ffebm.experiment.sealed import digest
from ffebm.experiment.settings import Settings
from ffebm.experiment.trained import finite, load_trained, usable
from ffebm.experiment.zoo import is_in_zoo
from ffebm.model import FFEBM, per_sample_losses

__all__ = ["Evaluation", "draw_confusions", "evaluate", "evaluate_run", "evaluation_of", "is_up_to_date", "out_of_date"]
__dir__ = __all__.copy

FILE = "evaluation.json"


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
    own_data: bool = True  # whether these were the test images of the run, rather than others
    checksum: str = ""  # of the weights
    fingerprint: str = ""  # of the test images and their labels


def evaluate_run(
    run: Run, root: Path | None = None, console: Console | None = None, *, data: Any = None, drawn: bool = True
) -> Evaluation:
    """Evaluate the weights of a run; writes `evaluation.json` and `confusion.png` beside them, but nothing into the zoo.

    The test images are those that the run tested on. Of other data all are, but for what is in a part for training.

    Args:
        root: where the data lies now, if not where it was, or other images of the same classes.
        data: what a program hands over in place of files, as `train` takes it, or others of the same classes.
        drawn: whether to draw `confusion.png`, too; else that is left to `draw_confusions`.
    """
    settings, known = run.settings(), run.description()
    dataset = _dataset(settings, known, root, data)
    own = (data is None and is_own_place(settings.data, root)) or dataset.fingerprint == known.fingerprint != ""
    model, source = load_trained(run, dataset.description)
    checksum = digest(model.state_dict(), {})
    with usable(run):
        found = evaluate(model, dataset, settings.trainer.test_batch, run.folder.name, source, console)
    found = replace(found, own_data=own, checksum=checksum)
    if not is_in_zoo(run.folder):
        write_atomically(run.folder / FILE, json.dumps(asdict(found), indent=1).encode())
        if drawn:
            draw_confusions(run, found)
    return found


def _dataset(settings: Settings, known: Description, root: Path | None, data: Any) -> Dataset:
    """Images and classes as the run knows them."""
    if data is None:
        return load_for(settings.data, root, known)
    wishes = Wishes.of(settings.data).for_model(known)
    return find_given(data, wishes).for_model(known, wishes)


def draw_confusions(run: Run, found: Evaluation) -> None:
    """Write `confusion.png` into the folder of a run."""
    from ffebm.experiment.figures import confusion_figure, picture  # which loads matplotlib, for most of a second

    title = f"{run.folder.name}: {100 * found.top1:.2f} % of {found.images:,} test images"
    figure = confusion_figure(torch.tensor(found.confusion).numpy(), list(found.classes), title)
    write_atomically(run.folder / "confusion.png", picture(figure))


def evaluation_of(run: Run) -> Evaluation | None:
    """What `evaluate_run` wrote, if it did.

    Raises:
        ValueError: it is damaged.
    """
    try:
        found = TypeAdapter(Evaluation).validate_json(read_regular(run.folder / FILE, LARGEST), strict=True)
        classes = len(found.classes)
        if len(found.confusion) != classes or any(len(row) != classes for row in found.confusion):
            raise ValueError("its table has another size than there are classes")
        return found
    except FileNotFoundError:
        return None
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(brief_name(f"{'.'.join(map(str, first['loc']))}: {first['msg']}", 200)) from None
    except OSError as error:
        raise ValueError(str(error)) from None


def out_of_date(run: Run, found: Evaluation) -> str:
    """Why an evaluation does not speak of a run as it is now; nothing, where it does.

    Raises:
        RunError: the run has no sound weights.
    """
    if not found.own_data:
        return "it was of other images than the run's own"
    if found.checksum != digest(run.weights()[0], {}):
        return "it was of other weights than the run has now"
    return ""


def is_up_to_date(run: Run) -> bool:
    """Whether there is an evaluation that speaks of a run as it is now."""
    try:
        found = evaluation_of(run)
    except ValueError:
        return False
    return found is not None and not out_of_date(run, found)


@torch.no_grad()
def evaluate(
    model: FFEBM, dataset: Dataset, batch: int, name: str = "", source: str = "", console: Console | None = None
) -> Evaluation:
    model = model.eval().to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    batches = Batches(dataset, dataset.test, batch)
    losses, ranks, guesses = [], [], []
    for x, y, _ in track(batches, "Testing", total=len(batches), console=console, transient=True, disable=console is None):
        logits = finite(model(x.to(memory_format=torch.channels_last)).logits)
        losses.append(per_sample_losses(model.criterion, logits, y))
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
        fingerprint=dataset.test.fingerprint,
    )
