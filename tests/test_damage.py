"""Run folders after a bad day: what is damaged is named, what is not is still used, and nothing wrong is shown as right."""

from __future__ import annotations

import copy
import io
import json
import os
import random
import re
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from markdown_it import MarkdownIt
from PIL import Image
from rich.console import Console

from ffebm.experiment.classifier import predict_images
from ffebm.experiment.data import digits
from ffebm.experiment.errors import Remark, UserError
from ffebm.experiment.evaluation import evaluate_run
from ffebm.experiment.packing import packed, unpacked
from ffebm.experiment.queue import Queue, Stage
from ffebm.experiment.report import write_report
from ffebm.experiment.report.document import Document, Section, Text
from ffebm.experiment.report.markdown import markdown
from ffebm.experiment.reproduction import EXPERIMENTS
from ffebm.experiment.reproduction.static import analyse_run, read_analyses
from ffebm.experiment.run import COLUMNS, Run, RunError, read_checkpoint
from ffebm.experiment.sealed import SealError, seal, unseal
from ffebm.experiment.settings import settings_from
from ffebm.experiment.trained import load_trained
from ffebm.experiment.training import Learner, preparing, resume, train
from ffebm.experiment.training.resumable import Pattern, check_resumable

SETTINGS = {
    "sweeps": "calibrated",
    "model": {"channels": [4, 4, 4], "pooled": [2], "split": 2},
    "relaxation": {"steps": 30},
    "gradient": {"steps": 2},
    "trainer": {"epochs": 2, "batch": 480, "test_batch": 360, "threads": 1, "accelerator": "cpu", "checkpoint_every": 2},
}


RESULTS = Path(__file__).parent.parent / "results"
IMPOSSIBLE = (",".join(COLUMNS) + "\n1," + ",".join(["nan"] * (len(COLUMNS) - 1))).encode()


def quiet() -> Console:
    return Console(file=io.StringIO(), width=300)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "sound $x_{ <b>|`*"  # a name that matplotlib, HTML and Markdown would read
    train(settings_from(SETTINGS), Run.create(folder, ""), quiet())
    return folder


@pytest.fixture
def run(sound: Path, tmp_path: Path) -> Run:
    shutil.copytree(sound, tmp_path / "run")
    return Run(tmp_path / "run")


@pytest.fixture(scope="module")
def learner() -> Learner:
    return preparing.prepare(settings_from(SETTINGS))


class TestSealed:
    def test_sealed_tensors_and_notes_are_read_back_unchanged(self, tmp_path: Path) -> None:
        tensors = {"a": torch.randn(2, 3), "b": torch.tensor(7), "c": torch.zeros(0), "d": torch.randn(3).bfloat16()}
        (tmp_path / "file").write_bytes(seal(tensors, {"why": "because"}))
        found, notes = unseal(tmp_path / "file")
        assert notes == {"why": "because"}
        assert found.keys() == tensors.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())

    def test_every_flipped_bit_in_weights_is_found(self, run: Run) -> None:
        """Of 400 random damages, 248 once went unnoticed."""
        content = run.weights_file.read_bytes()
        chance = random.Random(0)
        for _ in range(400):
            damaged = bytearray(content)
            damaged[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            run.weights_file.write_bytes(damaged)
            with pytest.raises(SealError):
                unseal(run.weights_file)

    def test_weights_of_an_earlier_version_are_used_with_a_remark(self, run: Run) -> None:
        from safetensors.torch import load_file, save_file

        expected = unseal(run.weights_file)[0]
        save_file(load_file(run.weights_file), run.weights_file)
        with pytest.warns(Remark, match="is of an earlier version, without a checksum"):
            model, _ = load_trained(run)
        assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())

    def test_a_checkpoint_is_used_when_the_weights_file_is_removed(self, run: Run) -> None:
        run.weights_file.write_bytes(b"nothing")
        with pytest.raises(RunError, match=r"is damaged: .* Move it away to use a checkpoint instead"):
            evaluate_run(run)
        run.weights_file.unlink()
        model, source = load_trained(run)
        before = read_checkpoint(run.checkpoints()[0])["state_dict"]
        assert source == run.checkpoints()[0].name
        assert all(torch.equal(tensor, before[f"model.{name}"]) for name, tensor in model.state_dict().items())

    @pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bool, torch.complex64])
    def test_weights_of_an_unsupported_dtype_are_refused(self, run: Run, dtype: torch.dtype) -> None:
        tensors, _ = unseal(run.weights_file)
        run.weights_file.write_bytes(seal({**tensors, "readout.1.bias": tensors["readout.1.bias"].to(dtype)}))
        with pytest.raises(RunError, match=r"'readout\.1\.bias'"):
            evaluate_run(run)

    @pytest.mark.filterwarnings("ignore::ffebm.errors.UnsettledWarning")
    @pytest.mark.parametrize("scale", [1e20, 3e37])
    def test_weights_so_large_that_blocks_diverge_are_refused(self, run: Run, scale: float, tmp_path: Path) -> None:
        tensors, _ = unseal(run.weights_file)
        floats = {name: tensor * scale for name, tensor in tensors.items() if tensor.is_floating_point()}
        run.weights_file.write_bytes(seal({**tensors, **floats}))
        Image.new("L", (8, 8), 100).save(tmp_path / "x.png")
        for use in (evaluate_run, analyse_run, lambda run: predict_images(run, [tmp_path / "x.png"])):
            with pytest.raises(RunError):
                use(run)

    def test_a_huge_model_is_not_allocated_before_its_weights_are_known_to_fit(self, run: Run) -> None:
        text = run.settings_file.read_text()
        run.settings_file.write_text(re.sub(r"channels = \[[^]]*\]", "channels = [4, 20000, 20000]", text))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(RunError, match="does not fit the model"):
            load_trained(run)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB; the model would take 14 GB

    @pytest.mark.parametrize(("value", "dtype"), [(torch.nan, torch.float32), (1e300, torch.float64)])
    def test_weights_that_are_not_finite_are_refused(self, run: Run, value: float, dtype: torch.dtype) -> None:
        tensors, _ = unseal(run.weights_file)
        run.weights_file.write_bytes(seal({**tensors, "readout.1.bias": torch.full((10,), value, dtype=dtype)}))
        with pytest.raises(RunError, match=r"something else than finite numbers, in 'readout\.1\.bias'"):
            evaluate_run(run)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("metrics.csv", b"epoch,step\n1,2\n", "row 1 is not that of epoch 1, or lacks a column"),
        ("metrics.csv", b"epoch,step\n1,two\n", "could not convert string to float"),
        ("metrics.csv", b"\xff\xfe", "can't decode"),
        ("metrics.csv", IMPOSSIBLE, "accuracies, steps or times that cannot be"),
        ("metrics.csv", b'epoch\n"1', "damaged"),
        ("settings.toml", b"[model", "not a readable TOML"),
        ("settings.toml", b"[model]\nwidth = -1\n", "model.width"),
    ],
)
def test_a_damaged_run_is_named_and_the_rest_of_the_table_shown(
    run: Run, sound: Path, file: str, content: bytes, message: str
) -> None:
    (run.folder / file).write_bytes(content)
    write_report(run.folder / "report", "Both", runs=[run, Run(sound)])
    shown = (run.folder / "report" / "report.md").read_text()
    assert f"Failed: {run.folder}: ".replace("_", "\\_") in shown.replace("\\_", "_").replace("_", "\\_")
    assert message in shown
    (row,) = json.loads((run.folder / "report" / "report.json").read_text())["rows"]
    assert row["outcomes"]["ep"]["runs"] == [sound.name]


def test_a_damaged_run_does_not_hide_one_of_the_same_name(sound: Path, tmp_path: Path) -> None:
    for place in ("one", "other"):
        shutil.copytree(sound, tmp_path / place / "run")
    (tmp_path / "one" / "run" / "metrics.csv").write_text("nothing")
    write_report(tmp_path / "report", "Both", runs=[Run(tmp_path / place / "run") for place in ("one", "other")])
    (row,) = json.loads((tmp_path / "report" / "report.json").read_text())["rows"]
    assert row["outcomes"]["ep"]["runs"] == ["run"]


@pytest.mark.parametrize(
    "content", [b"{}", b"[" * 100_000, b'{"layers": []}', b'{"layers": [{"cosine": 1, "deviation": "x"}]}']
)
def test_a_damaged_analysis_is_named_and_the_rest_read(content: bytes, tmp_path: Path) -> None:
    for name, what in (("a", content), ("b", (RESULTS / "reproduce" / "static" / "static.json").read_bytes())):
        (tmp_path / name).mkdir()
        (tmp_path / name / "static.json").write_bytes(what)
    (found,), (trouble,) = read_analyses(sorted(tmp_path.glob("*/static.json")))
    assert len(found.layers) == 15
    assert "a/static.json is no static analysis that can be read" in trouble


def test_a_damaged_environment_file_stops_neither_report_nor_resumption(run: Run) -> None:
    path = run.folder / "environment.json"
    path.write_bytes(b'[{"half')
    with pytest.raises(RunError, match=r"environment\.json, which says where this run was made, cannot be read"):
        run.environments()
    write_report(run.folder / "report", "One", runs=[run])
    assert "cannot be read" in (run.folder / "report" / "report.md").read_text()
    assert len(json.loads((run.folder / "report" / "report.json").read_text())["rows"]) == 1
    resume(run, quiet())
    assert len(run.environments()) == 1
    assert (run.folder / "environment.damaged").read_bytes() == b'[{"half'  # nothing is lost


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [1, 8]},
        {"shape": [1, 8, 10**6]},
        {"shape": [2, 8, 8], "mean": [0.5, 0.5], "std": [0.5, 0.5]},
        {"classes": ["same"] * 10},
        {"classes": ["\x1b[31mred", *"123456789"]},
        {"std": [1e-320], "mean": [1e300]},
        {"shape": "188"},
        {"classes": [1, 2]},
        {"classes": []},
        {"mean": [0.1, 0.2]},
        {"std": [0.0]},
        {"std": [float("nan")]},
        {"mean": ["x"]},
    ],
    ids=str,
)
def test_an_impossible_description_of_the_data_is_refused(run: Run, change: dict[str, object]) -> None:
    path = run.folder / "data.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(RunError, match=r"data\.json, which names the classes, cannot be read"):
        run.description()


def test_a_queue_goes_on_past_a_damaged_run(tmp_path: Path) -> None:
    first, second = EXPERIMENTS["split"].cells("tiny", rows=["cifar10-l6-bs2"])
    for cell in (first, second):
        cell.settings.save(cell.run(tmp_path).settings_file)
    first.run(tmp_path).settings_file.write_text("[model")
    begun: list[str] = []

    class Launcher:
        slots = threads = 1

        def __call__(self, arguments: object, log: Path, slot: int) -> int:
            begun.append(str(arguments))
            log.write_text("Error: stopped here")
            return 1

        def stop(self) -> None:
            pass

    queue = Queue([first, second], tmp_path, Launcher())
    queue.run(quiet())
    assert first.progress(tmp_path).stage is Stage.DAMAGED
    assert "not a readable TOML" in queue.failures[first.name]
    assert len(begun) == 1
    assert second.name in begun[0]


def changed(place: tuple[Any, ...], value: Any = ...) -> Callable[[dict[str, Any]], None]:
    """A change of a checkpoint: another value at this place, or none."""

    def change(content: Any) -> None:
        for key in place[:-1]:
            content = content[key]
        if value is ...:
            del content[place[-1]]
        else:
            content[place[-1]] = value

    return change


class TestCheckpoints:
    def test_content_is_read_back_as_it_was_written(self, tmp_path: Path) -> None:
        content = {
            "numbers": [1, -2.5, 1e-300, float("inf"), True, None, "text"],
            "by number": {0: (1, 2), 7: {"!odd": []}},
            "weights": torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last),
            "scalar": torch.tensor(3.5),
        }
        (tmp_path / "file").write_bytes(packed(content))
        found = unpacked(tmp_path / "file")
        assert torch.equal(found["weights"], content["weights"])
        assert found["weights"].stride() == content["weights"].stride()  # sums in the same order
        assert found["scalar"] == content["scalar"]
        for key in ("numbers", "by number"):
            assert found[key] == content[key]
        twice = torch.tensor([1.0, 2.0, 3.0])
        (tmp_path / "file").write_bytes(packed({"one": twice, "other": twice, "part": twice[1:]}))
        found = unpacked(tmp_path / "file")
        assert [found[key].tolist() for key in ("one", "other", "part")] == [[1, 2, 3], [1, 2, 3], [2, 3]]
        with pytest.raises(TypeError, match="got set"):
            packed({"x": {1}})

    def test_checkpoints_of_this_run_are_accepted(self, sound: Path, learner: Learner) -> None:
        for path in Run(sound).checkpoints():
            check_resumable(read_checkpoint(path), learner, Pattern.of(learner))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (changed(("ffebm", "history")), "ffebm does not hold what it should"),
            (changed(("ffebm", "history"), [{"epoch": 1}]), "history of epochs is not whole"),
            (changed(("ffebm", "history"), []), "history of epochs is not whole"),
            (changed(("ffebm", "seconds"), "long"), r"ffebm\.seconds is str"),
            (changed(("loops",)), "the whole does not hold what it should"),
            (changed(("loops", "fit_loop", "epoch_progress")), r"loops\.fit_loop does not hold"),
            (changed(("loops", "fit_loop"), 3), "not of the kind that this run writes"),
            (changed(("ffebm", "history"), [torch.zeros(3)]), "not of the kind that this run writes"),
            (changed(("loops", "fit_loop", "epoch_loop.batch_progress", "total", "ready"), 10**9), "contradict each other"),
            (changed(("loops", "fit_loop", "state_dict", "combined_loader"), []), "contradict each other"),
            (changed(("global_step",), 3), "contradict each other"),
            (changed(("epoch",), 0), "contradict each other"),
            (changed(("pytorch-lightning_version",)), "the whole does not hold what it should"),
            (changed(("pytorch-lightning_version",), "new"), "not one of 2"),
            (changed(("optimizer_states",), []), "optimizer_states is not a list of 1"),
            (changed(("optimizer_states", 0, "state", 0, "exp_avg"), torch.zeros(2)), "is not a tensor of torch.float32"),
            (changed(("optimizer_states", 0, "state", 0, "exp_avg"), torch.full((4, 1, 3, 3), torch.nan)), "not finite"),
            (changed(("optimizer_states", 0, "param_groups", 0, "lr"), None), "not of the kind that this run writes"),
            (changed(("optimizer_states", 0, "param_groups", 0, "lr"), float("nan")), "optimiser is not the one"),
            (changed(("lr_schedulers", 0, "base_lrs")), "not of the kind that this run writes"),
            (changed(("lr_schedulers", 0, "base_lrs"), [1.0]), "optimiser is not the one that the settings describe"),
            (changed(("optimizer_states", 0, "param_groups", 0, "lr"), -1.0), "optimiser is not the one"),
            (changed(("optimizer_states", 0, "param_groups", 0, "maximize"), True), "optimiser is not the one"),
            (changed(("optimizer_states", 0, "param_groups", 0, "weight_decay"), 100.0), "optimiser is not the one"),
            (changed(("optimizer_states", 0, "state", 0, "exp_avg_sq"), torch.full((4, 1, 3, 3), -1.0)), "negative"),
            (changed(("optimizer_states", 0, "state", 0, "step"), torch.tensor(1e9)), "another number of steps"),
            (changed(("ffebm", "history", 0, "test_accuracy"), 7e9), "accuracies, steps or times that cannot be"),
            (changed(("callbacks", "Calibrating", "tunings", 0, "free"), 10**9), "impossible sweeps"),
            (changed(("callbacks", "Calibrating", "due"), 10**300), "incomplete"),
            (changed(("pytorch-lightning_version",), "1.0.0"), "not one of 2"),
            (changed(("ffebm", "history", 0, "step"), 10**400), "cannot be"),
            (changed(("ffebm", "history", 0, "more"), 1), "different columns"),
            (changed(("ffebm", "training_sums"), [1.0, 2.0, 1e14, 0.0]), "sums over an epoch"),
            (changed(("ffebm", "seconds"), -1e17), "sums over an epoch"),
            (changed(("optimizer_states", 0, "param_groups", 0, "params"), [0] * 12), "optimi"),
            (changed(("state_dict", "model.stages.0.norm.running_var"), torch.full((4,), -1.0)), "negative"),
            (changed(("callbacks", "Calibrating", "tunings"), []), "calibration is incomplete"),
            (changed(("callbacks", "Calibrating", "tunings", 0, "omega"), 7.0), "impossible sweeps"),
            (changed(("callbacks",), {}), "what its callbacks remember"),
            (changed(("state_dict", "model.readout.1.bias"), torch.zeros(3)), "another model"),
            (changed(("state_dict", "model.readout.1.bias"), torch.zeros(10, dtype=torch.int64)), "is not a tensor of"),
            (changed(("state_dict",), {}), "another model"),
        ],
    )
    def test_a_checkpoint_that_this_run_cannot_have_written_is_refused(
        self, sound: Path, learner: Learner, change: Callable[[dict[str, Any]], None], message: str
    ) -> None:
        content = copy.deepcopy(read_checkpoint(Run(sound).checkpoints()[0]))
        change(content)
        with pytest.raises(RunError, match=message):
            check_resumable(content, learner, Pattern.of(learner))

    def test_an_unusable_checkpoint_is_skipped_for_the_one_before(self, sound: Path, run: Run) -> None:
        newest = run.checkpoints()[0]
        content = read_checkpoint(newest)
        del content["ffebm"]["history"]
        newest.write_bytes(packed(content))
        shown = quiet()
        resume(run, shown)
        assert isinstance(shown.file, io.StringIO)
        assert f"Warning: {newest} cannot be used: ffebm does not hold what it should" in shown.file.getvalue()
        assert "Going on from step 4" in shown.file.getvalue()
        one, other = (unseal(folder / "weights.safetensors")[0] for folder in (sound, run.folder))
        assert all(torch.equal(one[name], other[name]) for name in one)

    def test_a_full_disk_is_not_blamed_on_the_checkpoint(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        """A full disk on the way must not make people throw a sound checkpoint away."""

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Learner, "on_load_checkpoint", full)
        with pytest.raises(OSError, match="No space left"):
            resume(run, quiet())

    def test_checkpoints_of_another_torch_version_are_accepted(self, sound: Path, learner: Learner) -> None:
        """Which has other keys beside the ones that matter."""
        content = copy.deepcopy(read_checkpoint(Run(sound).checkpoints()[0]))
        del content["optimizer_states"][0]["param_groups"][0]["decoupled_weight_decay"]
        content["lr_schedulers"][0]["verbose"] = False
        check_resumable(content, learner, Pattern.of(learner))

    def test_an_error_while_lightning_restores_names_the_checkpoint_in_one_line(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("ffebm.experiment.training.fitting.check_resumable", lambda *_: None)
        newest = run.checkpoints()[0]
        content = read_checkpoint(newest)
        content["optimizer_states"][0]["param_groups"] = [{}]
        newest.write_bytes(packed(content))
        with pytest.raises(RunError, match=r"no run can go on from what it holds \(KeyError.*Move it away to go on"):
            resume(run, quiet())

    def test_damaged_checkpoints_of_later_steps_do_not_displace_sound_ones(self, run: Run) -> None:
        """They are the newest by name, and once took the places of all that a run could go on from."""
        for path in run.checkpoints()[:-1]:
            path.unlink()  # so that it has some steps to go
        garbage = [run.checkpoint_file(90_000_000 + i) for i in range(3)]
        for path in garbage:
            path.write_bytes(b"nothing")
        resume(run, quiet())
        assert len([path for path in run.checkpoints() if path not in garbage]) == 3
        resume(run, quiet())  # goes on from there

    def test_checkpoints_of_an_earlier_version_are_reported(self, run: Run) -> None:
        for path in run.checkpoints():
            path.rename(path.with_suffix(".ckpt"))
        with pytest.raises(RunError, match="earlier version"):
            resume(run, quiet())


def test_run_names_with_markup_are_shown_literally(sound: Path, tmp_path: Path) -> None:
    """The run trained to its end, curves and all; so do its evaluation and its report."""
    assert (sound / "curves.png").is_file()
    evaluate_run(Run(sound))
    write_report(tmp_path, sound.name, runs=[Run(sound)])
    _, title, *_ = MarkdownIt("commonmark", {"html": True}).parse((tmp_path / "report.md").read_text())
    assert "".join(piece.content for piece in title.children or []) == sound.name


def test_a_loaded_model_has_the_accuracy_of_its_evaluation(sound: Path) -> None:
    """In evaluation mode and with images normalised, as docs/training.md has it."""
    run, data = Run(sound), digits()
    model, _ = load_trained(run)
    with torch.no_grad():
        right = model(run.description().normalise(data.test.x)).logits.argmax(1) == data.test.y
    assert right.double().mean().item() == pytest.approx(evaluate_run(run).top1, abs=1e-12)


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_a_lock_file_that_is_a_pipe_or_a_link_is_refused(run: Run, tmp_path: Path, kind: str) -> None:
    run.lock_file.unlink()
    if kind == "pipe":
        os.mkfifo(run.lock_file)
    else:
        run.lock_file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"not a file|symbolic links"):
        resume(run, quiet())
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("text", ["x" + "_" * 60_000 + "x", "`" + "x" * 60_000, "` " * 30_000, "<" * 60_000])
def test_long_names_are_escaped_within_seconds(text: str) -> None:
    """A pattern that is tried from every letter once took hours for what settings may hold."""
    signal.alarm(5)
    try:
        assert markdown(Document(text, [Section(text, [Text(text)])], {}))
    finally:
        signal.alarm(0)


def test_a_missing_run_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no run folder"):
        Run.open(tmp_path / "nowhere")
