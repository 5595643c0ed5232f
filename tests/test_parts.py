"""Parts of one's own, named by settings: used everywhere where they are trusted, and imported nowhere else."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner, Result

import ffebm
from ffebm.experiment import Run, evaluate_run, read_preset, resume, train
from ffebm.experiment.architectures import build_model
from ffebm.experiment.benchmark.command import of_run
from ffebm.experiment.classifier import Classifier, predict_images
from ffebm.experiment.command_line import app
from ffebm.experiment.errors import RunError, UserError
from ffebm.experiment.report import look, write_report
from ffebm.experiment.run import read_checkpoint, step_of
from ffebm.experiment.settings import SettingsError
from ffebm.experiment.trained import load_trained
from ffebm.experiment.training.resumable import Pattern, check_resumable

CODE = '''
"""Somebody's own parts."""

import datetime
from pathlib import Path

import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn

import ffebm

print("code that was run")


def model(settings, input_shape, classes):
    energy = ffebm.Hopfield([ffebm.Dense(12, 8)])
    stage = nn.Sequential(nn.Flatten(), nn.Linear(64, 12))
    block = ffebm.EnergyBlock(energy, max_contraction=0.4)
    return ffebm.FFEBM([stage], [block], nn.Linear(8, classes), input_shape=input_shape)


class Steeper(ffebm.Hopfield):
    """An energy that differs from the usual one."""


def estimator(settings):
    return ffebm.EquilibriumPropagation(ffebm.FixedPoint(4), beta=0.125)


fixed = ffebm.RecurrentBackprop(ffebm.FixedPoint(5))


def optimiser(parameters, settings):
    return torch.optim.RMSprop(parameters, settings.optimiser.learning_rate)


def groups(parameters, settings):
    """As is usual: no decay of biases."""
    kinds = [[p for p in parameters if (p.dim() > 1) == matrix] for matrix in (True, False)]
    return torch.optim.AdamW(
        [{"params": kinds[0], "weight_decay": 0.1}, {"params": kinds[1], "weight_decay": 0.0}], settings.optimiser.learning_rate
    )


def rate_of_its_own(parameters, settings):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def adagrad(parameters, settings):
    return torch.optim.Adagrad(parameters, lr=0.01)


def asgd(parameters, settings):
    return torch.optim.ASGD(parameters, lr=0.01)


class Late(torch.optim.SGD):
    """Remembers something from its third step on."""

    def step(self, closure=None):
        loss = super().step(closure)
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            state["steps"] = state.get("steps", 0) + 1
            if state["steps"] >= 3:
                state["slow"] = p.detach().clone()
        return loss


def late(parameters, settings):
    return Late(parameters, lr=0.01, momentum=0.9)


def lbfgs(parameters, settings):
    return torch.optim.LBFGS(parameters, lr=0.1)


class Counting(Callback):
    def __init__(self, settings):
        self.steps = 0

    def on_train_batch_end(self, trainer, *_):
        self.steps += 1
        Path(trainer.default_root_dir, "steps.txt").write_text(str(self.steps))

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


number = 3


def patient(settings):
    from somebodys_helper import PATIENCE  # found when training begins, too

    return EarlyStopping("epoch/test_loss", patience=PATIENCE, min_delta=100.0)


best = ModelCheckpoint(monitor="epoch/test_accuracy", mode="max", filename="best", dirpath="best")
confused = EarlyStopping("test_los")


class Plain(Callback):
    """A class that takes no settings."""


class Failing(Callback):
    def on_train_batch_end(self, *_):
        raise KeyError("lost")


class Dated(Callback):
    def state_dict(self):
        return {"when": datetime.date(2020, 1, 1)}


def raising(settings, input_shape, classes):
    raise ValueError("no such net")


def broken_optimiser(parameters, settings):
    raise RuntimeError("no such optimiser")


def too_many(settings, input_shape, classes):
    return ffebm.build(input_shape, [ffebm.DenseLayer(4)] * 2, 2, classes + 3)


class Faulty(ffebm.Hopfield):
    def forward(self, state, x):
        return state[0] @ nothing

    def drive(self, *_):
        return {}["drive"]
'''
TINY = ["model.channels=[4, 4]", "model.pooled=[]", "trainer.epochs=1", "trainer.batch=200"]
MODULE, HELPER = "somebodys_parts", "somebodys_helper"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / f"{MODULE}.py").write_text(CODE)
    (tmp_path / f"{HELPER}.py").write_text("PATIENCE = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())  # where parts are found stays there for the rest of a command
    yield
    for module in (MODULE, HELPER):
        sys.modules.pop(module, None)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_settings_that_name_code_are_refused_unless_trusted() -> None:
    refused = invoke("train", *TINY, f"parts.optimiser={MODULE}:optimiser", "--output", "run")
    assert isinstance(refused.exception, SettingsError)
    assert re.search(
        r"`parts.optimiser` names somebodys_parts:optimiser, code that would be run.*--trust", str(refused.exception)
    )
    assert MODULE not in sys.modules
    assert not Path("run").exists(), "nothing is left behind"


@pytest.mark.parametrize("command", ["evaluate", "report", "predict", "resume"])
def test_runs_with_parts_ask_for_trust_and_then_work_as_others(command: str) -> None:
    own = [f"parts.{kind}={MODULE}:{kind}" for kind in ("model", "optimiser")]
    done = invoke("--trust", "train", *TINY, *own, f'parts.callbacks=["{MODULE}:Counting"]', "--output", "run", "--quiet")
    assert done.exit_code == 0, done.output
    if command == "resume":
        arguments = ["train", "--resume", "run"]
    elif command == "predict":
        Image.new("L", (8, 8)).save("digit.png")
        arguments = ["predict", "run", "digit.png"]
    else:
        arguments = [command, "run"]
    if command != "report":  # which shows numbers, and needs no code for that
        assert isinstance(invoke(*arguments).exception, SettingsError)
    found = invoke(*arguments, "--trust")
    assert found.exit_code == 0, found.output
    assert Path("run/steps.txt").read_text() == "8"


def test_python_trusts_its_own_settings_and_a_run_with_parts_resumes_to_the_same_result() -> None:
    own = [f"parts.{kind}={MODULE}:{kind}" for kind in ("model", "optimiser")]
    settings = read_preset("digits", [*TINY, "trainer.epochs=2", *own, f'parts.callbacks=["{MODULE}:Counting"]'])
    whole = train(settings, Run(Path("whole")), quiet=True)
    half = settings.model_copy(update={"trainer": settings.trainer.model_copy(update={"checkpoint_every": 8, "keep": 100})})
    train(half, Run(Path("half")), quiet=True)
    last = max(Path("half/checkpoints").glob("*"), key=lambda path: int(re.findall(r"\d+", path.name)[-1]))
    last.unlink()
    resumed = resume(Run.open(Path("half"), trust=True), quiet=True)
    assert all(torch.equal(p, q) for p, q in zip(whole.model.parameters(), resumed.model.parameters(), strict=True))
    assert Path("half/steps.txt").read_text() == Path("whole/steps.txt").read_text() == "16"
    assert len(ffebm.load("whole", trust=True).predict(torch.zeros(1, 1, 8, 8, dtype=torch.uint8)).labels) == 1
    assert 0 <= evaluate_run(Run.open(Path("whole"), trust=True)).top1 <= 1


READERS: dict[str, Callable[[Run], object]] = {
    "load": lambda run: ffebm.load(run.folder, trust=run.trust),
    "from_pretrained": lambda run: Classifier.from_pretrained(run.folder, trust=run.trust),
    "load_trained": load_trained,
    "evaluate": evaluate_run,
    "resume": lambda run: resume(run, quiet=True),
    "predict": lambda run: predict_images(run, [Path("digit.png")]),
    "microscope": lambda run: look(run, images=8),
    "benchmark": lambda run: of_run(run, None, 4),
}


@pytest.fixture(scope="module")
def somebodys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run, to be had from anywhere, and its code."""
    folder = tmp_path_factory.mktemp("somebodys")
    (folder / f"{MODULE}.py").write_text(CODE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train(read_preset("digits", [*TINY, f"parts.model={MODULE}:model"]), Run(Path("run")), quiet=True)
    del sys.modules[MODULE]
    return folder / "run"


@pytest.mark.parametrize("reader", READERS)
def test_a_folder_from_elsewhere_runs_its_code_only_where_it_is_trusted(reader: str, somebodys: Path) -> None:
    Image.new("L", (8, 8)).save("digit.png")
    shutil.copytree(somebodys, "evil")
    with pytest.raises(SettingsError, match=rf"names {MODULE}:model, code that would be run.*trust=True"):
        READERS[reader](Run.open(Path("evil")))
    with pytest.raises(SettingsError, match="code that would be run"):  # nor by way of a copy of its settings
        build_model(Run(Path("evil")).settings().model_copy(update={"seed": 1}), (1, 8, 8), 10)
    assert MODULE not in sys.modules
    assert READERS[reader](Run.open(Path("evil"), trust=True)) is not None
    assert MODULE in sys.modules


def test_a_report_shows_a_run_from_elsewhere_without_its_code(somebodys: Path) -> None:
    write_report(Path("report"), "Somebody's", runs=[Run.open(somebodys)])
    assert "code that would be run" in Path("report/report.md").read_text()
    assert MODULE not in sys.modules


def test_a_program_may_use_what_it_has_trained() -> None:
    settings = read_preset("digits", [*TINY, f"parts.model={MODULE}:model"])
    learner = train(settings, Run(Path("mine")), quiet=True)
    assert evaluate_run(learner.run).images == 360


@pytest.mark.parametrize("own", ["groups", "rate_of_its_own", "adagrad", "asgd", "late"])
def test_runs_with_optimisers_of_every_kind_resume_to_the_same_bits(own: str) -> None:
    settings = read_preset("digits", [*TINY, "trainer.epochs=2", "trainer.checkpoint_every=2", "trainer.keep=100"])
    settings = settings.model_copy(update={"parts": settings.parts.model_copy(update={"optimiser": f"{MODULE}:{own}"})})
    whole = train(settings, Run(Path("run")), quiet=True)
    expected = [p.clone() for p in whole.model.parameters()]
    for path in Run(Path("run")).checkpoints():
        if step_of(path) > 6:
            path.unlink()
    resumed = resume(Run.open(Path("run"), trust=True), quiet=True)
    assert resumed.history[-1]["step"] == 16
    assert all(torch.equal(p, q) for p, q in zip(expected, resumed.model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda state: state["param_groups"].pop(), "other groups of parameters"),
        (lambda state: state["state"][0]["exp_avg"].fill_(torch.nan), "numbers that are not finite"),
    ],
)
def test_checkpoints_of_another_or_a_broken_optimiser_are_refused(damage: Callable[[dict[str, Any]], Any], words: str) -> None:
    settings = read_preset("digits", [*TINY, f"parts.optimiser={MODULE}:groups"])
    learner = train(settings, Run(Path("run")), quiet=True)
    content = read_checkpoint(Run(Path("run")).checkpoints()[0])
    check_resumable(content, learner, Pattern.of(learner))
    damage(content["optimizer_states"][0])
    with pytest.raises(RunError, match=words):
        check_resumable(content, learner, Pattern.of(learner))


def test_callbacks_watch_the_metrics_of_an_epoch() -> None:
    own = f'parts.callbacks=["{MODULE}:patient", "{MODULE}:best", "{MODULE}:Plain"]'
    done = invoke("--trust", "train", *TINY, "trainer.epochs=5", own, "--output", "run", "--quiet")
    assert done.exit_code == 0, done.output
    rows = Run(Path("run")).metrics()
    assert len(rows) == 2, "the second epoch is no better by a hundred"
    assert len(list(Path("best").iterdir())) == 1
    assert Path("run/curves.png").exists()
    resumed = invoke("--trust", "train", "--resume", "run", "--quiet")
    assert resumed.exit_code == 0, resumed.output


def test_energies_and_estimators() -> None:
    settings = read_preset("digits", [f"parts.energy={MODULE}:Steeper", f"parts.estimator={MODULE}:estimator"])
    model = build_model(settings, (1, 8, 8), 10)
    assert {type(block.energy).__name__ for _, block in model.chain} == {"Steeper"}
    assert {block.estimator.beta for _, block in model.chain} == {0.125}
    settings = read_preset("digits", [f"parts.estimator={MODULE}:fixed"])
    assert {block.estimator.relax.steps for _, block in build_model(settings, (1, 8, 8), 10).chain} == {5}


def test_a_csv_logger_beside_tensorboard() -> None:
    done = invoke("train", *TINY, "parts.logger=csv", "--output", "run", "--quiet")
    assert done.exit_code == 0, done.output
    assert "epoch/test_accuracy" in next(Path("run/csv").rglob("*.csv")).read_text()
    assert any(Path("run/tensorboard").rglob("events*"))


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("parts.model=mine", "string should match"),
        ("parts.model=os.path:", "string should match"),
        (f"parts.model={MODULE}:nothing", f"{MODULE} has no nothing"),
        ("parts.model=no_such_module:make", "there is no module no_such_module.*looked for in"),
        (f"parts.estimator={MODULE}:number", "which is a int and no GradientEstimator"),
        (f"parts.model={MODULE}:fixed", "which is a RecurrentBackprop and no FFEBM"),
        (f"parts.model={MODULE}:raising", r"`parts.model` \({0}:raising\) raised ValueError at {0}.py:\d+: no such net"),
        (f"parts.optimiser={MODULE}:broken_optimiser", r"`parts.optimiser` .* raised RuntimeError at {0}.py:\d+: no such opti"),
        (f"parts.optimiser={MODULE}:lbfgs", "a LBFGS asks for the loss of a batch as often as it likes"),
        (f"parts.model={MODULE}:too_many", "gives 13 numbers for an image, and the data has 10 classes"),
        (f"parts.energy={MODULE}:Faulty", r"`parts.energy` \({0}:Faulty\) raised KeyError at {0}.py:\d+: 'drive'"),
        (f'parts.callbacks=["{MODULE}:Failing"]', r"`parts.callbacks` \({0}:Failing\) raised KeyError at {0}.py:\d+: 'lost'"),
        (f'parts.callbacks=["{MODULE}:confused"]', r"`parts.callbacks` \({0}:confused\) raised RuntimeError .*test_los"),
        (f'parts.callbacks=["{MODULE}:Dated"]', "The callback Dated remembers what no checkpoint can hold.*got date"),
        (f"parts.model={MODULE}:asgd", r"cannot be called with 3 arguments: it takes \(parameters, settings\)"),
        ("parts.model=unreadable:model", r"`parts.model` \(unreadable:model\) raised SyntaxError at unreadable.py:2"),
        ("parts.model=incomplete:model", r"raised ModuleNotFoundError at incomplete.py:1: No module named 'not_there'"),
        ("parts.logger=wandb", "which is not installed: `pip install wandb`"),
    ],
)
def test_what_is_no_part_is_explained(setting: str, words: str) -> None:
    Path("unreadable.py").write_text("x = 1\ndef model(:\n")
    Path("incomplete.py").write_text("import not_there\n")
    found = invoke("--trust", "train", *TINY, setting, "--output", "run", "--quiet")
    assert isinstance(found.exception, UserError), found
    assert re.search(words.replace("{0}", MODULE), str(found.exception)), found
    begun = any(word in setting for word in ("Faulty", "Failing", "confused", "Dated"))
    assert Path("run").exists() == begun, "what could not begin leaves nothing behind"
