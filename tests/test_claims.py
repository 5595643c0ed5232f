"""What converged runs are to show: which claims there are, and when they hold, fail, or wait for more runs."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from ffebm.experiment.final_check import BlockAtRest, FinalCheck
from ffebm.experiment.preset import read_preset
from ffebm.experiment.report import write_report
from ffebm.experiment.report.claims import AtLeast, Claim, Close, Settled, SplitsAlike, TrueGradients, claims_of, verdict_table
from ffebm.experiment.report.epochs_figure import epochs_figure, most_compared
from ffebm.experiment.report.outcome import Comparison, Outcome, comparisons_of
from ffebm.experiment.report.reproduced import recipe_table, report_experiment
from ffebm.experiment.reproduction import EXPERIMENTS, SCALES
from ffebm.experiment.run import Run
from test_reproduction import finish

SPLIT, SCALING = EXPERIMENTS["split"], EXPERIMENTS["scaling"]
SETTINGS = read_preset("cifar10-l12-bs2")
AT_REST = FinalCheck(64, [BlockAtRest("block 1 of 1", 0.5, 4, 3, 1e-3, 2e-3)], 0.9995, "readout.1.bias", {}, epoch=1)


def row(**top1: list[float]) -> Comparison:
    outcomes = {kind: Outcome(seeds=[*range(len(values))], top1=values) for kind, values in top1.items()}
    return Comparison("a row", SETTINGS, outcomes)


def measured(folder: Path, *checks: FinalCheck | None) -> dict[str, Comparison]:
    """A row of finished runs of one epoch, with what was measured of each at the end."""
    runs = []
    for seed, check in enumerate(checks):
        runs.append(Run(folder / f"one-ep-seed{seed}"))
        read_preset("cifar10-l12-bs2", ["trainer.epochs=1", f"seed={seed}"]).save(runs[-1].settings_file)
        finish(runs[-1], 0.8)
        if check is not None:
            runs[-1].final_file.write_text(json.dumps(asdict(check)))
    (found,) = comparisons_of(runs)
    return {"one": found}


@pytest.mark.parametrize(
    ("claim", "rows", "verdict", "found"),
    [
        (Close("one", "id", 0.5, 1), {}, "not yet run", ""),
        (Close("one", "id", 0.5, 1), {"one": row(ep=[80.0])}, "not yet run", ""),
        (Close("one", "id", 0.5, 1), {"one": row(ep=[80.0], id=[80.5])}, "holds", "-0.50"),
        (Close("one", "id", 0.5, 1), {"one": row(ep=[81.0], id=[80.0])}, "does not hold", "+1.00"),
        (Close("one", "id", 0.5, 2), {"one": row(ep=[81.0, 80], id=[80.0])}, "not yet run", "+1.00 (1 of 2 seeds)"),
        (Close("one", "bp", 1, 2), {"one": row(ep=[80.0, 79], bp=[80.0, 81])}, "holds", "-1.00 ± 1.00"),
        (SplitsAlike(("one", "other"), 1.5), {}, "not yet run", ""),
        (SplitsAlike(("one", "other"), 1.5), {"one": row(ep=[80.0])}, "not yet run", "0.00 apart (1 of 2 rows)"),
        (SplitsAlike(("one", "other"), 1.5), {"one": row(ep=[80, 81.0]), "other": row(ep=[82])}, "holds", "1.50 apart"),
        (SplitsAlike(("one", "other"), 1.5), {"one": row(ep=[80.0]), "other": row(ep=[82])}, "does not hold", "2.00 apart"),
        (
            SplitsAlike(("one", "other", "third"), 1.5),
            {"one": row(ep=[80.0]), "other": row(ep=[82])},
            "does not hold",
            "2.00 apart",
        ),
        (AtLeast("one", 83), {}, "not yet run", ""),
        (AtLeast("one", 83), {"one": row(ep=[82.0, 84.0])}, "holds", "83.00 ± 1.00 (2)"),
        (AtLeast("one", 83), {"one": row(ep=[82.9])}, "does not hold", "82.90 (1)"),
    ],
)
def test_a_claim_is_judged_by_the_numbers(claim: Claim, rows: dict[str, Comparison], verdict: str, found: str) -> None:
    judged = claim.judge(rows)
    assert (judged.verdict, judged.found) == (verdict, found)
    assert verdict_table([judged]).rows == [(judged.claim, verdict, found)]


@pytest.mark.parametrize(
    ("changes", "settled", "true"),
    [
        ({}, "holds", "holds"),
        ({"cosine": 0.9989}, "holds", "does not hold"),
        ({"cosine": None, "parameter": "", "trouble": "it moves"}, "holds", "does not hold"),
        ({"blocks": [replace(AT_REST.blocks[0], contraction=None)]}, "does not hold", "holds"),
        ({"blocks": [replace(AT_REST.blocks[0], contraction=1.1)]}, "does not hold", "holds"),
        ({"blocks": [AT_REST.blocks[0], replace(AT_REST.blocks[0], rest=0.1)]}, "does not hold", "holds"),
    ],
)
def test_blocks_and_gradients_are_judged_by_what_was_measured_at_the_end(
    changes: dict[str, object], settled: str, true: str, tmp_path: Path
) -> None:
    rows = measured(tmp_path, AT_REST, replace(AT_REST, **changes))
    assert [Settled(2).judge(rows).verdict, TrueGradients(2).judge(rows).verdict] == [settled, true]
    assert "(2 of 2 runs)" in Settled(2).judge(rows).found


def test_what_holds_so_far_waits_for_the_rest_and_what_fails_has_failed(tmp_path: Path) -> None:
    rows = measured(tmp_path, AT_REST, None, replace(AT_REST, epoch=0))  # unmeasured, and measured too early
    assert Settled(3).judge(rows).verdict == "not yet run"
    assert Settled(3).judge(rows).found == "slowest block 0.500, largest residual 2.0e-03 (1 of 3 runs)"
    assert Settled(3).judge({}).verdict == TrueGradients(3).judge({}).verdict == "not yet run"
    failing = measured(tmp_path / "more", replace(AT_REST, cosine=0.9), None)
    assert TrueGradients(2).judge(failing).verdict == "does not hold"


def test_the_converged_table_has_the_claims_that_it_was_made_for() -> None:
    scale = SCALES["converged"]
    claims = claims_of(SPLIT.cells("converged"), scale.goals["split"], scale.checked)
    assert claims == [
        Close("cifar10-l12-bs2", "id", 0.5, 3),
        Close("cifar10-l12-bs4", "id", 1.0, 1),
        Close("cifar10-l6-bs6", "id", 1.0, 1),
        Close("cifar10-l12-bs2", "bp", 1.0, 3),
        Close("cifar10-l6-bs2", "bp", 1.0, 1),
        SplitsAlike(("cifar10-l12-bs2", "cifar10-l12-bs4", "cifar10-l12-bs3"), 1.5),
        SplitsAlike(("cifar10-l6-bs2", "cifar10-l6-bs6"), 1.5),
        AtLeast("cifar10-l12-bs2", 83),
        AtLeast("cifar10-l12-bs2-w4", 88),
        Settled(13),
        TrueGradients(13),
    ]
    assert claims_of(SCALING.cells("converged"), {}, checked=False) == [Close("cifar100-l12", "id", 1.0, 1)]


def test_a_report_says_what_the_recipe_changes_and_what_is_still_to_be_run(tmp_path: Path) -> None:
    cells = SPLIT.cells("converged")
    for cell in cells[:2]:  # one by EP, one by plain backprop
        cell.settings.save(cell.run(tmp_path).settings_file)
        finish(cell.run(tmp_path), 0.84, cell.settings.trainer.epochs)
    check = replace(AT_REST, epoch=cells[0].settings.trainer.epochs)
    cells[0].run(tmp_path).final_file.write_text(json.dumps(asdict(check)))
    text = report_experiment(SPLIT, "converged", cells[:1], tmp_path, look_closer=False)
    assert f"2 of {len(cells)} runs are finished" in text
    assert "Test images are counted after every epoch" in text
    assert "| EP within 1 of backprop: cifar10-l12-bs2, mean of 3 seeds | not yet run | +0.00 (1 of 3 seeds) |" in text
    assert "| EP comes to 88 %: cifar10-l12-bs2-w4 | not yet run |  |" in text
    assert "| 84.00 (1 of 3) | 84.00 (1 of 3) | +0.00 | 91.7 ± 0.2 |" in text
    changed = {line[0]: line[1:] for line in recipe_table(cells).rows}
    assert changed["model.width"] == ("0.125, 0.25", "1.0")
    assert changed["trainer.epochs"][1] == "200"
    assert not {"model.split", "seed", "gradient.kind", "trainer.threads", "description"} & set(changed)
    assert f"| model.width | {changed['model.width'][0]} | {changed['model.width'][1]} |" in text
    page = (tmp_path / "report.md").read_text()
    assert "| cifar10-l12-bs2-ep-seed0 | 0.50 | 4 + 3 | 1e-03 | 2e-03 | 0.99950 (readout.1.bias) |" in page
    numbers = json.loads((tmp_path / "report.json").read_text())
    assert {each["verdict"] for each in numbers["claims"]} == {"not yet run", "holds"}
    assert numbers["final"] == {cells[0].name: asdict(check)}
    assert (tmp_path / "epochs.png").read_bytes().startswith(b"\x89PNG")


def compared(folder: Path, **curves: list[float]) -> Comparison:
    """Runs of two epochs, or more, by the names of gradient and seed."""
    runs = []
    epochs = max(map(len, curves.values()))
    for name, curve in curves.items():
        kind, _, seed = name.partition("_")
        runs.append(Run(folder / name))
        changes = [f"trainer.epochs={epochs}", f"seed={seed}", f"gradient.kind={kind}"]
        read_preset("cifar10-l12-bs2", changes).save(runs[-1].settings_file)
        finish(runs[-1], 0.5, len(curve))
        runs[-1].save_metrics([{**old, "test_accuracy": new} for old, new in zip(runs[-1].metrics(), curve, strict=True)])
    (found,) = comparisons_of(runs)
    return found


def test_accuracy_by_epoch_is_the_mean_of_finished_seeds_and_their_range(tmp_path: Path) -> None:
    found = compared(tmp_path, ep_0=[0.5, 0.6], ep_1=[0.7, 0.7], bp_0=[0.4, 0.8], ep_2=[0.1])
    assert most_compared([row(ep=[50.0]), found]) is found
    assert most_compared([row(ep=[50.0, 51.0])]) is None
    (axes,) = epochs_figure(found).axes
    drawn = {str(line.get_label()): list(line.get_ydata()) for line in axes.lines}
    assert drawn == {
        "EP: 65.00 %, 2 seeds": pytest.approx([60, 65]),
        "plain backprop: 80.00 %, 1 seed": pytest.approx([40, 80]),
    }
    (band,) = axes.collections
    assert band.get_datalim(axes.transData).y0 == pytest.approx(50)
    assert band.get_datalim(axes.transData).y1 == pytest.approx(70)


def test_where_there_are_many_epochs_the_last_are_seen_from_nearby(tmp_path: Path) -> None:
    rising = [0.1 * epoch for epoch in range(1, 9)]
    whole, end = epochs_figure(compared(tmp_path, ep_0=rising, id_0=rising)).axes
    assert [list(line.get_xdata()) for line in whole.lines] == [[*range(1, 9)]] * 2
    assert [list(line.get_xdata()) for line in end.lines] == [[6, 7, 8]] * 2
    assert end.lines[0].get_ydata() == pytest.approx([60, 70, 80])


def test_a_damaged_measurement_is_named_in_the_report(tmp_path: Path) -> None:
    (found,) = measured(tmp_path, AT_REST).values()
    found.runs[0].final_file.write_text("{")
    write_report(tmp_path / "report", "Mine", runs=found.runs)
    assert "final.json cannot be read" in (tmp_path / "report" / "report.md").read_text()
    assert Settled(1).judge({"one": found}).verdict == "not yet run"
