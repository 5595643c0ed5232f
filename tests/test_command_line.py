"""The command `ffebm`, as a person types it."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.main import get_command
from typer.testing import CliRunner

from ffebm.experiment import command_line
from ffebm.experiment.command_line.console import print_json
from ffebm.experiment.command_line.training import _follow
from ffebm.experiment.errors import UserError
from ffebm.experiment.report import write_report
from ffebm.experiment.report.document import Picture
from ffebm.experiment.run import Run, resume_command
from ffebm.experiment.tables import titled
from ffebm.experiment.training import Learner, Stopped
from ffebm.experiment.training.progress import fitting
from test_data import write_cifar10

TINY = [
    "model.channels=[4, 4]",
    "model.pooled=[]",
    "relaxation.steps=3",
    "gradient.steps=2",
    "trainer.epochs=1",
    "trainer.batch=256",
    "trainer.accelerator=cpu",
    "trainer.threads=1",
]


def call(*arguments: str | Path) -> str:
    """What the command prints, in this process; errors are raised."""
    result = CliRunner().invoke(command_line.app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def shell(*arguments: str | Path, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "ffebm", *map(str, arguments)]
    result = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200", **environment}, timeout=300
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command_line.notes, "width", 200)
        call("train", *TINY, "--output", folder)
    return folder


COMMANDS = [
    (),
    ("train",),
    ("evaluate",),
    ("predict",),
    ("report",),
    ("reproduce",),
    ("reproduce", "static"),
    ("reproduce", "split"),
    ("reproduce", "scaling"),
    ("bench",),
    ("circuit",),
    ("circuit", "export"),
    ("circuit", "check"),
    ("presets",),
    ("settings",),
    ("data",),
    ("data", "check"),
    ("data", "fetch"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_of_every_command_has_examples(command: tuple[str, ...]) -> None:
    shown = call(*command, "--help")
    if command not in ((), ("circuit",), ("data",), ("reproduce",)):
        assert "Examples" in shown
        assert f"ffebm {' '.join(command)}" in shown.split("Examples")[1]


def test_help_shows_its_brackets() -> None:
    """Rich takes words in brackets for colours, unless they are escaped."""

    def leaves(command: Any) -> Iterator[Any]:
        for each in getattr(command, "commands", {}).values():
            yield from leaves(each)
        yield command

    commands = list(leaves(get_command(command_line.app)))
    assert len(commands) > 12
    for command in commands:
        for words in filter(None, [command.help, *(getattr(parameter, "help", None) for parameter in command.params)]):
            assert Text.from_markup(words).plain == words.replace("\\[", "["), words
    assert "[parts]" in call("--help")
    assert "[KEY=VALUE]" in call("reproduce", "split", "--help")


def test_it_says_which_version_it_is() -> None:
    assert call("--version") == f"ffebm {version('ffebm')}\n"


def test_titles_and_notes_are_as_wide_as_they_are() -> None:
    console = Console(width=60, file=io.StringIO())
    table = Table("a", "b")
    console.print(titled("what stands over a narrow table [5]", table, "and what stands below it"))
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert lines[0] == "what stands over a narrow table [5]"
    assert lines[-1] == "and what stands below it"


def test_a_profile_has_no_room_in_json() -> None:
    with pytest.raises(UserError, match="--profile shows tables, which --json has no room for"):
        call("bench", "--profile", "--json")


def test_shells_complete_commands_and_options() -> None:
    def completed(*words: str) -> list[str]:
        asked = {"_FFEBM_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
        command = Path(sys.executable).with_name("ffebm")
        return subprocess.run([command], env={**os.environ, **asked}, capture_output=True, text=True).stdout.split()

    assert completed("ffebm", "ev") == ["evaluate"]
    assert "cifar10-small" in completed("ffebm", "train", "cifar10-s")


def test_a_dry_run_shows_the_model_and_the_time_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = call("train", "--dry-run", *TINY)
    assert re.search(r"block 1 +4×8×8, 4×8×8 +148 ", shown)
    assert re.search(r"6 steps of [\d.]+ s in 1 epochs.*about .* in one process on this machine", " ".join(shown.split()))
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match="--dry-run is of a run that has not begun"):
        call("train", "--dry-run", "--output", "runs/x")


def test_quiet_training_says_what_came_of_it_alone(tmp_path: Path) -> None:
    done = shell("train", "--quiet", *TINY, "--output", tmp_path / "run")
    assert done.stderr == ""
    assert "test accuracy" in done.stdout
    wrong = shell("train", "-q", "trainer.epochs=x", code=1)
    assert "Error:" in wrong.stderr


@pytest.mark.parametrize("columns", [80, 120])
def test_lines_fit_a_terminal_and_are_one_an_epoch_where_there_is_none(columns: int) -> None:
    parts = [
        "epoch 10/10: loss 0.123, 99.9 %",
        "test 0.123, 99.99 %",
        "1,234/s",
        "0:12:34",
        "residual 1e-03",
        "contraction 0.35",
    ]
    assert len(fitting(parts, columns)) <= columns
    assert fitting(parts, 80).endswith("0:12:34")
    assert fitting(parts, None) == " · ".join(parts)


def test_json_has_null_for_what_is_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"rows": [{"cosine": float("nan"), "ratio": float("inf"), "calls": (1, 2.5)}]})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "rows": [{"cosine": None, "ratio": None, "calls": [1, 2.5]}]
    }


def test_json_is_for_programs(run: Path, tmp_path: Path) -> None:
    assert json.loads(call("evaluate", run, "--json")) == json.loads((run / "evaluation.json").read_text())
    presets = json.loads(call("presets", "--json"))
    assert presets["cifar10-l12-bs2"]["model"]["split"] == 2
    found = json.loads(call("data", "check", write_cifar10(tmp_path), "--json"))
    assert found["mnist"]["state"] == "absent"
    assert found["cifar10"]["state"] == "partial"


@pytest.mark.parametrize("command", ["evaluate", "predict", "export", "train"])
def test_what_is_missing_is_said_before_torch_is_loaded(command: str, tmp_path: Path) -> None:
    arguments = {"predict": ["predict", tmp_path, "x.png"], "export": ["export", tmp_path, "x.onnx"]}
    arguments |= {"evaluate": ["evaluate", tmp_path], "train": ["train", "cifar10-small", "--data", tmp_path / "none"]}
    code = f"import sys\nsys.argv = {['ffebm', *map(str, arguments[command])]!r}\n"
    code += "from ffebm.experiment.command_line import main\ntry:\n    main()\nfinally:\n    assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "is no run folder" in done.stderr or "does not exist" in done.stderr
    assert "Assertion" not in done.stderr


def test_using_a_model_loads_no_trainer(run: Path) -> None:
    code = f"import sys\nsys.argv = ['ffebm', 'evaluate', {str(run)!r}]\n"
    code += "from ffebm.experiment.command_line import main\nmain()\n"
    code += "assert not {'lightning', 'tensorboard', 'sklearn', 'torch._dynamo'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_help_needs_no_torch() -> None:
    code = "import sys; sys.argv = ['ffebm', '--help']\nfrom ffebm.experiment.command_line import app\n"
    code += "try:\n    app()\nfinally:\n    assert not {'torch', 'lightning', 'matplotlib', 'sklearn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_presets_are_listed_and_printed() -> None:
    shown = call("presets")
    for expected in ("cifar10-l12-bs2", "91.7 ± 0.2", "imagenet32-l15", "15 = 7 × 2 + 1", "70.0 ± 0.2"):
        assert expected in shown
    assert 'name = "cifar100"' in call("presets", "cifar100-l15")
    narrow = shell("presets", COLUMNS="40").stdout  # to a pipe, which is as wide as it must be
    rows = narrow[: narrow.index("Sweeps:")]
    assert "91.7 ± 0.2" in rows
    assert "…" not in narrow
    assert max(map(len, rows.splitlines())) <= 80, "and a usual terminal has room for it"


def test_settings_are_explained() -> None:
    assert "learning_rate" in call("settings", "optimiser")


def test_training_prints_its_results_and_the_command_that_repeats_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = call("train", *TINY)
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("digits-")
    for expected in ("test accuracy", f"runs/{folder.name}", f"ffebm train runs/{folder.name}/settings.toml"):
        assert expected in shown
    assert Run.open(folder).settings().trainer.epochs == 1
    again = call("train", f"runs/{folder.name}/settings.toml", "--output", "runs/again")
    pattern = r"test accuracy\s+│ ([\d.]+)"
    assert re.findall(pattern, again) == re.findall(pattern, shown)


def test_evaluation_is_of_the_whole_test_set(run: Path) -> None:
    shown = call("evaluate", run)
    found = json.loads((run / "evaluation.json").read_text())
    assert found["images"] == 360
    assert np.array(found["confusion"]).sum() == 360
    assert found["top1"] == pytest.approx(np.trace(found["confusion"]) / 360)
    assert found["top1"] == pytest.approx(Run(run).metrics()[-1]["test_accuracy"], rel=1e-5)
    assert found["loss"] == pytest.approx(Run(run).metrics()[-1]["test_loss"], rel=1e-5)
    assert found["top5"] == pytest.approx(Run(run).metrics()[-1]["test_top5"], rel=1e-5)
    accuracies = np.diag(found["confusion"]) / np.sum(found["confusion"], axis=1)
    assert list(found["classes"].values()) == pytest.approx(list(accuracies))
    assert f"{100 * found['top1']:.2f} %" in shown
    assert (run / "confusion.png").read_bytes().startswith(b"\x89PNG")


def test_a_report_of_one_run_has_a_picture_of_its_confusions(run: Path, tmp_path: Path) -> None:
    call("evaluate", run)
    found = write_report(tmp_path / "report", "Mine", runs=[Run.open(run)])
    (confusions,) = (part for part in found.sections[0].parts if isinstance(part, Picture))
    assert "360 test images" in confusions.title
    assert confusions.content.startswith(b"\x89PNG")


def test_evaluation_falls_back_on_a_checkpoint(run: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(run, tmp_path / "copy")
    (tmp_path / "copy" / "weights.safetensors").unlink()
    assert (
        "step-"
        in json.loads(call("evaluate", tmp_path / "copy") and (tmp_path / "copy" / "evaluation.json").read_text())["weights"]
    )


def test_prediction_agrees_with_the_model(run: Path, tmp_path: Path) -> None:
    from ffebm.experiment.data import digits
    from ffebm.experiment.trained import load_trained

    data = digits()
    model, _ = load_trained(Run(run))
    probabilities = model.eval()(data.normalise(data.test.x[:2])).logits.softmax(1)
    paths = [tmp_path / "a.png", tmp_path / "b.png"]
    for path, image in zip(paths, data.test.x, strict=False):
        Image.fromarray(image[0].numpy()).save(path)
    shown = call("predict", run, *paths, "--top", "1")
    for row in probabilities:
        assert f"{100 * row.max():.1f} %" in shown


def test_pictures_of_any_size_and_colour_are_taken(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Image.new("RGBA", (40, 30), "red").save(tmp_path / "a.png")
    Image.new("CMYK", (9, 80)).save(tmp_path / "b.jpg")
    shown = call("predict", run, "a.png", "b.jpg")
    assert "a.png" in shown
    assert "b.jpg" in shown


def test_pictures_of_16_bits_are_scaled_and_transparent_ones_are_white(tmp_path: Path) -> None:
    """16 bits are scaled, not clipped; what is transparent is white."""
    from ffebm.experiment.pictures import read_image

    grey = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
    Image.fromarray(grey).save(tmp_path / "8.png")
    Image.fromarray(grey.astype(np.uint16) * 257).save(tmp_path / "16.png")
    shallow, deep = (read_image(tmp_path / f"{bits}.png", (1, 8, 8)) for bits in (8, 16))
    assert torch.equal(shallow, deep)
    Image.new("RGBA", (8, 8), (0, 0, 0, 0)).save(tmp_path / "clear.png")
    assert (read_image(tmp_path / "clear.png", (3, 8, 8)) == 255).all()


def test_data_check_reports_partial_and_damaged_data(tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path)
    assert "partial" in call("data", "check", tmp_path)
    (folder / "test_batch").write_bytes(b"nothing")
    result = CliRunner().invoke(command_line.app, ["data", "check", str(tmp_path)])
    assert result.exit_code == 1
    assert "damaged" in result.output


def test_data_folders_come_from_the_option_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10(tmp_path, count=30)
    few = ["cifar10-l12-bs2", "model.width=0.02", *TINY[2:], "trainer.batch=50", "data.name=cifar10"]
    call("train", *few, "--data", tmp_path, "--output", tmp_path / "one")
    assert Run(tmp_path / "one").settings().data.root == tmp_path
    monkeypatch.setenv("FFEBM_DATA", str(tmp_path))
    call("train", *few, "--output", tmp_path / "two")
    assert call("evaluate", tmp_path / "two")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "modle.width=1"], "did you mean `model`?"),
        (["train", "cifar10"], "Unknown preset `cifar10`; did you mean"),
        (["train", "nothing.toml"], "no file nothing.toml"),
        (["train", "--resume", "nowhere"], "is no run folder"),
        (["train", "--resume", "nowhere", "seed=1"], "keeps its settings"),
        (["train", "cifar10-l12-bs2"], "Where is cifar10? "),
        (["train", "cifar10-l12-bs2", "--data", "nowhere"], "does not exist"),
        (["evaluate", "nowhere"], "is no run folder"),
        (["data", "check", "nowhere"], "no folder nowhere"),
        (["data", "fetch", "cifar10"], "Where to?"),
        (["data", "fetch", "mnits", "--data", "x"], "Unknown data set `mnits`"),
        (["settings", "foo"], "No setting has `foo` in its name"),
        (["settings", "x" * 1_000_000], "…xxx"),
        (["presets", "\udcff"], "Unknown preset `\\udcff`"),
        (["train", "/dev/zero"], "a device"),
        (["train", "model.width=\udcff"], "cannot be written as UTF-8"),
        (["train", "--output", "\udcff"], "cannot be written as UTF-8"),
        (["train", "--output", "~nosuchuser/x"], "there is no home folder ~nosuchuser"),
        (["train", "--data", "~nosuchuser"], "there is no home folder ~nosuchuser"),
        (["train", "--output", "x" * 100_000], "The system refused: File name too long: xxx"),
        (["train", "--data", "."], "The digits come with scikit-learn"),
        (["train", "data.root=/tmp"], "The digits come with scikit-learn"),
        (["bench", "--data", "."], "add --trained STEPS"),
        (["bench", "dense", "--trained", "5", "--data", "."], "add --trained STEPS and such a net"),
        (["bench", "conv12:inf"], "No net is called"),
        (["reproduce", "static", "--scale", "tiny", "--data", "."], "makes images of its own"),
        (["report", "x", "--no-microscope", "--data", "."], "are for the microscope"),
        (["report", "x", "--title", "\udcff"], "cannot be written as UTF-8"),
    ],
)
def test_mistakes_give_a_message_without_traceback(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FFEBM_DATA", raising=False)
    monkeypatch.setattr(sys, "argv", ["ffebm", *arguments])
    with pytest.raises(SystemExit) as stop:
        command_line.main()
    assert stop.value.code == 1
    shown = capfd.readouterr().err
    assert "Error:" in shown
    assert message in shown
    assert "Traceback" not in shown
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").rglob("settings.toml"))


def test_a_missing_home_folder_in_the_environment_variable_is_reported(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FFEBM_DATA", "~nosuchuser")
    for arguments in (["train", "cifar10-small"], ["data", "check"]):
        monkeypatch.setattr(sys, "argv", ["ffebm", *arguments])
        with pytest.raises(SystemExit):
            command_line.main()
        assert "The environment variable FFEBM_DATA is ~nosuchuser: there is no home folder" in capfd.readouterr().err


def test_a_data_folder_for_a_run_on_the_bundled_digits_is_refused(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for arguments in (["evaluate", run], ["report", run, "--output", tmp_path / "report"], ["train", "--resume", run]):
        monkeypatch.setattr(sys, "argv", ["ffebm", *map(str, arguments), "--data", str(tmp_path)])
        with pytest.raises(SystemExit, match="1"):
            command_line.main()
        assert "The digits come with scikit-learn" in capfd.readouterr().err


def test_a_report_of_damaged_weights_lacks_only_the_microscope(run: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(run, tmp_path / "broken")
    (tmp_path / "broken" / "weights.safetensors").write_bytes(b"nothing")
    call("report", tmp_path / "broken", run, "--output", tmp_path / "report")
    text = (tmp_path / "report" / "report.md").read_text()
    assert "broken could not be put under the microscope" in text
    assert "Top-1 accuracy" in text


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "x", "--sample", "1" + "0" * 30],
        ["report", "x", "--sample", "9" * 5000],
        ["predict", "x", "y", "--top", "1" + "0" * 30],
        ["reproduce", "static", "--seed", "1" + "0" * 30],
        ["bench", "--threads", "1000000"],
        ["train", "--" + "x" * 100_000],
        ["x" * 100_000],
    ],
    ids=lambda arguments: arguments[0][:10],
)
def test_huge_option_values_are_refused_with_a_short_message(arguments: list[str]) -> None:
    result = CliRunner().invoke(command_line.app, arguments, catch_exceptions=False)
    assert result.exit_code == 2
    assert len(result.output) < 3000


def test_arguments_that_are_not_utf8_are_shown_escaped(tmp_path: Path) -> None:
    """In a process of its own: names of files may be any bytes, and its streams are files."""
    for arguments, message in (
        ([b"train", b"\xff"], "Unknown preset"),
        ([b"predict", b"no\xffwhere", b"x"], "cannot be written"),
    ):
        done = subprocess.run([os.fsencode(sys.executable), b"-m", b"ffebm", *arguments], capture_output=True, cwd=tmp_path)
        assert done.returncode == 1
        assert message in done.stderr.decode()
        assert b"\\udcff" in done.stderr


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "The memory of this machine does not suffice"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "The memory of this machine does not suffice"),
        (RecursionError(), "nested too deep"),
        (OSError(28, "No space left on device", "x" * 10_000), "The system refused: No space left on device: xxx"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_lack_of_memory_or_disk_and_deep_nesting_are_reported_in_one_line(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(command_line, "app", fail)
    with pytest.raises(SystemExit):
        command_line.main()
    (line,) = capfd.readouterr().err.splitlines()
    assert message in line
    assert len(line) < 400


def test_programming_errors_are_not_turned_into_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("a mistake in the program")

    monkeypatch.setattr(command_line, "app", fail)
    with pytest.raises(RuntimeError, match="a mistake"):
        command_line.main()


def test_warnings_of_ffebm_are_shown_without_file_and_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import warnings

    from ffebm import UnsettledWarning

    def warn() -> None:
        warnings.simplefilter("always")
        warnings.warn("block 1 [of 2] has not settled", UnsettledWarning, stacklevel=1)
        warnings.warn("another", UserWarning, stacklevel=1)

    monkeypatch.setattr(command_line, "app", warn)
    command_line.main()
    first, *rest = capfd.readouterr().err.splitlines()
    assert first == "Warning: block 1 [of 2] has not settled"
    assert "test_command_line.py" in "".join(rest)


def test_unreadable_pictures_and_weights_are_reported(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import shutil

    broken = tmp_path / "broken"
    shutil.copytree(run, broken)
    (broken / "weights.safetensors").write_bytes(b"nothing")
    (tmp_path / "no.png").write_bytes(b"nothing")
    Image.new("L", (8, 8)).save(tmp_path / "yes.png")
    for arguments, message in (
        (["predict", run, tmp_path / "no.png"], "not a readable PNG or JPEG"),
        (["predict", run, tmp_path / "none.png"], "There is no file"),
        (["predict", broken, tmp_path / "yes.png"], "is damaged"),
        (["evaluate", broken], "is damaged"),
    ):
        monkeypatch.setattr(sys, "argv", ["ffebm", *map(str, arguments)])
        with pytest.raises(SystemExit):
            command_line.main()
        assert message in capfd.readouterr().err


def test_a_diverging_relaxation_is_reported_without_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["train", *TINY, "optimiser.learning_rate=1e6", "optimiser.kind=sgd", "trainer.epochs=5", "relaxation.steps=60"]
    monkeypatch.setattr(sys, "argv", ["ffebm", *arguments])
    with pytest.raises(SystemExit):
        command_line.main()
    shown = capfd.readouterr().err
    assert "Error:" in shown
    assert "learning" in shown
    assert "Traceback" not in shown


def test_a_run_stopped_by_sigterm_resumes_to_the_same_weights(tmp_path: Path) -> None:
    """A process of its own, stopped by SIGTERM and resumed, against one that was not: the same weights."""
    import signal

    settings = [*TINY, "trainer.epochs=4", "trainer.threads=1", "trainer.checkpoint_every=1000"]
    call("train", *settings, "--output", tmp_path / "whole")
    command = [sys.executable, "-m", "ffebm", "train", *settings, "--output", str(tmp_path / "stopped")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while not (tmp_path / "stopped" / "metrics.csv").exists():
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, shown = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM, shown
    assert f"ffebm train --resume {tmp_path / 'stopped'}" in shown.replace("\n", "")
    call("train", "--resume", tmp_path / "stopped")
    from safetensors.torch import load_file

    one, other = (load_file(tmp_path / name / "weights.safetensors") for name in ("whole", "stopped"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_command_to_go_on_with_stands_on_a_line_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    def stopped() -> Learner:
        raise Stopped(signal.SIGINT, "after step 7; nothing is lost")

    run = Run(tmp_path / "a-folder-with-a-name-that-is-longer-than-a-terminal-is-wide")
    with pytest.raises(typer.Exit):
        _follow(run, True, True, stopped)
    assert resume_command(run) in capsys.readouterr().err.splitlines()


def test_two_processes_train_like_one(tmp_path: Path) -> None:
    """The same batches, cut in two: the same loss curve, up to rounding."""
    settings = [
        *TINY,
        "sweeps=calibrated",
        "trainer.epochs=2",
        "model.batch_norm=off",
        "trainer.precision=64-true",
        "trainer.threads=1",
        "data.crop_padding=1",
    ]
    call("train", *settings, "--output", tmp_path / "one")
    shell("train", *settings, "trainer.devices=2", "--output", tmp_path / "two")
    one, two = (Run(tmp_path / name).metrics() for name in ("one", "two"))
    for a, b in zip(one, two, strict=True):
        for key in ("step", "train_loss", "train_accuracy", "test_loss", "test_accuracy", "residual", "free_sweeps"):
            assert a[key] == pytest.approx(b[key], rel=1e-5)  # as many digits as the file has
    assert not list((tmp_path / "two").rglob("*.part"))


POISONED = """
import os, sys, torch
from ffebm.experiment import command_line
from ffebm.experiment.training import Learner
original = Learner.training_step
def poisoned(self, batch, index):
    if os.environ["RANK"] == "1" and self.global_step == 3:
        with torch.no_grad():
            self.model.readout[1].weight.fill_(torch.nan)
    return original(self, batch, index)
Learner.training_step = poisoned
command_line.main()
"""


@pytest.mark.slow
def test_torchrun_starts_processes_that_fail_together(tmp_path: Path) -> None:
    """One of two gets a loss that is not finite: both stop, and say at which step."""
    script = tmp_path / "poisoned.py"
    script.write_text(POISONED)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script), "train"]
    settings = [*TINY, "trainer.devices=2", "trainer.threads=1", "--output", str(tmp_path / "run")]
    done = subprocess.run([*torchrun, *settings], capture_output=True, text=True, timeout=200)
    assert done.returncode != 0
    assert "The loss is not finite at step 4" in done.stderr
    wrong = subprocess.run([*torchrun, *TINY, "--output", str(tmp_path / "other")], capture_output=True, text=True, timeout=200)
    assert "2 processes were started, but the settings are for 1 devices" in wrong.stderr
    assert not (tmp_path / "other" / "settings.toml").exists()


@pytest.mark.slow
def test_a_run_killed_twenty_times_ends_in_the_same_weights() -> None:
    script = Path(__file__).parent.parent / "benchmarks" / "kill_and_resume.py"
    subprocess.run([sys.executable, script, "--kills", "20", "--seed", "1", "--no-result"], check=True, timeout=1500)
