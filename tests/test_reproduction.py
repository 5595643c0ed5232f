"""The paper's tables as queues of runs, its figures, and the reports on both."""

from __future__ import annotations

import io
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from rich.console import Console

from ffebm.experiment.data import load
from ffebm.experiment.data.generated import write_generated
from ffebm.experiment.errors import UserError
from ffebm.experiment.final_check import BlockAtRest, FinalCheck, final_check_of
from ffebm.experiment.preset import read_preset
from ffebm.experiment.queue import LocalProcesses, Queue, Stage, Store
from ffebm.experiment.report import look, write_report
from ffebm.experiment.report.accuracy_figure import accuracy_figure
from ffebm.experiment.report.outcome import Comparison, Outcome, accuracy_table, comparisons_of, with_error
from ffebm.experiment.report.reproduced import report_experiment
from ffebm.experiment.reproduction import EXPERIMENTS, SCALES
from ffebm.experiment.reproduction.experiments import prepare_data
from ffebm.experiment.reproduction.recipe import FOLDER, read_recipe
from ffebm.experiment.reproduction.static import Static, analyse_initial, analyse_run, read_static
from ffebm.experiment.run import Run, RunError
from ffebm.experiment.sealed import seal
from ffebm.experiment.settings import SettingsError
from ffebm.experiment.training import train
from test_command_line import call

SPLIT = EXPERIMENTS["split"]


def console() -> Console:
    return Console(file=io.StringIO(), width=300)


def said(shown: Console) -> str:
    assert isinstance(shown.file, io.StringIO)
    return shown.file.getvalue()


class Pretence:
    """Instead of training, leaves what a run of one epoch leaves; some fail."""

    slots, threads = 2, 1

    def __init__(self, *failing: str) -> None:
        self.failing = failing
        self.commands: list[list[str]] = []
        self.stopped = threading.Event()

    def __call__(self, arguments: Sequence[str], log: Path, slot: int) -> int:
        self.commands.append(list(arguments))
        log.touch()
        if arguments[0] == "check":
            run = Run(Path(arguments[1]))
            check = FinalCheck(64, [BlockAtRest("block 1", 0.5, 4, 3, 1e-3, 1e-3)], 1.0, "", {}, epoch=len(run.metrics()))
            run.final_file.write_text(json.dumps(asdict(check)))
            return 0
        if "--resume" in arguments:
            folder = Path(arguments[arguments.index("--resume") + 1])
        else:
            folder = Path(arguments[arguments.index("--output") + 1])
            overrides = [a for a in arguments[2:] if "=" in a]
            read_preset(arguments[1], overrides).save(folder / "settings.toml")
        if folder.name in self.failing:
            log.write_text("Training\nError: it was not to be.\n")
            return 1
        finish(Run(folder), 0.5)
        return 0

    def stop(self) -> None:
        self.stopped.set()


def finish(run: Run, accuracy: float, epochs: int = 1) -> None:
    row = {
        "epoch": 1,
        "step": 3,
        "train_loss": 2.0,
        "train_accuracy": accuracy,
        "test_loss": 2.0,
        "test_accuracy": accuracy,
        "test_top5": 0.9,
        "residual": 0.1,
        "seconds": 8.0,
    }
    run.save_metrics([{**row, "epoch": epoch + 1} for epoch in range(epochs)])
    run.weights_file.write_bytes(seal({"weight": torch.zeros(2)}))


class TestCells:
    def test_every_row_at_every_scale_is_a_valid_recipe(self) -> None:
        for experiment in EXPERIMENTS.values():
            for scale in SCALES:
                for cell in experiment.cells(scale, seeds=2):
                    assert cell.settings.gradient.kind == cell.kind
                    assert cell.settings.seed == cell.seed
                    assert cell.settings.paper is not None

    def test_the_papers_scale_changes_nothing_but_what_the_library_does_better(self) -> None:
        for cell in SPLIT.cells("paper"):
            preset = read_preset(
                cell.preset, ["sweeps=plain", "gradient.hold_pooling=false", f"seed={cell.seed}", f"gradient.kind={cell.kind}"]
            )
            assert cell.settings.recipe == preset.recipe  # the same outputs are clamped, though the paper's are named

    def test_the_papers_scale_leaves_outputs_above_max_pooling_as_they_are(self) -> None:
        printed = ["model.pooled=[3, 5, 9]"]  # layers 3 and 9 then are outputs of blocks
        paper, small = (SPLIT.cells(scale, 1, ["cifar10-l12-bs3"], printed)[0].settings for scale in ("paper", "converged"))
        assert (paper.model.clamped, small.model.clamped) == ([], [1, 3])

    def test_the_converged_scale_has_one_recipe_whatever_the_split(self) -> None:
        """Twelve layers differ by what the paper's rows do: how they are cut, and where they are pooled and clamped."""
        cells = [cell for cell in SPLIT.cells("converged", seeds=1, kinds=["ep"]) if "l12" in cell.preset]
        rows = [flat(cell.settings.model_dump()) for cell in cells]
        differing = {key for row in rows for key in row if row[key] != rows[0][key]}
        assert differing == {"description", "model.split", "model.pooled", "model.clamped_outputs", "paper.ep", "paper.id"}

    def test_the_converged_scale_queues_its_list_the_most_telling_first(self) -> None:
        cells = SPLIT.cells("converged")
        assert [cell.name for cell in cells[:3]] == [f"cifar10-l12-bs2-{kind}-seed0" for kind in ("ep", "bp", "id")]
        assert len({cell.name for cell in cells}) == len(cells) == 17
        count = Counter((cell.row_name, cell.kind) for cell in cells)
        assert [count["cifar10-l12-bs2", kind] for kind in ("ep", "id", "bp")] == [3, 3, 3]
        once = {("cifar10-l12-bs3", "ep"), ("cifar10-l12-bs4", "ep"), ("cifar10-l12-bs4", "id")}
        once |= {("cifar10-l6-bs2", "ep"), ("cifar10-l6-bs6", "ep"), ("cifar10-l6-bs6", "id"), ("cifar10-l6-bs2", "bp")}
        assert {pair for pair, times in count.items() if times == 1} == once | {("cifar10-l12-bs2-w4", "ep")}
        names = [cell.name for cell in EXPERIMENTS["scaling"].cells("converged")]
        assert names == ["cifar100-l12-ep-seed0", "cifar100-l12-id-seed0"]

    def test_the_larger_run_is_a_row_of_its_own(self, tmp_path: Path) -> None:
        (larger,) = SPLIT.cells("converged", rows=["cifar10-l12-bs2-w4"], kinds=["ep"])
        assert larger == SPLIT.cells("converged")[-1]
        small = SPLIT.cells("converged")[0]
        a, b = flat(small.settings.model_dump()), flat(larger.settings.model_dump())
        assert {key: b[key] for key in b if a[key] != b[key]} == {"model.width": 0.25, "trainer.epochs": 40}
        for cell in (small, larger):
            cell.settings.save(cell.run(tmp_path).settings_file)
        assert SPLIT.present("converged", tmp_path) == [small, larger]
        with pytest.raises(ValueError, match="cifar10-l12-bs2-w4"):
            SPLIT.cells("paper", rows=["cifar10-l12-bs2-w4"])

    def test_there_are_as_many_as_the_table_has(self) -> None:
        assert len(SPLIT.cells("paper")) == 6 * 2 * 3
        assert len(EXPERIMENTS["scaling"].cells("paper", seeds=1)) == 4 * 2
        assert [cell.seed for cell in SPLIT.cells("tiny", seeds=2)] == [0] * 12 + [1] * 12  # whole tables first

    def test_rows_can_be_chosen(self) -> None:
        cells = SPLIT.cells("tiny", rows=["cifar10-l6-bs3"])
        assert [cell.name for cell in cells] == ["cifar10-l6-bs3-ep-seed0", "cifar10-l6-bs3-id-seed0"]
        with pytest.raises(ValueError, match="cifar10-l6-bs3"):
            SPLIT.cells("tiny", rows=["cifar10-l7"])

    def test_settings_can_be_changed_in_every_run(self, tmp_path: Path) -> None:
        shown = call("reproduce", "split", "trainer.epochs=3", "--scale", "tiny", "--print", "--output", tmp_path)
        assert shown.count(" trainer.epochs=3 ") == 12
        cells = SPLIT.cells("tiny", overrides=["trainer.epochs=3"])
        assert {cell.settings.trainer.epochs for cell in cells} == {3}
        cells[0].settings.save(cells[0].run(tmp_path).settings_file)
        assert SPLIT.present("tiny", tmp_path) == []
        assert SPLIT.present("tiny", tmp_path, ["trainer.epochs=3"]) == cells[:1]
        assert "Besides: trainer.epochs=3." in report_experiment(SPLIT, "tiny", [], tmp_path, overrides=["trainer.epochs=3"])

    @pytest.mark.parametrize(
        ("override", "words"),
        [
            ("seed=3", "--seeds"),
            ("gradient.kind=bptt", "--gradient"),
            ("data.root=/d", "--data"),
            ("trainer.epoch=3", "epochs"),
        ],
    )
    def test_settings_that_a_table_cannot_have_are_refused(self, override: str, words: str, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=words):
            call("reproduce", "split", override, "--scale", "tiny", "--print", "--output", tmp_path)

    def test_commands_are_printed_for_any_scheduler(self, tmp_path: Path) -> None:
        shown = call("reproduce", "split", "--scale", "tiny", "--print", "--output", tmp_path / "a b", "--data", "/d")
        lines = shown.splitlines()
        assert len(lines) == 12
        folder = str(tmp_path / "a b" / "cifar10-l6-bs6-ep-seed0")
        words = shlex.split(lines[0])
        assert words[:8] == ["if", "[", "-e", f"{folder}/settings.toml", "];", "then", "ffebm", "train"]
        assert words[8:12] == ["--resume", folder, "--data", "/d;"]
        assert words[words.index("else") :][:4] == ["else", "ffebm", "train", "cifar10-l6-bs6"]
        assert words[-5:] == ["--data", "/d", "--output", f"{folder};", "fi"]
        subprocess.run(["sh", "-n", "-c", shown], check=True)
        assert not (tmp_path / "a b").exists()

    def test_a_run_with_other_settings_does_not_pass_for_this_one(self, tmp_path: Path) -> None:
        cell = SPLIT.cells("tiny")[0]
        replace(cell, changes=("trainer.threads=2", *cell.changes)).settings.save(cell.run(tmp_path).settings_file)
        cell.check(tmp_path)
        replace(cell, changes=("trainer.epochs=7",)).settings.save(cell.run(tmp_path).settings_file)
        with pytest.raises(RunError, match="other settings"):
            cell.check(tmp_path)


def flat(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Keys with their section, as on the command line."""
    tables = {name: content if isinstance(content, dict) else {"": content} for name, content in sections.items()}
    return {f"{name}.{key}".strip("."): value for name, table in tables.items() for key, value in table.items()}


class TestRecipes:
    def test_every_row_has_one_at_every_scale_and_nothing_else_has(self) -> None:
        rows = [row for experiment in EXPERIMENTS.values() for row in experiment.rows]
        there = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file()}
        assert there == {f"{scale}/{row}.toml" for scale in ("paper", "tiny") for row in rows} | {"converged.toml"}
        with pytest.raises(SettingsError, match=r"There is no file .*tiny/digits\.toml"):
            read_recipe("tiny", "digits")

    @pytest.mark.parametrize("path", sorted(FOLDER.glob("*/*.toml")), ids=lambda path: f"{path.parent.name}-{path.stem}")
    def test_it_names_all_that_it_changes_and_nothing_that_stays(self, path: Path) -> None:
        preset = flat(read_preset(path.stem).model_dump())
        changed = flat(read_preset(path.stem, read_recipe(path.parent.name, path.stem)).model_dump())  # refuses what is idle
        assert flat(tomllib.loads(path.read_text())) == {key: value for key, value in changed.items() if value != preset[key]}


class TestQueue:
    def test_runs_what_is_missing_and_keeps_what_is_there(self, tmp_path: Path) -> None:
        cells = SPLIT.cells("tiny", rows=["cifar10-l6-bs2", "cifar10-l6-bs3"])
        kept, begun = cells[0], cells[2]
        for cell in (kept, begun):
            cell.settings.save(cell.run(tmp_path).settings_file)
        finish(kept.run(tmp_path), 0.25)
        launcher = Pretence()
        launcher.slots = 1  # or which of two comes first is chance
        assert Queue(cells, tmp_path, launcher).run(console())
        assert launcher.commands[0] == ["train", "--resume", str(begun.run(tmp_path).folder)]
        assert len(launcher.commands) == 3
        assert kept.progress(tmp_path).accuracy == 0.25
        assert all(cell.progress(tmp_path).stage is Stage.FINISHED for cell in cells)

    def test_published_numbers_count_without_their_weights(self, tmp_path: Path) -> None:
        cells = SPLIT.cells("tiny", rows=["cifar10-l6-bs3"])
        for cell, accuracy in zip(cells, (0.25, 0.5), strict=True):
            cell.settings.save(cell.run(tmp_path).settings_file)
            finish(cell.run(tmp_path), accuracy)
            cell.run(tmp_path).weights_file.unlink()
        launcher = Pretence()
        assert Queue(cells, tmp_path, launcher).run(console())
        assert launcher.commands == []
        assert "25.00" in report_experiment(SPLIT, "tiny", cells, tmp_path)
        unfinished = cells[0].run(tmp_path)
        unfinished.checkpoint_file(3).parent.mkdir()
        unfinished.checkpoint_file(3).touch()  # stopped before its weights were written: to be gone on with
        assert cells[0].progress(tmp_path).stage is Stage.BEGUN

    def test_a_failure_is_reported_and_the_rest_goes_on(self, tmp_path: Path) -> None:
        cells = SPLIT.cells("tiny")
        shown = console()
        queue = Queue(cells, tmp_path, Pretence(cells[1].name), None)
        assert queue.run(shown)
        assert queue.failures == {cells[1].name: "Error: it was not to be."}
        assert "it was not to be" in said(shown)
        assert sum(cell.progress(tmp_path).stage is Stage.FINISHED for cell in cells) == 11
        again = Pretence()
        Queue(cells, tmp_path, again).run(console())
        assert again.commands == [["train", "--resume", str(cells[1].run(tmp_path).folder)]]

    def test_whatever_happens_to_one_run_is_not_the_others_trouble(self, tmp_path: Path) -> None:
        class Fragile(Pretence):
            def __call__(self, arguments: Sequence[str], log: Path, slot: int) -> int:
                if cells[0].name in str(arguments):
                    raise OSError("no such machine")
                return super().__call__(arguments, log, slot)

        cells = SPLIT.cells("tiny")[:3]
        (tmp_path / f"{cells[0].name}.log").write_text("Error: of another day\n")
        queue = Queue(cells, tmp_path, Fragile())
        assert queue.run(console())
        assert queue.failures == {cells[0].name: "Error: OSError: no such machine"}

    def test_what_is_finished_is_measured_and_kept_where_it_will_last(self, tmp_path: Path) -> None:
        cells = SPLIT.cells("tiny", seeds=2, rows=["cifar10-l6-bs3"], kinds=["ep", "bp"])
        by_ep, by_bp, later, _ = cells
        by_hand = tmp_path / "runs"  # by `ffebm train`: it lies there, and nobody has measured it
        by_ep.settings.save(by_ep.run(by_hand).settings_file)
        finish(by_ep.run(by_hand), 0.25)
        store = Store(tmp_path / "kept")
        launcher = Pretence()
        assert Queue(cells, by_hand, launcher, Path("/d"), store=store, checked=True).run(console())
        checks = [command for command in launcher.commands if command[0] == "check"]
        assert sorted(checks) == [["check", str(cell.run(by_hand).folder), "--data", "/d"] for cell in (by_ep, later)]
        assert len(launcher.commands) == 5  # and three are trained
        for cell in cells:
            kept = cell.run(store.folder)
            assert kept.metrics() == cell.run(by_hand).metrics()
            assert (final_check_of(kept) is not None) == (cell.kind == "ep")
            assert kept.weights_file.is_file() == (cell is by_ep)  # by EP with seed 0
        elsewhere = Pretence()
        queue = Queue(cells, tmp_path / "elsewhere", elsewhere, store=store, checked=True)
        assert queue.run(console())
        assert elsewhere.commands == []
        assert by_bp.progress(tmp_path / "elsewhere").stage is Stage.FINISHED
        text = report_experiment(SPLIT, "tiny", cells, tmp_path / "elsewhere", look_closer=False)
        assert "4 of 4 runs are finished" in text
        other = SPLIT.cells("tiny", rows=["cifar10-l6-bs3"], overrides=["trainer.epochs=2"])
        with pytest.raises(RunError, match=r"kept.*other settings"):
            Queue(other, tmp_path / "more", Pretence(), store=store).run(console())

    def test_a_run_that_cannot_be_measured_is_kept_and_tried_again(self, tmp_path: Path) -> None:
        class Blind(Pretence):
            def __call__(self, arguments: Sequence[str], log: Path, slot: int) -> int:
                if arguments[0] == "check":
                    log.write_text("Error: no images here.\n")
                    return 1
                return super().__call__(arguments, log, slot)

        (cell,) = SPLIT.cells("tiny", rows=["cifar10-l6-bs3"], kinds=["ep"])
        store = Store(tmp_path / "kept")
        queue = Queue([cell], tmp_path / "runs", Blind(), store=store, checked=True)
        assert queue.run(console())
        assert queue.failures == {cell.name: "Error: no images here."}
        assert not cell.run(store.folder).final_file.exists()
        again = Pretence()
        assert Queue([cell], tmp_path / "runs", again, store=store, checked=True).run(console())
        assert [command[0] for command in again.commands] == ["check"]
        assert final_check_of(cell.run(store.folder)) is not None

    def test_threads_are_the_users_choice(self, tmp_path: Path) -> None:
        (one,) = SPLIT.cells("tiny", rows=["cifar10-l6-bs3"], kinds=["ep"])
        (other,) = SPLIT.cells("tiny", rows=["cifar10-l6-bs3"], kinds=["ep"], overrides=["trainer.threads=1"])
        assert "trainer.threads=4" in one.arguments(tmp_path, threads=4)
        assert "trainer.threads=4" not in other.arguments(tmp_path, threads=4)

    def test_two_queues_do_not_work_in_one_folder(self, tmp_path: Path) -> None:
        class Nosy(Pretence):
            def __call__(self, arguments: Sequence[str], log: Path, slot: int) -> int:
                with pytest.raises(UserError, match="Another"):
                    Queue(cells, tmp_path, Pretence()).run(console())
                return super().__call__(arguments, log, slot)

        cells = SPLIT.cells("tiny")[:1]
        queue = Queue(cells, tmp_path, Nosy())
        assert queue.run(console())
        assert not queue.failures

    def test_an_interruption_stops_what_runs_and_begins_nothing_more(self, tmp_path: Path) -> None:
        class Slow(Pretence):
            def __call__(self, arguments: Sequence[str], log: Path, slot: int) -> int:
                self.commands.append(list(arguments))
                os.kill(os.getpid(), signal.SIGINT)
                assert self.stopped.wait(20)
                return 130

        launcher = Slow()
        queue = Queue(SPLIT.cells("tiny"), tmp_path, launcher)
        assert not queue.run(console())
        assert 1 <= len(launcher.commands) <= 2
        assert not queue.failures

    def test_time_left_follows_from_finished_epochs(self, tmp_path: Path) -> None:
        one, two, three = SPLIT.cells("paper")[:3]
        epochs = one.settings.trainer.epochs
        for cell, done in ((one, epochs), (two, 1)):
            cell.settings.save(cell.run(tmp_path).settings_file)
            finish(cell.run(tmp_path), 0.5, done)
        queue = Queue([one, two, three], tmp_path, Pretence())
        left = queue.remaining(queue.progress())
        assert left == {two.name: 8.0 * epochs, three.name: (8.0 + 8.0 * epochs) / 2}
        shown = console()
        shown.print(queue.table())
        assert "1 of 3 runs are finished" in said(shown)

    def test_processes_share_cores_and_devices(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ffebm.experiment.queue.launcher._cores", lambda: 8)
        assert (LocalProcesses().slots, LocalProcesses().threads) == (8, 1)
        assert (LocalProcesses(2).slots, LocalProcesses(2).threads) == (2, 4)
        launcher = LocalProcesses(devices=["0", "3"])
        assert launcher.slots == 2
        assert launcher(["no-such-command"], tmp_path / "log", 1) != 0
        assert "No such command" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "imagenet32"])
def test_generated_images_are_read_like_real_ones(name: str, tmp_path: Path) -> None:
    write_generated(name, tmp_path, train=2000, test=1000)
    data = load(name, tmp_path)
    assert (len(data.train), len(data.test)) == (2000, 1000)
    assert set(data.test.y.tolist()) == set(range(len(data.classes)))
    a, b = (data.train.x[data.train.y == label].float().std((0, 2, 3)) for label in (0, 1))
    assert (a - b).abs().max() > 5  # classes differ


class TestOutcomes:
    def test_means_have_the_error_of_a_mean(self) -> None:
        assert with_error([]) == ""
        assert with_error([91.0]) == "91.00"
        assert with_error([90.0, 91.0, 92.0]) == "91.00 ± 0.58"  # 1/√3
        assert with_error([0.25], signed=True) == "+0.25"

    def test_seeds_come_together_and_gradients_side_by_side(self, tmp_path: Path) -> None:
        cells = SPLIT.cells("tiny", seeds=3, rows=["cifar10-l12-bs2"], kinds=["ep", "id", "bp"])
        for cell, accuracy in zip(cells, (0.90, 0.80, 0.7, 0.91, 0.80, 0.7, 0.92, 0.80), strict=False):
            cell.settings.save(cell.run(tmp_path).settings_file)
            finish(cell.run(tmp_path), accuracy)
        rows = comparisons_of([cell.run(tmp_path) for cell in cells[:8]])
        table = accuracy_table(rows, planned={"cifar10-l12-bs2-bp": 3})
        assert table.header == ("net", "EP", "ID", "backprop", "EP − ID", "EP − backprop", "paper, EP", "paper, ID")
        assert table.rows == [
            (
                "CIFAR-10, 12 layers in blocks of 2 (width 0.03125, 1 epoch)",
                "91.00 ± 0.58 (3)",
                "80.00 ± 0.00 (3)",
                "70.00 ± 0.00 (2 of 3)",
                "+11.00 ± 0.58",
                "+20.50 ± 0.50",  # of the two seeds that both have
                "91.7 ± 0.2",
                "91.8 ± 0.1",
            )
        ]

    def test_claims_say_what_settings_were_chosen_by(self, tmp_path: Path) -> None:
        cells = SPLIT.cells("converged", rows=["cifar10-l6-bs3"])
        for cell in cells:
            cell.settings.save(cell.run(tmp_path).settings_file)
            finish(cell.run(tmp_path), 0.5, cell.settings.trainer.epochs)
        text = report_experiment(SPLIT, "converged", cells, tmp_path, look_closer=False)
        chosen = SCALES["converged"].chosen
        assert "set apart" in chosen
        assert "seed 100" in chosen
        assert text.index(chosen) < text.index("| EP within 1 of ID: cifar10-l6-bs3 | holds | +0.00 |")
        assert not SCALES["paper"].chosen  # the paper's own

    def test_ep_and_id_are_compared_seed_by_seed(self) -> None:
        ep, id_ = Outcome(seeds=[2, 0, 1], top1=[72.0, 50.0, 70.0]), Outcome(seeds=[1, 2], top1=[69.0, 70.0])
        row = Comparison("one", read_preset("cifar10-l12-bs2"), {"ep": ep, "id": id_})
        assert row.gaps() == [1.0, 2.0]  # of seeds 1 and 2: seed 0 by ID is missing
        assert with_error(row.gaps(), signed=True) == "+1.50 ± 0.50"
        assert Comparison("none", row.settings, {"ep": ep}).gaps() == []


@pytest.fixture(scope="module")
def static() -> Static:
    torch.manual_seed(0)
    return analyse_initial("tiny")


class TestStatic:
    def test_ep_overlays_id_at_every_step_of_all_fifteen_layers(self, static: Static) -> None:
        assert len(static.layers) == 15
        assert [layer.block for layer in static.layers] == sorted(layer.block for layer in static.layers)
        assert static.worst.cosine > 0.999
        assert static.deviation < 0.05
        assert all(len(layer.ep) == len(layer.id) == 21 for layer in static.layers)

    def test_layers_that_fall_short_are_named(self, static: Static) -> None:
        assert static.explanation() == []
        first, *rest = static.layers
        unsettled = replace(static, layers=[replace(first, cosine=0.5), *rest], trouble="it still moves.")
        assert unsettled.explanation() == [
            f"{first.name} (block 1): cosine 0.50000; there is no converged gradient to say which is off: it still moves."
        ]
        coarse = replace(static, layers=[replace(first, cosine=0.5, ep_truth=0.5, id_truth=1.0), *rest])
        assert "β 0.02 is too large for EP" in coarse.explanation()[0]
        both = replace(static, layers=[replace(first, cosine=0.5, ep_truth=0.5, id_truth=0.9), *rest])
        assert "20 sweeps are too few for both" in both.explanation()[0]
        nothing = replace(static, layers=[*rest, replace(first, cosine=math.nan)])
        assert nothing.worst is nothing.layers[-1]

    def test_the_command_writes_figures_numbers_and_a_report(self, static: Static, tmp_path: Path) -> None:
        shown = call("reproduce", "static", "--scale", "tiny", "--output", tmp_path)
        assert f"{static.worst.cosine:.5f}" in shown
        assert read_static(tmp_path / "static.json").layers == static.layers
        for name in ("transients", "cosines"):
            pixels = Image.open(tmp_path / f"{name}.png").convert("RGB")
            assert len(pixels.resize((200, 100)).getcolors(20_000)) > 50
            assert (tmp_path / f"{name}.svg").read_text().startswith("<?xml")
        assert "| 6 | " in (tmp_path / "static.md").read_text()
        assert "data:image/png" in (tmp_path / "report.html").read_text()

    def test_a_damaged_file_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "static.json"
        for content in ("{", "{}", '{"layers": [{}]}'):
            path.write_text(content)
            with pytest.raises(UserError, match=r"static\.json"):
                read_static(path)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of one row, trained for real by EP and by ID, and its report."""
    folder = tmp_path_factory.mktemp("split")
    cells = SPLIT.cells("tiny", rows=["cifar10-l6-bs3"])
    data = prepare_data("tiny", cells, folder, None)
    assert data is not None
    for cell in cells:
        settings = cell.settings
        settings = settings.model_copy(
            update={"data": settings.data.at(data), "trainer": settings.trainer.model_copy(update={"threads": 1})}
        )
        train(settings, Run.create(cell.run(folder).folder, ""), console())
    report_experiment(SPLIT, "tiny", cells, folder, failures={"another": "Error: <b>gone</b>"})
    return folder


class TestReport:
    def test_a_page_needs_nothing_else(self, tiny: Path) -> None:
        html = (tiny / "report.html").read_text()
        own = re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)  # but for Plotly's own source
        assert not re.search(r"(src|href)=\"(?!#|data:)", own)
        assert "@import" not in own
        assert "url(" not in own
        assert "viewport" in own
        assert "prefers-color-scheme: dark" in own
        assert "@media print" in own

    def test_text_is_never_markup(self, tiny: Path) -> None:
        html = (tiny / "report.html").read_text()
        assert "<b>gone</b>" not in html
        assert "&lt;b&gt;gone&lt;/b&gt;" in html

    def test_it_has_tables_curves_microscope_settings_and_commands(self, tiny: Path) -> None:
        html = (tiny / "report.html").read_text()
        charts = json.loads(re.search(r'id="charts">(.*?)</script>', html, re.DOTALL)[1])
        assert len(charts) == 3 + 5
        assert [trace["name"] for trace in charts[0]["traces"]] == [
            "CIFAR-10, 6 layers in blocks of 3 (width 0.03125, 1 epoch), EP, seed 0",
            "CIFAR-10, 6 layers in blocks of 3 (width 0.03125, 1 epoch), ID, seed 0",
        ]
        for expected in ("89.5 ± 0.2", "Energy microscope", "ffebm train ", "[relaxation]", "torch ", "not settled"):
            assert expected in html, expected

    def test_markdown_and_json_have_the_same_numbers(self, tiny: Path) -> None:
        numbers = json.loads((tiny / "report.json").read_text())
        text = (tiny / "report.md").read_text()
        (row,) = numbers["rows"]
        assert f"| {row['outcomes']['ep']['top1'][0]:.2f} (1) | {row['outcomes']['id']['top1'][0]:.2f} (1) |" in text
        assert "2 of 2 runs are finished" in text
        assert numbers["failures"] == {"another": "Error: <b>gone</b>"}

    def test_accuracies_are_drawn(self, tiny: Path) -> None:
        rows = comparisons_of([Run.open(tiny / f"cifar10-l6-bs3-{kind}-seed0") for kind in ("ep", "id")])
        here, paper = accuracy_figure(rows).axes
        assert (tiny / "accuracy.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (tiny / "accuracy.svg").read_text()
        drawn = {x for line in here.lines for x in line.get_xdata()}
        assert {outcome.top1[0] for outcome in rows[0].outcomes.values()} <= drawn
        assert {89.5, 89.2} <= {x for line in paper.lines for x in line.get_xdata()}

    def test_a_report_gathers_what_other_commands_have_put_there(self, tiny: Path, tmp_path: Path) -> None:
        shutil.copytree(tiny, tmp_path / "runs")
        (tmp_path / "runs" / "cifar10-l6-bs3-ep-seedling").mkdir()
        cells = SPLIT.cells("tiny", rows=["cifar10-l6-bs2"])
        text = report_experiment(SPLIT, "tiny", cells, tmp_path / "runs", look_closer=False)
        assert "2 of 4 runs are finished" in text
        assert "blocks of 3" in text
        assert SPLIT.present("converged", tmp_path / "runs") == []  # other settings

    def test_a_report_of_any_runs(self, tiny: Path, tmp_path: Path) -> None:
        folders = sorted(path for path in tiny.iterdir() if path.is_dir())  # the data's folder is among them
        call("report", *folders, "--output", tmp_path, "--sample", "3", "--images", "5", "--title", "Mine")
        assert json.loads((tmp_path / "report.json").read_text())["microscopes"][0]["sample"] == 3

    def test_a_report_without_the_data(self, tiny: Path, tmp_path: Path) -> None:
        run = tiny / "cifar10-l6-bs3-ep-seed0"
        call("report", run, "--output", tmp_path, "--no-microscope")
        assert json.loads((tmp_path / "report.json").read_text())["microscopes"] == []
        cells = SPLIT.cells("tiny", rows=["cifar10-l6-bs3"])
        shutil.copytree(tiny, tmp_path / "copy")
        text = report_experiment(SPLIT, "tiny", cells, tmp_path / "copy", data=tmp_path)
        assert "could not be put under the microscope" in text

    def test_blocks_under_the_microscope(self, tiny: Path) -> None:
        run = Run.open(tiny / "cifar10-l6-bs3-ep-seed0")
        seen = look(run, images=8)
        assert len(seen.blocks) == 2
        for block in seen.blocks:
            assert len(block.free.energy) == len(block.free.residual) + 1
            assert sum(block.sweeps.values()) + block.unsettled == 8
            assert all(0 <= share <= 1 for share in (*block.floor, *block.ceiling))
            assert min(block.pushed.energy) >= block.pushed.energy[0] - 1e-4  # the free equilibrium is a minimum
        with pytest.raises(Exception, match="no test image 20"):
            look(run, sample=20)

    def test_static_analysis_of_trained_weights(self, tiny: Path) -> None:
        found = analyse_run(Run.open(tiny / "cifar10-l6-bs3-ep-seed0"))
        assert len(found.layers) == 6
        assert "cifar10-l6-bs3" in found.title

    def test_an_empty_report_says_how_it_was_made(self, tmp_path: Path) -> None:
        write_report(tmp_path, "Nothing")
        assert "How this was made" in (tmp_path / "report.html").read_text()


def test_tiny_data_is_made_once(tmp_path: Path) -> None:
    cells = SPLIT.cells("tiny")
    folder = prepare_data("tiny", cells, tmp_path, None)
    assert folder is not None
    before = (folder / "cifar-10-batches-py" / "test_batch").stat().st_mtime_ns
    assert prepare_data("tiny", cells, tmp_path, None) == folder
    assert (folder / "cifar-10-batches-py" / "test_batch").stat().st_mtime_ns == before
    assert prepare_data("converged", cells, tmp_path, None) is None
    assert prepare_data("tiny", cells, tmp_path, Path("/mine")) == Path("/mine")


@pytest.mark.slow
def test_a_table_from_the_command_line_and_on_a_ray_cluster(tmp_path: Path) -> None:
    arguments = ("reproduce", "split", "--scale", "tiny", "--row", "cifar10-l6-bs2", "--output")
    shown = call(*arguments, tmp_path / "here", "--jobs", "2")
    assert "2 of 2 runs are finished" in shown
    pytest.importorskip("ray")
    shown = call(*arguments, tmp_path / "there", "--ray", "local")
    assert "2 of 2 runs are finished" in shown
    numbers = [json.loads((tmp_path / place / "report.json").read_text())["rows"] for place in ("here", "there")]
    accuracies = [[outcome["top1"] for outcome in rows[0]["outcomes"].values()] for rows in numbers]
    assert accuracies[0] == accuracies[1]


def test_what_a_scale_chooses_for_other_sweeps_is_left_out() -> None:
    """`gradient.quality` is for calibrated sweeps: a user who takes others must not be told off for it."""
    cell, *_ = EXPERIMENTS["split"].cells("converged", rows=["cifar10-l12-bs2"], overrides=["sweeps=settle"])
    assert cell.settings.sweeps == "settle"
    assert not any(change.startswith("gradient.quality") for change in cell.changes)
    cell, *_ = EXPERIMENTS["split"].cells("converged", rows=["cifar10-l12-bs2"], overrides=["optimiser.momentum=0.5"])
    with pytest.raises(SettingsError, match="momentum` has no effect"):
        cell.check(Path("nowhere"))
