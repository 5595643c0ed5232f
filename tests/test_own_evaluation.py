"""A model on test images: those of its own run, which no training saw, or others, of which all are for testing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

import ffebm
from ffebm.experiment import Run, evaluate_run, read_preset, train
from ffebm.experiment.command_line import app
from ffebm.experiment.data import DataError
from ffebm.experiment.errors import Remark
from ffebm.experiment.evaluation import evaluation_of, is_up_to_date, out_of_date
from ffebm.experiment.report import look, write_report
from ffebm.experiment.trained import load_trained
from images import CLASSES, TINY, picture, pictures, tensors

WISHES = ["data.size=8", "data.colours=grey", "data.test_part=0.3", "data.test_seed=5"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run on thirty pictures that are not divided; they lie beside it."""
    folder = tmp_path_factory.mktemp("own")
    root = pictures(folder / "data", {"": 10})
    train(read_preset("folder", [*TINY, *WISHES, f"data.root={root}"]), Run.create(folder / "run", ""), quiet=True)
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Run:
    """A copy to write into, with its data where it was."""
    shutil.copytree(trained / "run", tmp_path / "run")
    return Run.open(tmp_path / "run")


def call(*arguments: object) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return result.output


class TestItsOwnData:
    def test_the_test_images_are_those_of_the_training(self, run: Run) -> None:
        found, last = evaluate_run(run), run.metrics()[-1]
        assert (found.images, found.own_data) == (9, True)
        assert found.loss == pytest.approx(last["test_loss"], rel=1e-5)
        assert found.top1 == pytest.approx(last["test_accuracy"], rel=1e-5)

    def test_so_they_are_where_the_folder_was_moved(self, run: Run, trained: Path, tmp_path: Path) -> None:
        shutil.copytree(trained / "data", tmp_path / "moved")
        assert evaluate_run(run, tmp_path / "moved") == evaluate_run(run)
        assert evaluate_run(run, trained / "run" / ".." / "data") == evaluate_run(run)
        assert look(run, images=9, data=tmp_path / "moved").blocks == look(run, images=9).blocks

    def test_so_they_are_of_what_a_program_hands_over(self, tmp_path: Path) -> None:
        """Size, colours, part and seed are those of the settings."""
        data = [(picture(number, 12 + number % 5, number % 2 == 0), CLASSES[number % 3]) for number in range(30)]
        run = train(read_preset("folder", [*TINY, *WISHES]), Run.create(tmp_path / "run", ""), quiet=True, data=data).run
        found, last = evaluate_run(run, data=data), run.metrics()[-1]
        assert (found.images, found.own_data) == (9, True)
        assert found.loss == pytest.approx(last["test_loss"], rel=1e-5)

    def test_images_that_came_since_are_remarked(self, tmp_path: Path) -> None:
        root = pictures(tmp_path / "data", {"": 4})
        run = train(read_preset("folder", [*TINY, f"data.root={root}"]), Run.create(tmp_path / "run", ""), quiet=True).run
        picture(99).save(root / "cats" / "new.png")
        with pytest.warns(Remark, match="other images than when the model was trained: .* may have been learnt"):
            assert evaluate_run(run).images == 3

    def test_a_fingerprint_that_is_none_is_refused(self, run: Run) -> None:
        content = json.loads((run.folder / "data.json").read_text())
        assert len(content["fingerprint"]) == 64
        for wrong in (3, "x" * 64, ["a"]):
            (run.folder / "data.json").write_text(json.dumps({**content, "fingerprint": wrong}))
            with pytest.raises(ffebm.experiment.errors.RunError, match="the fingerprint of the images is none"):
                run.description()


class TestOtherData:
    @pytest.mark.parametrize(
        ("parts", "images"),
        [({"": 6}, 18), ({"test": 2}, 6), ({"Train": 3, "Testing": 1}, 3), ({"train": 2}, 6), ({"val": 1, "test": 2}, 6)],
    )
    @pytest.mark.filterwarnings("ignore:.*passed over")
    def test_all_that_is_not_for_training_is_tested(self, run: Run, tmp_path: Path, parts: dict[str, int], images: int) -> None:
        found = evaluate_run(run, pictures(tmp_path / "other", parts, side=20))
        assert (found.images, found.own_data) == (images, False)
        assert sum(map(sum, found.confusion)) == images

    def test_the_terminal_says_so(self, run: Run, tmp_path: Path) -> None:
        other = pictures(tmp_path / "other", {"": 6})
        shown = call("evaluate", run.folder, "--data", other)
        assert "18 test images" in shown
        assert f"These are not the run's own images, but all that {other} has, without a part for training." in shown
        assert "9 test images" in (own := call("evaluate", run.folder))
        assert "These are not" not in own

    @pytest.mark.parametrize("few", [tensors(9), TensorDataset(torch.rand(3, 3, 12, 12), torch.zeros(3, dtype=torch.long))])
    def test_of_what_a_program_hands_over(self, tmp_path: Path, few: Any) -> None:
        """All of one data set; of a pair the second, whatever the first one holds."""
        data = tensors(24), tensors(6)
        run = train(read_preset("folder", TINY), Run.create(tmp_path / "run", ""), quiet=True, data=data).run
        assert evaluate_run(run, data=tensors(60)).images == 60
        found = evaluate_run(run, data=(few, tensors(15)))
        assert (found.images, found.own_data) == (15, False)
        assert evaluate_run(run, data=data).own_data

    def test_the_numbers_of_classes_are_those_of_the_model(self, run: Run) -> None:
        """By a second way: what the model predicts for each picture by itself."""
        drawn = [(picture(number), CLASSES[number % 3]) for number in range(1, 30) if number % 3]
        guesses = [ffebm.load(run.folder).predict(image).labels[0] for image, _ in drawn]
        found = evaluate_run(run, data=drawn)
        assert found.top1 == pytest.approx(sum(a == b for a, (_, b) in zip(guesses, drawn, strict=True)) / len(drawn))
        assert sum(found.confusion[0]) == 0, "nothing is of the first class"

    def test_classes_that_the_model_does_not_know_are_named_once(self, run: Run) -> None:
        with pytest.raises(DataError, match=r"The model knows no class cows, but cats, dogs, newts\.$"):
            evaluate_run(run, data=[(picture(number), "cows") for number in range(4)])

    def test_a_model_of_wide_images_gets_the_middle_of_others(self, tmp_path: Path) -> None:
        wide = [(x[:, 3:9], y) for x, y in tensors(24)]
        run = train(read_preset("folder", TINY), Run.create(tmp_path / "run", ""), quiet=True, data=wide).run
        assert run.description().shape == (3, 6, 12)
        assert evaluate_run(run, data=tensors(24)) == evaluate_run(run, data=wide), "they are its own, then"
        assert evaluate_run(run, data=tensors(30)).images == 30


class TestAReport:
    def written(self, run: Run) -> str:
        write_report(run.folder / "report", "t", runs=[run])
        return "".join((run.folder / "report" / name).read_text() for name in ("report.md", "report.html"))

    def test_confusions_of_the_run_as_it_is_are_shown(self, run: Run) -> None:
        assert "`ffebm evaluate` of this run adds" in self.written(run)
        evaluate_run(run)
        assert is_up_to_date(run)
        assert "9 test images: true class (row)" in self.written(run)

    def test_those_of_other_images_are_left_out_and_made_anew(self, run: Run, tmp_path: Path) -> None:
        evaluate_run(run, pictures(tmp_path / "other", {"": 6}))
        assert "it was of other images than the run's own: `ffebm evaluate` measures them anew" in self.written(run)
        call("report", run.folder, "--output", tmp_path / "page")
        assert "9 test images: true class (row)" in (tmp_path / "page" / "report.html").read_text()

    def test_those_of_other_weights_are_left_out_and_made_anew(self, run: Run, tmp_path: Path) -> None:
        evaluate_run(run)
        model, _ = load_trained(run)
        with torch.no_grad():
            next(model.parameters()).add_(0.1)
        run.save_weights(model)
        assert "it was of other weights than the run has now" in self.written(run)
        call("report", run.folder, "--output", tmp_path / "page")
        assert "9 test images: true class (row)" in (tmp_path / "page" / "report.html").read_text()

    def test_a_checkpoint_that_became_the_weights_is_still_the_same(self, run: Run) -> None:
        weights = run.weights_file.read_bytes()
        run.weights_file.unlink()
        assert evaluate_run(run).weights.startswith("step-")
        run.weights_file.write_bytes(weights)
        found = evaluation_of(run)
        assert found is not None
        assert not out_of_date(run, found)

    @pytest.mark.parametrize("change", [{"images": "many"}, {"confusion": [[1]]}, {"loss": "inf"}, {"classes": [1]}])
    def test_a_damaged_evaluation_is_said(self, run: Run, change: dict[str, Any]) -> None:
        evaluate_run(run)
        path = run.folder / "evaluation.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
        assert "What `ffebm evaluate` found cannot be read" in self.written(run)
        assert not is_up_to_date(run)


def test_numbers_come_before_anything_is_drawn(run: Run) -> None:
    """Neither Lightning nor matplotlib is loaded for them, which take seconds."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom ffebm.experiment.run import Run\n"
        "from ffebm.experiment.evaluation import evaluate_run\n"
        f"print(evaluate_run(Run.open(Path({str(run.folder)!r})), drawn=False).images)\n"
        "assert not {'lightning', 'matplotlib', 'sklearn', 'torch._dynamo'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "9\n"), done.stderr
    assert not (run.folder / "confusion.png").exists()
    assert json.loads(call("evaluate", run.folder, "--json"))["images"] == 9
    with Image.open(run.folder / "confusion.png") as drawn:
        drawn.verify()
