"""ngspice, which nobody here wrote, judges the circuits of blocks: `make test-ngspice`."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import mna
from circuits import GAINS, INPUTS, SETTLE, converged, input_of, network
from ffebm import (
    DeviceError,
    EnergyBlock,
    EquilibriumPropagation,
    Exponential,
    Ideal,
    Resistive,
    SystemBlock,
    Threshold,
    UnsettledError,
)
from ffebm.circuit import Circuit, Junction, Node, Resistor, Section, VoltageSource
from ffebm.hardware import NgspiceDriver, Physical, find_ngspice, netlist, solve
from ffebm.hardware.agreement import agreement_of

BLOCK = EquilibriumPropagation(SETTLE, beta=0.05)
ngspice = pytest.mark.ngspice


def held_against(energy: Resistive, ideal: Junction = Junction(ideality=1e-3), samples: int = 4):
    x, delta = input_of(samples), torch.randn(samples, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    with NgspiceDriver(energy, ideal=ideal) as driver:
        return agreement_of(EnergyBlock(energy, SETTLE, BLOCK), x, delta, driver)


@ngspice
@pytest.mark.parametrize("gain", GAINS)
@pytest.mark.parametrize("kind", INPUTS)
def test_with_the_diode_of_the_block_voltages_and_gradients_agree(kind: str, gain: tuple[float, float]) -> None:
    """At an ideality of 1, free and nudged."""
    for diode in (Exponential(1e-12, 1.0), Threshold(0.1, 10.0, 1e-7)):
        found = held_against(network(kind, gain, diode), samples=2)
        assert found.size > 0.2
        assert found.relative < 1e-5  # asked for are 1e-3; what is left are ngspice's digits of Boltzmann's constant
        assert found.cosine > 1 - 1e-9  # asked for is .999


@ngspice
@pytest.mark.parametrize("gain", GAINS)
@pytest.mark.parametrize("kind", INPUTS)
def test_with_nearly_ideal_diodes_errors_fall_with_their_ideality(kind: str, gain: tuple[float, float]) -> None:
    energy = network(kind, gain, Ideal())
    found = [held_against(energy, Junction(ideality=ideality)) for ideality in (1e-4, 1e-3, 1e-2, 1e-1)]
    for small, large in pairwise(found):
        assert 7 < large.free / small.free < 13
        assert large.nudged > 5 * small.nudged
    assert found[0].relative < 1e-3
    assert found[0].cosine > 0.999


@ngspice
def test_ngspice_solves_what_a_second_solver_solves() -> None:
    """And reads the netlist as it is written."""
    energy, x = network("voltage", (3.0, 0.5), Exponential(1e-9, 2.0)), input_of(3)
    circuit = energy.circuit((6,))
    values = [circuit.values(row, [None, None, [0.1, -0.2, 0.0]]) for row in x.tolist()]
    for volts, given in zip(solve(circuit, values), values, strict=True):
        expected = torch.cat(mna.layers(circuit, given))
        torch.testing.assert_close(torch.tensor(volts, dtype=torch.float64), expected, rtol=1e-5, atol=1e-7)


@ngspice
def test_a_netlist_that_was_exported_can_be_solved_by_itself(tmp_path: Path) -> None:
    energy, x = network("voltage", (4.0, 1.0), Exponential()), input_of(1)
    circuit = energy.circuit((6,)).fed(x[0].tolist())
    (tmp_path / "block.cir").write_text(netlist(circuit))
    said = subprocess.run(["ngspice", "-b", "block.cir"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    printed = {
        words[0]: float(words[1]) for words in map(str.split, said.splitlines()) if len(words) == 2 and words[0][0] in "hy"
    }
    state = converged(energy, x)
    for names, v in zip(circuit.layers, state, strict=True):
        for name, volts in zip(names, v[0].tolist(), strict=True):
            assert printed[name] == pytest.approx(volts, abs=1e-5)


@ngspice
@pytest.mark.parametrize("processes", [1, 2, 5])
def test_rows_are_dealt_out_and_come_back_in_order(processes: int) -> None:
    energy, x = network("voltage", diode=Exponential()), input_of(5)
    with NgspiceDriver(energy, processes=processes) as driver:
        block = SystemBlock(Physical(driver, energy), BLOCK)
        for found, expected in zip(block.settle(x).state, converged(energy, x), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@ngspice
def test_an_image_of_voltages_settles_through_a_convolution() -> None:
    energy, x = network("image", (2.0, 1.0), Exponential()), torch.randn(2, 2, 4, 4, dtype=torch.float64)
    block = SystemBlock(Physical(NgspiceDriver(energy), energy), BLOCK)
    for found, expected in zip(block.settle(x).state, converged(energy, x), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@ngspice
def test_a_net_learns_through_ngspice() -> None:
    """Which sign the product of two numbers has."""
    torch.manual_seed(0)
    x = torch.rand(32, 2, dtype=torch.float64) * 2 - 1
    y = (x.prod(1) > 0).long()
    from ffebm import FFEBM, Conductance, Scale

    energy = Resistive(
        [Conductance(6, 8, doubled=True), Conductance(8, 4)], input="voltage", gain=(4.0, 1.0), scale=Scale(1e-3)
    )
    block = SystemBlock(Physical(NgspiceDriver(energy), energy), EquilibriumPropagation(beta=0.1))
    model = FFEBM([nn.Linear(2, 6)], [block], nn.Linear(4, 2)).double()
    optimiser = torch.optim.Adam(model.parameters(), 0.05)
    losses: list[Tensor] = []
    for _ in range(25):
        optimiser.zero_grad()
        loss = model(x, y).losses.mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    assert losses[-1] < losses[0] / 2


@ngspice
def test_ngspice_that_is_killed_is_asked_again_and_one_that_hangs_is_killed() -> None:
    energy, x = network("voltage", diode=Exponential()), input_of(200)
    driver = NgspiceDriver(energy)

    def kill() -> None:
        while not driver._running:
            time.sleep(0.001)
        for process in tuple(driver._running):
            process.kill()

    thread = threading.Thread(target=kill)
    thread.start()
    block = SystemBlock(Physical(driver, energy, retries=1), BLOCK)
    found = block.settle(x).state
    thread.join()
    torch.testing.assert_close(found[-1], converged(energy, x)[-1], rtol=1e-5, atol=1e-6)
    block.system.timeout, block.system.retries = 0.02, 0
    with pytest.raises(DeviceError, match=r"NgspiceDriver\(Resistive\), failed once: it has not answered within 0\.02 s"):
        block.settle(x)
    deadline = time.monotonic() + 5
    while driver._running and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not driver._running


@ngspice
def test_a_circuit_without_an_operating_point_is_an_error_that_tells() -> None:
    sources = (VoltageSource("v1", "a", "0", 1.0), VoltageSource("v2", "a", "0", 2.0))
    lost = Circuit("a quarrel", (Section("all", (Node("a"),), sources),), layers=(("a",),))
    with pytest.raises(UnsettledError, match=r"ngspice found no operating point of a quarrel after 0 .* It says: .*singular"):
        solve(lost)


def stand_in(folder: Path, code: str) -> None:
    """A program called ngspice that is none."""
    path = folder / "ngspice"
    path.write_text(f"#!{sys.executable}\n{code}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


ONE = Circuit("one resistor", (Section("all", (Node("a"),), (Resistor("r1", "a", "0", 1.0),)),), layers=(("a",),))


def test_without_ngspice_there_is_a_word_on_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for ask in (find_ngspice, lambda: solve(ONE), lambda: NgspiceDriver(network("voltage"))):
        with pytest.raises(DeviceError, match=r"ngspice is not installed, or not on PATH.*`apt install ngspice`"):
            ask()


FAILING = {
    "print('Error: no convergence in dc operating point'); raise SystemExit(1)": (
        UnsettledError,
        "after 0 that it did find. It says: Error: no convergence in dc operating point. Nearly ideal diodes are the hardest",
    ),
    "import os; os.kill(os.getpid(), 11)": (DeviceError, "ngspice was ended by signal 11"),
    "import time; time.sleep(30)": (DeviceError, "ngspice has not solved 1 operating points within 0.3 s"),
}


@pytest.mark.parametrize("code", FAILING)
def test_ngspice_that_fails_is_told_apart(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, code)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    error, words = FAILING[code]
    with pytest.raises(error, match=words):
        solve(ONE, timeout=0.3 if "sleep" in code else 30)
