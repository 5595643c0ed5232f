"""Studies: their files, their runs, and the answers that follow from numbers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from typer.testing import CliRunner

from ffebm.experiment.command_line import app
from ffebm.experiment.costing import price
from ffebm.experiment.data import load
from ffebm.experiment.errors import UserError
from ffebm.experiment.queue import LocalProcesses
from ffebm.experiment.report.document import Chart, Curve, Document, Section
from ffebm.experiment.report.page import page
from ffebm.experiment.report.studied import report_study
from ffebm.experiment.run import Run
from ffebm.experiment.studies import Axis, Level, study_names
from ffebm.experiment.studies.findings import Findings, Outcome, Point, find
from ffebm.experiment.studies.study import Study, read_study
from ffebm.experiment.technology_files import read_technology
from test_reproduction import finish

TECHNOLOGY = read_technology()
BITS = """
title = "Bits"
question = "How many?"
seeds = 2
[settings]
trainer.epochs = 1
[[axis]]
label = "bits"
phrase = "{} bits"
key = ["hardware.adc_bits", "hardware.dac_bits"]
values = [4, 6, 8]
"""


@pytest.fixture
def study(tmp_path: Path) -> Study:
    path = tmp_path / "bits.toml"
    path.write_text(BITS)
    return read_study(str(path))


def levels(*names: str) -> tuple[Level, ...]:
    return tuple(Level(name, (f"hardware.adc_bits={name}",)) for name in names)


def found(accuracies: dict[str, Sequence[float]], energies: dict[str, float] | None = None, tolerance: float = 1.0) -> Findings:
    """One axis, with an accuracy for each level and seed."""
    axis = Axis("bits", levels(*accuracies), "{} bits")
    points = tuple(
        Point(
            (level,),
            tuple(
                Outcome(Run(Path("nowhere")), seed, accuracy, None, (energies or {}).get(level.name), None, None)
                for seed, accuracy in enumerate(accuracies[level.name])
            ),
        )
        for level in axis.levels
    )
    return Findings(Study("bits", "Bits", "", "digits", (axis,), tolerance=tolerance), points)


def finish_all(study: Study, folder: Path, accuracy: dict[str, float]) -> None:
    """Leave what finished runs leave, without training."""
    description = load("digits").description
    for trial in study.trials():
        run = trial.run(folder)
        trial.settings.save(run.settings_file)
        run.save_description(description)
        finish(run, accuracy[trial.levels[0].name] - 0.001 * trial.seed)
        run.gradient_file.write_text(json.dumps({"cosine": 0.5}))


class TestFiles:
    def test_studies_that_come_along_can_be_made(self) -> None:
        assert {"bits", "noise", "settle-time", "split"} <= set(study_names())
        for name in study_names():
            study = read_study(name)
            trials = study.trials()
            assert len({trial.name for trial in trials}) == len(trials)
            assert len({trial.settings.model_dump_json() for trial in trials}) == len(trials)  # no two are the same
            assert study.question.endswith("?")

    def test_runs_are_all_levels_for_one_seed_after_the_other(self, study: Study) -> None:
        trials = study.trials()
        assert [trial.name for trial in trials] == [f"{bits}-seed{seed}" for seed in (0, 1) for bits in (4, 6, 8)]
        assert trials[1].overrides == ["trainer.epochs=1", "hardware.adc_bits=6", "hardware.dac_bits=6", "seed=0"]
        assert trials[1].settings.hardware.adc_bits == trials[1].settings.hardware.dac_bits == 6
        assert len(study.trials(1)) == 3
        assert study.trials(1, ["trainer.epochs=2"])[0].settings.trainer.epochs == 2

    def test_two_axes_and_levels_with_names_of_their_own(self, tmp_path: Path) -> None:
        path = tmp_path / "two.toml"
        path.write_text(
            BITS + '[[axis]]\nlabel = "nudge"\nvalues = [{ name = "weak nudge", settings = { gradient.beta = 0.1 } }, '
            '{ name = "strong: 1", settings = { gradient = { beta = 1.0 } } }]\n'
        )
        study = read_study(str(path))
        trials = study.trials(1)
        assert [trial.name for trial in trials[:2]] == ["4-weak-nudge-seed0", "4-strong-1-seed0"]
        assert [trial.settings.gradient.beta for trial in trials[:2]] == [0.1, 1.0]

    def test_seeds_may_be_listed(self, tmp_path: Path) -> None:
        path = tmp_path / "seeds.toml"
        path.write_text(BITS.replace("seeds = 2", "seeds = [100, 7]"))
        assert [trial.seed for trial in read_study(str(path)).trials()] == [100] * 3 + [7] * 3

    @pytest.mark.parametrize(
        ("old", "new", "words"),
        [
            ("title", "titel", "Unknown key `titel` of bits.toml; did you mean `title`"),
            ("seeds = 2", "seeds = 0", "`seeds` of bits.toml must be a whole number from 1"),
            ("seeds = 2", "seeds = [1, 1]", "a list of different seeds"),
            ("seeds = 2", "seeds = [true]", "a list of different seeds"),
            ("seeds = 2", "tolerance = -1", "`tolerance` of bits.toml must be a positive number"),
            ('"How many?"', "3", "`question` of bits.toml must be a text"),
            ("[settings]\ntrainer.epochs = 1", "settings = 3", "`settings` of bits.toml is a section"),
            ("trainer.epochs", "trainer.epoch", "did you mean `epochs`"),
            ("values = [4, 6, 8]", "values = [4]", "a list of 2 to 50"),
            ("values = [4, 6, 8]", "values = 4", "a list of 2 to 50"),
            ("values = [4, 6, 8]", "values = [4, 6, 0]", "hardware.adc_bits"),
            ("values = [4, 6, 8]", "values = [4, 4]", "would be called 4-seed0"),
            ("values = [4, 6, 8]", "values = [4, 1979-05-27]", "A setting cannot be"),
            ("values = [4, 6, 8]", "values = [{ settings = {} }, 3]", "needs a `name`"),
            ("values = [4, 6, 8]", f'values = ["{"x" * 61}", 3]', "60 characters are the most"),
            ("values", "value", "did you mean `values`"),
            ('"{} bits"', '"bits"', "`phrase` one with {}"),
            ('key = ["hardware.adc_bits", "hardware.dac_bits"]', "key = 3", "`key` in [[axis]] of bits.toml must be a setting"),
            ('key = ["hardware.adc_bits", "hardware.dac_bits"]', "", "no `key`"),
            ("[[axis]]", "[axis]", "needs one or two axes"),
        ],
    )
    def test_bad_files_are_refused(self, old: str, new: str, words: str, tmp_path: Path) -> None:
        assert old in BITS
        path = tmp_path / "bits.toml"
        path.write_text(BITS.replace(old, new, 1))
        with pytest.raises(UserError, match=re.escape(words)):
            read_study(str(path))

    def test_unknown_names_are_refused(self) -> None:
        with pytest.raises(UserError, match="Unknown study `bit`; did you mean `bits`"):
            read_study("bit")
        with pytest.raises(UserError, match="There is no file"):
            read_study("missing.toml")


class TestAnswers:
    def test_the_roughest_level_that_loses_little_is_enough(self) -> None:
        (answer,) = found({"4": [80, 82], "5": [95, 95.5], "8": [96, 96]}).answer()
        assert answer == (
            "With 5 bits, accuracy stays within 1 point of the 96.00 % with 8 bits: it loses 0.75 ± 0.25 points. "
            "With 4 bits it loses 15.00 ± 1.00 points."
        )

    def test_a_level_behind_one_that_fails_does_not_count(self) -> None:
        """Rougher may be better by luck: what lies between it and the reference has to hold, too."""
        (answer,) = found({"4": [96], "5": [90], "6": [96], "8": [96]}).answer()
        assert answer.startswith("With 6 bits")
        assert "With 5 bits it loses 6.00 points" in answer

    def test_losses_are_taken_seed_by_seed(self) -> None:
        """Seeds differ by ten points, levels by half a point in each."""
        (answer,) = found({"4": [79.5, 89.5], "8": [80, 90]}).answer()
        assert "it loses 0.50 ± 0.00 points" in answer

    def test_nothing_may_be_enough_and_everything_too(self) -> None:
        assert found({"4": [50], "8": [96]}).answer()[0].startswith("Only with 8 bits is accuracy what it is there, 96.00 %")
        (answer,) = found({"4": [97], "8": [96]}).answer()
        assert answer == "With 4 bits, accuracy stays within 1 point of the 96.00 % with 8 bits: it gains 1.00 points."

    def test_the_tolerance_is_the_studys(self) -> None:
        assert found({"4": [92], "8": [96]}, tolerance=5).answer()[0].startswith("With 4 bits, accuracy stays within 5 points")

    def test_energy_stands_beside(self) -> None:
        (answer,) = found({"4": [96], "8": [96]}, {"4": 1e-9, "8": 4e-9}).answer()
        assert "at 25 % of the energy of a training step (1 nJ a sample)" in answer

    def test_without_the_reference_there_is_no_answer(self) -> None:
        assert found({"4": [96], "8": []}).answer() == ["No run with 8 bits is finished, which all others are compared with."]

    def test_levels_without_runs_are_passed_over(self) -> None:
        assert found({"4": [96], "5": [], "8": [96]}).answer()[0].startswith("With 4 bits")

    def test_each_level_of_a_second_axis_has_its_answer(self) -> None:
        bits, rules = Axis("bits", levels("4", "8"), "{} bits"), Axis("rule", (Level("EP fixed", ()), Level("automatic", ())))
        accuracy = {("4", "EP fixed"): 80, ("8", "EP fixed"): 90, ("4", "automatic"): 90, ("8", "automatic"): 90}
        run = Run(Path("nowhere"))
        points = tuple(
            Point((bit, rule), (Outcome(run, 0, accuracy[bit.name, rule.name], None, None, None, None),))
            for bit in bits.levels
            for rule in rules.levels
        )
        answers = Findings(Study("s", "S", "", "digits", (bits, rules)), points).answer()
        assert answers[0].startswith("EP fixed: only with 8 bits")
        assert answers[1].startswith("Automatic: with 4 bits")

    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=12))
    def test_the_front_is_what_nothing_beats(self, pairs: list[tuple[int, int]]) -> None:
        accuracies = {str(number): [float(accuracy)] for number, (accuracy, _) in enumerate(pairs)}
        energies = {str(number): float(energy) for number, (_, energy) in enumerate(pairs)}
        findings = found(accuracies, energies)
        front = findings.front()

        def beats(one: Point, other: Point) -> bool:
            better = one.accuracy > other.accuracy or one.energy < other.energy
            return better and one.accuracy >= other.accuracy and one.energy <= other.energy

        assert front
        assert not any(beats(one, other) for one in findings.points for other in front)
        assert all(any(beats(one, other) for one in front) for other in findings.points if other not in front)
        assert [point.energy for point in front] == sorted(point.energy for point in front)

    def test_points_without_energy_are_on_no_front(self) -> None:
        assert found({"4": [96], "8": [97]}, {"4": 1e-9}).front()[0].levels[0].name == "4"
        assert len(found({"4": [96], "8": [97]}, {"4": 1e-9}).front()) == 1


class TestReports:
    def test_what_runs_left_is_read_and_priced(self, study: Study, tmp_path: Path) -> None:
        finish_all(study, tmp_path, {"4": 0.8, "6": 0.95, "8": 0.96})
        trials = study.trials()
        findings = find(study, trials, tmp_path, TECHNOLOGY)
        assert [point.accuracy for point in findings.points] == pytest.approx([79.95, 94.95, 95.95])
        assert findings.points[0].cosines == [0.5, 0.5]
        cost = price("", trials[0].settings, TECHNOLOGY).estimate.training
        assert cost is not None
        assert findings.points[0].energy == pytest.approx(cost.energy / cost.batch)
        assert findings.points[0].energy < findings.points[2].energy
        assert [findings.points.index(point) for point in findings.front()] == [0, 1, 2]

    def test_unfinished_runs_are_left_out(self, study: Study, tmp_path: Path) -> None:
        finish_all(study, tmp_path, {"4": 0.8, "6": 0.95, "8": 0.96})
        (tmp_path / "6-seed1" / "metrics.csv").unlink()
        findings = find(study, study.trials(), tmp_path, TECHNOLOGY)
        assert [len(point.outcomes) for point in findings.points] == [2, 1, 2]

    def test_what_has_no_price_says_why(self, study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        finish_all(study, tmp_path, {"4": 0.8, "6": 0.95, "8": 0.96})

        def refuse(*_: object) -> None:
            raise UserError("No crossbars are known.")

        monkeypatch.setattr("ffebm.experiment.studies.findings.price", refuse)
        findings = find(study, study.trials(), tmp_path, TECHNOLOGY)
        assert findings.unpriced == "No crossbars are known."
        assert math.isnan(findings.points[0].energy)
        assert "No crossbars are known." in report_study(findings, tmp_path / "report", TECHNOLOGY, 6)

    def test_a_report_answers_and_shows_every_level(self, study: Study, tmp_path: Path) -> None:
        finish_all(study, tmp_path, {"4": 0.8, "6": 0.955, "8": 0.96})
        findings = find(study, study.trials(), tmp_path, TECHNOLOGY)
        text = report_study(findings, tmp_path / "report", TECHNOLOGY, 7, {"9-seed0": "it was not to be"})
        for words in (*findings.answer(), "6 of 7 runs are finished", "Failed: 9-seed0: it was not to be", "79.95 ± 0.05"):
            assert words in text
        folder = tmp_path / "report"
        html = (folder / "report.html").read_text()
        charts = json.loads(re.findall(r'id="charts">(.*?)</script>', html, re.DOTALL)[0])
        assert charts[0]["traces"][0]["text"][1].startswith("hardware.adc_bits=6<br>hardware.dac_bits=6<br>test accuracy 95.45")
        assert "error_y" in charts[0]["traces"][0]
        numbers = json.loads((folder / "report.json").read_text())
        assert [point["levels"] for point in numbers["points"]] == [["4"], ["6"], ["8"]]
        assert numbers["answer"] == findings.answer()
        assert numbers["technology"]["constants"]["adc_power"]["source"]
        assert (folder / "study.png").stat().st_size > 10_000

    def test_charts_take_names_notes_and_errors(self) -> None:
        curve = Curve("<b>c", ["4", "<i>6"], [1.0, 2.0], errors=[0.1, math.nan], notes=["one\ntwo", "<script>"], points=True)
        html = page(Document("t", [Section("s", [Chart("c", "<u>x", "y", [curve], steps=True)])], {}))
        (chart,) = json.loads(re.findall(r'id="charts">(.*?)</script>', html, re.DOTALL)[0])
        (trace,) = chart["traces"]
        assert chart["steps"] is True
        assert chart["x"] == "&lt;u&gt;x"
        assert trace["x"] == ["4", "&lt;i&gt;6"]
        assert trace["text"] == ["one<br>two", "&lt;script&gt;"]
        assert trace["error_y"]["array"] == [0.1, 0]
        assert trace["mode"] == "markers"


class TestCommand:
    runner = CliRunner()

    def run(self, *arguments: str) -> str:
        result = self.runner.invoke(app, ["study", *arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    def test_the_list_names_questions_and_runs(self) -> None:
        text = self.run("--list")
        assert all(name in text for name in study_names())
        assert "How many bits" in text or "bits" in text

    def test_a_preview_says_how_many_runs(self) -> None:
        study = read_study("bits")
        text = self.run("bits", "--dry-run")
        assert f"{len(study.trials())} runs" in text
        assert f"About {round(study.minutes or 0)} minutes" in text
        assert f"{len(study.trials(1))} runs" in self.run("bits", "--dry-run", "--seeds", "1", "trainer.epochs=1")

    def test_a_preview_looks_at_no_runs(self, study: Study, tmp_path: Path) -> None:
        finish_all(study, tmp_path / "runs", {"4": 0.8, "6": 0.955, "8": 0.96})
        where = ("--output", str(tmp_path / "runs"))
        assert "6 runs" in self.run(str(tmp_path / "bits.toml"), "--dry-run", "trainer.epochs=2", *where)

    def test_commands_for_a_scheduler(self, tmp_path: Path) -> None:
        lines = self.run("bits", "--print", "--seeds", "1", "--output", str(tmp_path)).splitlines()
        assert len(lines) == len(read_study("bits").trials(1))
        assert f"--output {tmp_path}/" in lines[0]

    def test_a_study_can_be_started_from(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.toml"
        path.write_text(self.run("bits", "--show"))
        assert read_study(str(path)).axes == read_study("bits").axes

    def test_finished_runs_are_kept_and_reported(self, study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The queue finds all of them finished: nothing is launched, and the report is written anew."""

        def never(*_: object) -> int:
            raise AssertionError("a finished run was begun again")

        monkeypatch.setattr(LocalProcesses, "__call__", never)
        folder = tmp_path / "runs"
        finish_all(study, folder, {"4": 0.8, "6": 0.955, "8": 0.96})
        text = self.run(str(tmp_path / "bits.toml"), "--output", str(folder))
        assert "With 6 bits, accuracy stays within 1 point of the 95.95 % with 8 bits" in text
        found = json.loads(self.run(str(tmp_path / "bits.toml"), "--output", str(folder), "--json"))
        assert found["answer"][0].startswith("With 6 bits")

    def test_runs_with_other_settings_are_not_taken_for_the_studys(self, study: Study, tmp_path: Path) -> None:
        folder = tmp_path / "runs"
        finish_all(study, folder, {"4": 0.8, "6": 0.955, "8": 0.96})
        with pytest.raises(UserError, match="was begun with other settings"):
            self.run(str(tmp_path / "bits.toml"), "optimiser.learning_rate=0.5", "--output", str(folder))

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ([], "Which study?"),
            (["bit"], "did you mean `bits`"),
            (["bits", "nonsense"], "neither a table of constants"),
            (["bits", "a.toml", "b.toml"], "One table of constants"),
            (["bits", "seed=3"], "--seeds says how many"),
            (["bits", "data.root=/d"], "give --data"),
            (["bits", "trainer.epoch=3"], "did you mean `epochs`"),
        ],
    )
    def test_mistakes_are_told(self, arguments: list[str], words: str) -> None:
        with pytest.raises(UserError, match=re.escape(words)):
            self.runner.invoke(app, ["study", *arguments], catch_exceptions=False)

    @pytest.mark.slow
    def test_a_study_runs_stops_and_goes_on(self, study: Study, tmp_path: Path) -> None:
        """Two levels of one seed, really trained; the second call finds them finished."""
        path, folder = tmp_path / "short.toml", tmp_path / "runs"
        path.write_text(BITS.replace("[4, 6, 8]", "[3, 8]").replace("seeds = 2", "seeds = 1"))
        text = self.run(str(path), "--output", str(folder), "--jobs", "1")
        assert "2 of 2 runs are finished" in text
        before = {file: file.stat().st_mtime_ns for file in folder.rglob("weights.safetensors")}
        assert len(before) == 2
        self.run(str(path), "--output", str(folder), "--jobs", "1")
        assert {file: file.stat().st_mtime_ns for file in before} == before
