"""Run folders with a damaged file, and checkpoints that are whole but hold something else."""

from __future__ import annotations

import copy
import io
import json
import os
import random
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load

from ffebm.experiment.classifier import predict_images
from ffebm.experiment.environment import describe_environment
from ffebm.experiment.evaluation import evaluate_run
from ffebm.experiment.final_check import check_run
from ffebm.experiment.packing import packed
from ffebm.experiment.report import write_report
from ffebm.experiment.reproduction.static import Layer, Static, read_analyses, save_static
from ffebm.experiment.run import Run, read_checkpoint
from ffebm.experiment.sealed import seal
from ffebm.experiment.settings import settings_from
from ffebm.experiment.trained import load_trained
from ffebm.experiment.training import resume, train
from hostile import Attack, mutated

SETTINGS = {
    "sweeps": "calibrated",
    "model": {"channels": [4, 4, 4], "pooled": [2], "split": 2},
    "relaxation": {"steps": 4},
    "gradient": {"steps": 2},
    "hardware": {"adc_bits": 10},
    "trainer": {"epochs": 2, "batch": 480, "test_batch": 360, "threads": 1, "accelerator": "cpu", "checkpoint_every": 2},
}
CSV = ("metrics.csv", "fidelity.csv")
FILES = ("settings.toml", *CSV, "environment.json", "data.json", "weights.safetensors", "static.json", "final.json")


def attacks(chance: random.Random, folder: Path) -> Iterator[Attack]:
    """Files of a run folder, one damaged at a time, and everything that reads them."""
    sound = _trained(folder)
    picture = folder / "picture.png"
    Image.new("L", (8, 8)).save(picture)
    while True:
        name = chance.choice((*FILES, "checkpoints"))
        use = chance.choice((_evaluate, _report, partial(_predict, picture)) if name != "checkpoints" else (_resume, _weights))
        if name in ("environment.json", "settings.toml", *CSV) and chance.random() < 0.2:
            use = _resume
        yield partial(_try, sound, folder / "tried", name, chance.getrandbits(64), use)


def checkpoint_attacks(chance: random.Random, folder: Path) -> Iterator[Attack]:
    """Checkpoints of the right format with the wrong content: lost, renamed, of another type, size or value."""
    sound = _trained(folder)
    content = read_checkpoint(Run(sound).checkpoints()[0])
    places = list(_places(content))
    while True:
        chance.shuffle(places)
        for place in places:
            changed = copy.deepcopy(content)
            _change(changed, place, chance, (*VALUES, (1,), *TENSORS))
            yield partial(_go_on, sound, folder / "tried", packed(changed))


def _trained(folder: Path) -> Path:
    """A run of six steps, whose last checkpoint is at its end."""
    train(settings_from(SETTINGS), Run.create(folder / "sound", ""), _quiet())
    layer = Layer("blocks.0.weight", 1, 0.9995, 0.01, [[0.0], [0.1]], [[0.0], [0.1]])
    check_run(Run(folder / "sound"))
    save_static(Static("a net", "noise", 0.02, 1, "15 sweeps", [layer], describe_environment(0)), folder / "sound")
    return folder / "sound"


def _quiet() -> Console:
    return Console(file=io.StringIO())


def _try(sound: Path, folder: Path, name: str, seed: int, use: Any) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sound, folder)
    chance = random.Random(seed)
    path = chance.choice(sorted((folder / name).iterdir())) if name == "checkpoints" else folder / name
    content = path.read_bytes()
    path.unlink()
    match chance.randrange(12):
        case 0:
            path.mkdir()
        case 1:
            os.mkfifo(path)
        case 2:
            path.symlink_to(path)
        case 3:
            path.write_bytes(b"")
        case 4:
            path.write_bytes(chance.randbytes(chance.randrange(2000)))
        case 5:
            pass  # lost
        case 6:
            path.write_bytes(b"[" * 200_000)
        case 7 | 8 | 9:
            path.write_bytes(_forged(path.suffix, content, chance))
        case _:
            path.write_bytes(mutated(content, chance))
    use(Run(folder))


def _forged(suffix: str, content: bytes, chance: random.Random) -> bytes:
    """The same format, checksum and all, with something else in one place."""
    if suffix == ".json":
        found = json.loads(content)
        _change(found, chance.choice(list(_places(found))), chance, VALUES)
        return json.dumps(found).encode()
    if suffix == ".safetensors" and b'"structure"' not in content[:5000]:
        tensors = load(content)
        name = chance.choice(list(tensors))
        kinds = (torch.float8_e4m3fn, torch.float64, torch.bool, torch.complex64, torch.int8, torch.bfloat16)
        match chance.randrange(4):
            case 0:
                tensors[name] = tensors[name].to(chance.choice(kinds))
            case 1:
                tensors[name] = tensors[name] * chance.choice((1e10, 1e20, 3e38, -1, 0))
            case 2:
                tensors[name] = tensors[name][:0] if tensors[name].dim() else tensors[name]
            case _:
                tensors[f"{name}.more"] = tensors.pop(name)
        return seal(tensors)
    return mutated(content, chance)


def _evaluate(run: Run) -> None:
    evaluate_run(Run.open(run.folder))


def _predict(picture: Path, run: Run) -> None:
    predict_images(Run.open(run.folder), [picture])


def _report(run: Run) -> None:
    analyses, _ = read_analyses([run.folder / "static.json"])
    write_report(run.folder / "report", "Runs", runs=[run, Run(run.folder.parent / "sound")], static=analyses)
    assert "sound" in (run.folder / "report" / "report.md").read_text(), "the rest of the table is lost"


def _resume(run: Run) -> None:
    """Whichever checkpoint it goes on from, one thread ends with the bits of a run that nobody touched."""
    settings = Run(run.folder.parent / "sound").settings()
    resume(Run.open(run.folder), _quiet())
    if run.settings() == settings:
        one, other = (load_trained(Run(run.folder.parent / name))[0].state_dict() for name in ("sound", run.folder.name))
        assert all(torch.equal(one[name], other[name]) for name in one), "other weights came of it, without a word"


def _weights(run: Run) -> None:
    """Without weights, those of a checkpoint are used."""
    run.weights_file.unlink()
    _evaluate(run)


def _go_on(sound: Path, folder: Path, content: bytes) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sound, folder)
    Run(folder).checkpoints()[0].write_bytes(content)
    Run(folder).weights_file.unlink()
    _resume(Run(folder))


def _places(content: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if place:
        yield place
    if isinstance(content, dict | list):
        for key in content if isinstance(content, dict) else range(len(content)):
            yield from _places(content[key], (*place, key))


TENSORS = (
    *(torch.zeros(()), torch.zeros(3, 3), torch.full((2,), torch.nan), torch.zeros(0), torch.ones(1, dtype=torch.bool)),
    *(torch.zeros(2, dtype=torch.complex64), torch.zeros(1, 10, dtype=torch.bfloat16)),
)
VALUES = (
    *(None, True, -1, 0, 1, 10**15, 10**400, 0.5, -1e300, 1e-320, float("nan"), float("inf"), "", "x" * 1000, [], [[]], {}),
    *({"x": 1}, "`" + "x" * 5000, "_" * 5000 + "x", "<a href=x>", "\x1b[31m", "\ud800", [0] * 5000, [[1.0], [1.0, 2.0]]),
)


def _change(content: Any, place: tuple[Any, ...], chance: random.Random, values: Sequence[Any]) -> None:
    *above, last = place
    for key in above:
        content = content[key]
    if isinstance(content, list) or chance.random() < 0.6:
        content[last] = chance.choice(values)
    elif chance.random() < 0.5:
        del content[last]
    else:
        content["renamed"] = content.pop(last)
