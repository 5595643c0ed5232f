"""How blocks and gradient of a run stand at its end: measured as training would go on, and held against what converges."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ffebm.experiment.benchmark.command import of_run
from ffebm.experiment.errors import RunError, UserError
from ffebm.experiment.final_check import check_run, final_check_of, measure_run
from ffebm.experiment.preset import read_preset
from ffebm.experiment.report import look, look_if_possible
from ffebm.experiment.reproduction.static import analyse_run
from ffebm.experiment.run import Run
from ffebm.experiment.training import train
from test_command_line import call

SMALL = ["model.channels=[6, 6, 6]", "model.pooled=[]", "model.split=[1, 2]", "trainer.epochs=1", "trainer.threads=1"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of one epoch by EP and by plain backprop."""
    folder = tmp_path_factory.mktemp("runs")
    for kind in ("ep", "bp"):
        train(read_preset("digits", [*SMALL, f"gradient.kind={kind}"]), Run(folder / kind), Console(quiet=True), quiet=True)
    return {kind: folder / kind for kind in ("ep", "bp")}


@pytest.fixture
def run(trained: dict[str, Path], tmp_path: Path) -> Run:
    return Run.open(shutil.copytree(trained["ep"], tmp_path / "run"))


def test_blocks_are_certified_and_at_rest_and_the_gradient_is_as_good_as_asked_for(run: Run) -> None:
    found, settings = check_run(run), run.settings()
    assert (found.images, found.epoch, found.trouble) == (64, 1, "")
    alone, pair = found.blocks
    assert alone.contraction == 0.0  # of one layer
    assert pair.contraction is not None
    assert 0 < pair.contraction <= 0.5
    assert found.contraction == pair.contraction
    assert settings.relaxation.tolerance is not None
    assert found.rest == max(alone.rest, pair.rest) <= settings.relaxation.tolerance
    assert 1 < pair.free_sweeps <= settings.relaxation.steps
    assert pair.nudged_sweeps is not None
    assert pair.nudged_sweeps <= settings.gradient.steps
    assert found.cosine is not None
    assert settings.gradient.quality < found.cosine <= 1
    assert found.cosines[found.parameter] == found.cosine == min(c for c in found.cosines.values() if c is not None)
    assert final_check_of(run) == found
    assert measure_run(run) == found


def test_what_was_measured_before_the_end_does_not_count(run: Run) -> None:
    check_run(run)
    (row,) = run.metrics()
    run.save_metrics([row, {**row, "epoch": 2}])
    assert final_check_of(run) is None


@pytest.mark.parametrize("content", ["{", "[]", '{"images": 64}', '{"images": 64, "blocks": []}', "null"])
def test_a_damaged_file_is_named(run: Run, content: str) -> None:
    run.final_file.write_text(content)
    with pytest.raises(UserError, match=r"final\.json cannot be read.*ffebm check"):
        final_check_of(run)


@pytest.mark.parametrize(
    "change",
    [{"cosine": 1.1}, {"cosines": {"a": -2}}, {"parameter": "a\nb"}, {"trouble": "x" * 1000}, {"blocks": [{"residual": -1.0}]}],
)
def test_what_no_run_comes_to_is_refused(run: Run, change: dict[str, Any]) -> None:
    sound = asdict(check_run(run))
    if "blocks" in change:
        change = {"blocks": [{**sound["blocks"][0], **change["blocks"][0]}]}
    run.final_file.write_text(json.dumps({**sound, **change}))
    with pytest.raises(UserError, match=r"final\.json cannot be read"):
        final_check_of(run)


def test_the_command_shows_and_keeps_it(run: Run) -> None:
    shown = call("check", run.folder)
    found = final_check_of(run)
    assert found is not None
    assert f"{found.cosine:.5f} ({found.parameter})" in shown
    assert "block 2 of 2" in shown
    assert json.loads(call("check", run.folder, "--json")) == asdict(found)


def test_of_plain_backprop_there_is_nothing_to_see(trained: dict[str, Path]) -> None:
    run = Run.open(trained["bp"])
    for ask in (measure_run, analyse_run, look, lambda run: of_run(run, None, 8)):
        with pytest.raises(RunError, match="trained by plain backprop"):
            ask(run)
    assert "plain backprop" in look_if_possible([run])[1][0]
    assert not run.final_file.exists()
