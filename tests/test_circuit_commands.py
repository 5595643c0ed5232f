"""`ffebm circuit export` and `check`, on a run with a Hopfield block and a resistive one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import mna
from ffebm.circuit import Circuit
from ffebm.experiment import Run, read_preset, train
from ffebm.experiment.circuits import export_circuit
from ffebm.experiment.data import digits
from ffebm.experiment.errors import UserError
from ffebm.experiment.trained import load_trained
from ffebm.hardware import netlist
from test_command_line import call, shell

MIXED = [
    "model.channels=[]",
    "model.pooled=[]",
    "model.dense=[12, 8, 8, 6]",
    "model.split=2",
    "resistive.blocks=[2]",
    "resistive.forward=2",
    "resistive.siemens=1e-3",
    "trainer.epochs=1",
    "trainer.batch=256",
    "trainer.threads=1",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "mixed"
    train(read_preset("digits", MIXED), Run(folder), quiet=True)
    return folder


def test_export_writes_what_rests_where_the_block_does(run: Path, tmp_path: Path) -> None:
    said = call(
        "circuit", "export", run, "--block", "2", "--sample", "7", "--output", tmp_path / "seven.cir", "--ideality", "1e-5"
    )
    text = (tmp_path / "seven.cir").read_text()
    assert f"Solve it by `ngspice -b {tmp_path}/seven.cir`" in said
    assert text.startswith("* Block 2 of 2 of mixed, with test image 7 at the model's input\n*\n")
    assert "A resistive network of 8 - 6 nodes" in text

    _, sections = mna.read(text)
    circuit = Circuit("read back", tuple(sections))
    found = mna.voltages(circuit)
    model, _ = load_trained(Run.open(run))
    data = digits()
    with torch.no_grad():
        *_, last = model.double().walk(data.normalise(data.test.x[7:8]).double())
    for layer, s in zip("hy", last.relaxed.state, strict=True):
        names = [node.name for node in circuit.nodes if node.name[0] == layer and node.name[-2:] != "_a"]
        volts = torch.tensor([found[name] for name in names], dtype=torch.float64)
        torch.testing.assert_close(volts, s[0], rtol=1e-3, atol=1e-3)  # diodes nearly ideal, and so many sweeps


def test_export_is_for_a_test_image_and_nothing_is_left_of_one_that_failed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (netlist(export_circuit(Run.open(run), 2, sample, tmp_path / "a.cir", 1e-4)) for sample in (0, 1))
    assert first != second
    assert (tmp_path / "a.cir").read_text() == second
    monkeypatch.chdir(tmp_path)
    call("circuit", "export", run, "--block", "2")
    assert Path("block-2.cir").read_text() == first
    with pytest.raises(UserError, match=r"Block 1 of .* cannot be exported: A Hopfield has no electrical circuit: `Resistive`"):
        call("circuit", "export", run, "--block", "1", "--output", tmp_path / "b.cir")
    assert not (tmp_path / "b.cir").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--block", "3"), "There is no block 3 in .*mixed: it has 2, counted from 1"),
        (("--block", "2", "--sample", "10000"), r"There is no test image 10000: digits has \d+, counted from 0"),
    ],
)
def test_what_is_not_there_is_told(run: Path, arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(UserError, match=words):
        call("circuit", "export", run, *arguments)


def test_check_without_ngspice_says_how_to_get_it(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"ngspice is not installed.*apt install ngspice"):
        call("circuit", "check", run)


@pytest.mark.ngspice
def test_check_lets_ngspice_judge(run: Path) -> None:
    shown = call("circuit", "check", run, "--samples", "3")
    assert "agrees" in shown
    assert "Block 1: A Hopfield has no electrical circuit" in shown
    found = json.loads(call("circuit", "check", run, "--samples", "3", "--json"))
    hopfield, resistive = found["blocks"]
    assert found["agrees"] is True
    assert hopfield["agreement"] is None
    assert hopfield["agrees"] is None
    assert resistive["agrees"] is True
    assert 0 < resistive["agreement"]["free"] < 0.01 * resistive["agreement"]["size"]
    assert resistive["agreement"]["cosine"] > 0.999
    assert resistive["parts"] == 92


@pytest.mark.ngspice
def test_check_fails_where_they_differ_by_more_than_is_allowed(run: Path) -> None:
    refused = shell("circuit", "check", run, "--samples", "2", "--ideality", "1", "--json", code=1)
    assert json.loads(refused.stdout)["agrees"] is False
    assert "Block 2 and its circuit differ by more than 1 % of the largest voltage" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.ngspice
def test_check_of_a_run_without_a_circuit_says_so(tmp_path: Path) -> None:
    train(read_preset("digits", [key for key in MIXED if "resistive" not in key]), Run(tmp_path / "plain"), quiet=True)
    with pytest.raises(UserError, match=r"has a circuit that could be solved\. Block 1: A Hopfield has no electrical circuit"):
        call("circuit", "check", tmp_path / "plain")
