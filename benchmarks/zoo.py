"""Put finished runs into the zoo, or renew what is there: weights in half precision, with numbers from files alone.

Of a run, the other seeds that lie beside it are counted, too. The weights are measured as they are put there, on the test
images (`--data`, or FFEBM_DATA). All models together may take 2 MB.

    python benchmarks/zoo.py runs/digits-seed0 runs/split-converged/cifar10-l12-bs2-ep-seed0
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ffebm.experiment.data import load_for
from ffebm.experiment.evaluation import evaluate
from ffebm.experiment.files import write_json
from ffebm.experiment.kept import keep
from ffebm.experiment.run import Run
from ffebm.experiment.settings import Settings
from ffebm.experiment.trained import load_trained
from ffebm.experiment.zoo import FOLDER, NOTE, Entry

MOST_BYTES = 2 * 10**6
UNTOLD = ("--data", "--output")  # where it happened, with a folder behind them
SILENT = ("--quiet", "-q")


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--data", type=Path)
    chosen = parser.parse_args(given)
    for folder in chosen.runs:
        added = add(Run.open(folder), chosen.data)
        print(f"{added.name}: {100 * added.accuracy:.2f} %, {added.bytes:,} bytes, seeds {', '.join(added.seeds)}")


def add(run: Run, data: Path | None = None) -> Entry:
    """Put a run into the zoo; what it would not have room for leaves it as it was."""
    settings = run.settings()
    check(run, settings)
    folder = FOLDER / name_of(settings)
    staged = folder.with_name(f".{folder.name}")
    try:
        shutil.rmtree(staged, ignore_errors=True)
        kept = keep(run, staged)
        for numbers in ("metrics.csv", "environment.json", "final.json"):  # which the run itself keeps
            (staged / numbers).unlink(missing_ok=True)
        pin(kept)
        dataset = load_for(settings.data, data, run.description())
        found = evaluate(load_trained(kept, dataset.description)[0], dataset, settings.trainer.test_batch)
        (first, *_) = run.environments()
        entry = Entry(
            name=folder.name,
            description=settings.description,
            data=dataset.name,
            images=found.images,
            fingerprint=found.fingerprint,
            accuracy=found.top1,
            seed=settings.seed,
            seeds=accuracies(run, settings),
            epochs=settings.trainer.epochs,
            command=told(first["command"]),
            commit=str(first.get("commit", "")).partition("+")[0],
        )
        write_json(staged / NOTE, {key: value for key, value in asdict(entry).items() if key != "name"})
        check_room(staged, folder)
        shutil.rmtree(folder, ignore_errors=True)
        staged.rename(folder)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return entry


def check(run: Run, settings: Settings) -> None:
    """Refuse what has no accuracy that anybody could confirm."""
    if len(run.metrics()) < settings.trainer.epochs or not run.environments():
        raise SystemExit(f"{run.folder} is not finished, or does not say by which command it was made.")
    if settings.data.validation or settings.data.name in ("folder", "given") or settings.parts.named():
        raise SystemExit(f"{run.folder} was tested on images, or is made of parts, that others do not have.")


def pin(kept: Run) -> None:
    """Write down the feedback that was proposed: a later version may propose another, which does not suit these weights."""
    settings = kept.settings()
    if settings.model.feedback is not None:
        return
    (*values,) = {block.energy.feedback for _, block in load_trained(kept)[0].chain if len(block.energy.activations) > 1}
    if len(values) > 1:
        raise SystemExit(f"The blocks of {kept.folder} have several feedbacks, which settings cannot hold.")
    model = settings.model.model_copy(update={"feedback": values[0]}) if values else settings.model
    settings.model_copy(update={"model": model}).save(kept.settings_file)


def name_of(settings: Settings) -> str:
    """By data set, layers, size of blocks, width, and gradient where that is not EP: cifar10-l12-bs2-w8."""
    model = settings.model
    split = f"bs{model.split}" if isinstance(model.split, int) else "split" + "-".join(map(str, model.split))
    width = "" if model.width == 1 else f"-w{1 / model.width:g}"
    kind = "" if settings.gradient.kind == "ep" else f"-{settings.gradient.kind}"
    return f"{settings.data.name}-l{model.layers}-{split}{width}{kind}"


def accuracies(run: Run, settings: Settings) -> dict[str, float]:
    """After the last epoch, of every seed of the same recipe that lies beside the run."""
    found: dict[int, float] = {}
    for folder in sorted(run.folder.parent.glob(re.sub(r"seed\d+$", "seed*", run.folder.name))):
        other = Run(folder)
        if other.settings_file.is_file() and not other.damage():
            one, rows = other.settings(), other.metrics()
            same = one.recipe.model_copy(update={"seed": 0}) == settings.recipe.model_copy(update={"seed": 0})
            if same and len(rows) >= settings.trainer.epochs:
                found[one.seed] = rows[-1]["test_accuracy"]
    return {str(seed): found[seed] for seed in sorted(found)}


def told(command: Sequence[str]) -> str:
    """As anybody would type it: without where the data lay, and where the run went."""
    words = ["ffebm"]
    rest = iter(command[1:])
    for word in rest:
        if word in UNTOLD:
            next(rest, None)
        elif word not in SILENT:
            words.append(word)
    return shlex.join(words)


def check_room(staged: Path, replaced: Path) -> None:
    others = (path for path in FOLDER.glob("*/*") if path.parent not in (staged, replaced))
    taken = sum(path.stat().st_size for path in (*others, *staged.iterdir()))
    if taken > MOST_BYTES:
        raise SystemExit(f"The zoo would take {taken:,} bytes, and {MOST_BYTES:,} are the most: leave a model out.")


if __name__ == "__main__":
    main()
