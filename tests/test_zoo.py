"""Trained models that come with the package: found by name, confirmed by anybody, and put there by a script alone."""

from __future__ import annotations

import json
import runpy
import shutil
import tomllib
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console

import ffebm
from ffebm.experiment import Run, evaluate_run, read_preset, train
from ffebm.experiment.command_line.results import _held_against
from ffebm.experiment.data import load
from ffebm.experiment.errors import RunError
from ffebm.experiment.kept import keep
from ffebm.experiment.preset import read_preset_or_file
from ffebm.experiment.zoo import FOLDER, Entry, entries, entry, is_in_zoo, located, zoo_names
from test_command_line import TINY, call

ROOT = Path(__file__).parent.parent
SCRIPT = SimpleNamespace(**runpy.run_path(str(ROOT / "benchmarks" / "zoo.py")))
FILES = {"settings.toml", "data.json", "weights.safetensors", "zoo.json"}


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two finished runs of one recipe, and one of another."""
    folder = tmp_path_factory.mktemp("runs")
    for name, *changes in (("mine-seed0",), ("mine-seed1", "seed=1"), ("mine-seed2", "seed=2", "trainer.batch=128")):
        train(read_preset("digits", [*TINY, *changes]), Run.create(folder / name, ""), Console(quiet=True), quiet=True)
    return folder


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A zoo without models, which the script fills."""
    for function in ("add", "check_room"):
        monkeypatch.setitem(getattr(SCRIPT, function).__globals__, "FOLDER", tmp_path / "models")
    monkeypatch.setattr("ffebm.experiment.zoo.FOLDER", tmp_path / "models")
    return tmp_path / "models"


class TestWhatComesWithThePackage:
    def test_there_are_models_and_they_take_two_megabytes_at_most(self) -> None:
        assert "digits-l4-bs2" in zoo_names()
        assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= SCRIPT.MOST_BYTES == 2_000_000
        for each in entries():
            assert {path.name for path in each.folder.iterdir()} == FILES

    @pytest.mark.parametrize("name", zoo_names())
    def test_what_is_said_of_one_fits_its_files(self, name: str) -> None:
        known, run = entry(name), Run.open(FOLDER / name)
        settings = run.settings()
        assert SCRIPT.name_of(settings) == name
        assert settings.data.root is None
        assert (known.data, known.seed, known.epochs) == (settings.data.name, settings.seed, settings.trainer.epochs)
        assert known.seeds[str(known.seed)] == pytest.approx(known.accuracy, abs=2e-3)  # before weights were halved
        assert len(known.commit) == 40
        words = known.command.split()
        assert words[:2] == ["ffebm", "train"]
        source = next((word for word in words[2:3] if "=" not in word), None)
        again = read_preset_or_file(source, [word for word in words[2:] if "=" in word])
        pinned = again.model.model_copy(update={"feedback": settings.model.feedback})
        assert again.model_copy(update={"model": pinned}).recipe == settings.recipe
        assert settings.model.feedback is not None  # whatever a later version proposes
        assert ffebm.load(name).classes == run.description().classes

    def test_it_is_in_the_wheel(self) -> None:
        """Which has all files below the package but those that .gitignore names."""
        wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
        assert wheel == {"packages": ["src/ffebm"]}
        patterns = (ROOT / ".gitignore").read_text().split()
        for path in FOLDER.rglob("*"):
            parts = path.relative_to(ROOT).parts
            assert not any(fnmatch(part, pattern.strip("/")) for pattern in patterns for part in parts), path


class TestUse:
    def test_a_name_gives_a_model_that_predicts(self) -> None:
        test = load("digits").test
        seen = ffebm.load("digits-l4-bs2").predict(test.x)
        right = np.mean([int(label) == int(y) for label, y in zip(seen.labels, test.y, strict=True)])
        assert right == pytest.approx(entry("digits-l4-bs2").accuracy)

    def test_anybody_can_confirm_its_accuracy_and_nothing_is_written_into_the_package(self) -> None:
        known = entry("digits-l4-bs2")
        shown = call("evaluate", known.name)
        assert f"{100 * known.accuracy:.2f} %; confirmed." in shown
        found = json.loads(call("evaluate", known.name, "--json"))
        assert (found["top1"], found["images"], found["fingerprint"]) == (known.accuracy, known.images, known.fingerprint)
        assert "Smallest cosine" in call("check", known.name)
        assert {path.name for path in known.folder.iterdir()} == FILES

    def test_other_images_and_other_accuracies_confirm_nothing(self) -> None:
        known = entry("digits-l4-bs2")
        found = evaluate_run(Run.open(known.folder))
        assert "confirmed" not in _held_against(known, replace(found, fingerprint="0" * 64))
        assert "NOT confirmed, this is -1.00 points off" in _held_against(known, replace(found, top1=known.accuracy - 0.01))

    def test_unknown_names_are_refused_with_what_was_meant(self) -> None:
        with pytest.raises(RunError, match=r"no run folder.*did you mean `digits-l4-bs2`\?"):
            ffebm.load("digits-l4-bs3")
        with pytest.raises(RunError, match="`ffebm zoo` lists"):
            call("predict", "elephant", "x.png")
        with pytest.raises(RunError, match=r"it has no settings\.toml"):
            located(Path("runs/digits-l4-bs2"))

    def test_a_run_of_that_name_comes_first(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        name = Path("digits-l4-bs2")
        name.mkdir()
        assert is_in_zoo(located(name))  # which any other folder does not
        ffebm.load(name).save_pretrained("mine")
        name.rmdir()
        Path("mine").rename(name)
        assert located(name) == name
        assert not is_in_zoo(located(name).resolve())
        assert "evaluation.json" in call("evaluate", name)

    def test_all_are_listed(self) -> None:
        shown, known = call("zoo"), entry("digits-l4-bs2")
        assert known.error is not None
        assert f"{100 * known.mean:.2f} ± {100 * known.error:.2f} ({len(known.seeds)})" in shown
        assert f"digits-l4-bs2: {known.command}" in shown
        listed = {each["name"]: each for each in json.loads(call("zoo", "--json"))}
        assert set(listed) == set(zoo_names())
        assert listed[known.name]["accuracy"] == known.accuracy
        assert listed[known.name]["bytes"] == known.bytes


class TestTheScript:
    def test_numbers_come_from_the_files_of_runs(self, seeds: Path, empty: Path) -> None:
        added = SCRIPT.add(Run.open(seeds / "mine-seed0"))
        assert added == entry(added.name)
        assert added.name == "digits-l2-bs2"
        one, other = (Run.open(seeds / f"mine-seed{seed}").metrics()[-1]["test_accuracy"] for seed in (0, 1))
        assert added.seeds == {"0": one, "1": other}  # and not seed 2, which was trained otherwise
        assert added.accuracy == evaluate_run(Run.open(empty / added.name)).top1
        assert {path.name for path in (empty / added.name).iterdir()} == FILES
        assert [path.name for path in empty.iterdir()] == [added.name]

    def test_a_model_that_there_is_no_room_for_leaves_all_as_it_was(
        self, seeds: Path, empty: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = SCRIPT.add(Run.open(seeds / "mine-seed0"))
        monkeypatch.setitem(SCRIPT.check_room.__globals__, "MOST_BYTES", first.bytes - 1)
        with pytest.raises(SystemExit, match="leave a model out"):
            SCRIPT.add(Run.open(seeds / "mine-seed1"))
        assert entries() == [first]
        monkeypatch.setitem(SCRIPT.check_room.__globals__, "MOST_BYTES", first.bytes + 100)  # it takes its own place
        assert SCRIPT.add(Run.open(seeds / "mine-seed1")).seed == 1

    @pytest.mark.parametrize(
        ("changes", "words"), [({"epochs": 2}, "not finished"), ({"validation": 0.1}, "others do not have")]
    )
    def test_what_nobody_could_confirm_is_refused(
        self, seeds: Path, empty: Path, tmp_path: Path, changes: dict[str, float], words: str
    ) -> None:
        run = Run(shutil.copytree(seeds / "mine-seed0", tmp_path / "other"))
        settings = run.settings()
        data, trainer = ({k: v for k, v in changes.items() if k in vars(part)} for part in (settings.data, settings.trainer))
        settings.model_copy(
            update={"data": settings.data.model_copy(update=data), "trainer": settings.trainer.model_copy(update=trainer)}
        ).save(run.settings_file)
        with pytest.raises(SystemExit, match=words):
            SCRIPT.add(run)
        assert not empty.exists()

    def test_names_say_what_a_net_is(self) -> None:
        names = {
            "cifar10-l12-bs2-w8": ("cifar10-l12-bs2", "model.width=0.125"),
            "cifar100-l15-bs2-id": ("cifar100-l15", "gradient.kind=id"),
            "cifar10-l6-split2-4": ("cifar10-l6-bs2", "model.split=[2, 4]"),
        }
        assert {SCRIPT.name_of(read_preset(preset, changes)): name for name, (preset, *changes) in names.items()} == {
            name: name for name in names
        }

    def test_commands_are_told_without_places(self) -> None:
        told = SCRIPT.told(["/a/ffebm", "train", "x", "k=[1, 2]", "--data", "/d", "--output", "runs/x", "-q"])
        assert told == "ffebm train x 'k=[1, 2]'"


def test_what_is_kept_of_a_run_is_its_numbers_and_its_weights_in_half_precision(seeds: Path, tmp_path: Path) -> None:
    run = Run.open(seeds / "mine-seed0")
    kept = keep(run, tmp_path / "kept")
    (tmp_path / "kept" / "zoo.json").touch()
    assert {path.name for path in kept.folder.iterdir()} == {*FILES, "metrics.csv", "environment.json"}
    assert kept.metrics() == run.metrics()
    assert kept.settings().recipe == run.settings().recipe
    before, after = run.weights()[0], kept.weights()[0]
    assert all(tensor.dtype in (torch.float32, torch.int64) for tensor in after.values())
    differing = {name for name in before if not torch.equal(before[name], after[name])}
    assert differing
    assert all(before[name].numel() >= 1000 for name in differing)
    for name in differing:
        torch.testing.assert_close(after[name], before[name], rtol=2**-10, atol=2**-24)
    again = keep(kept, tmp_path / "again").weights()[0]
    assert all(torch.equal(again[name], after[name]) for name in after)


def test_an_entry_of_one_seed_has_no_error() -> None:
    one = Entry("a", "", "digits", 1, "", 0.5, 0, {"0": 0.5}, 1, "", "")
    assert (one.mean, one.error) == (0.5, None)
    assert replace(one, seeds={"0": 0.5, "1": 0.7}).error == pytest.approx(0.1)
