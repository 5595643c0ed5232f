"""Parts of one's own, named by settings: used everywhere where they are trusted, and imported nowhere else."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

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
from ffebm.experiment.report import look, write_report
from ffebm.experiment.settings import SettingsError
from ffebm.experiment.trained import load_trained

CODE = '''
"""Somebody's own parts."""

from pathlib import Path

import torch
from lightning.pytorch import Callback
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
'''
TINY = ["model.channels=[4, 4]", "model.pooled=[]", "trainer.epochs=1", "trainer.batch=200"]
MODULE = "somebodys_parts"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / f"{MODULE}.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop(MODULE, None)


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
        ("parts.logger=wandb", "which is not installed: `pip install wandb`"),
    ],
)
def test_what_is_no_part_is_explained(setting: str, words: str) -> None:
    found = invoke("--trust", "train", *TINY, setting, "--output", "run", "--quiet")
    assert re.search(words, str(found.exception)), found
