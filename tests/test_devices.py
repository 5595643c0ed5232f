"""Devices: the statistics of each imperfection, and what it does to a gradient."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from ffebm import (
    Convolution,
    Dense,
    Drift,
    EnergyBlock,
    EquilibriumPropagation,
    FixedPoint,
    Hardware,
    Hopfield,
    Levels,
    Mismatch,
    PhaseChange,
    ProgrammingNoise,
    ReadNoise,
    RecurrentBackprop,
    ResistiveMemory,
    SettleTime,
    StuckCells,
    WireResistance,
    clamp,
    identity,
)
from ffebm.hardware.devices import Cells, Device
from ffebm.hardware.draws import Draws

MANY = 200_000
DOUBLE = torch.float64


def draws(seed: int = 0) -> Draws:
    torch.manual_seed(seed)
    return Draws(0, "a chip", training=True)


def held(device: Device, aim: float | Tensor, seed: int = 0) -> Tensor:
    """What cells hold that are written to this conductance, in units of the largest."""
    plus = torch.full((MANY,), aim, dtype=DOUBLE) if isinstance(aim, float) else aim
    return device.written(Cells(plus, torch.zeros_like(plus)), draws(seed), "weight").plus


def net(layers: int = 2) -> Hopfield:
    torch.manual_seed(0)
    sizes = [16, 12, 10, 8][: layers + 1]
    energy = Hopfield([Dense(a, b) for a, b in pairwise(sizes)], identity(0.5)).double()
    with torch.no_grad():
        for edge in energy.edges:
            edge.scale_(0.8)
    return energy


def gradient(energy: Hopfield, hardware: Hardware | None, beta: float = 0.1, estimator=None) -> Tensor:
    """Of the last weight."""
    estimator = estimator or EquilibriumPropagation(FixedPoint(60, order="downward"), beta=beta)
    block = EnergyBlock(energy, FixedPoint(60, order="upward"), estimator, hardware=hardware, name="block")
    x = torch.randn(32, 16, dtype=DOUBLE, generator=torch.Generator().manual_seed(5))
    y = torch.randn(32, energy.edges[-1].weight.shape[0], dtype=DOUBLE, generator=torch.Generator().manual_seed(6))
    torch.manual_seed(7)
    (found,) = torch.autograd.grad((block(x) - y).square().sum(), energy.edges[-1].weight)
    return found


def cosine(a: Tensor, b: Tensor) -> float:
    return (a.flatten() @ b.flatten() / (a.norm() * b.norm())).item()


# Statistics


@settings(max_examples=15, deadline=None)
@given(count=st.integers(2, 40))
def test_cells_hold_their_levels_and_a_pair_twice_as_many_less_one(count: int) -> None:
    weight = torch.linspace(-1, 1, 5001, dtype=DOUBLE)
    cells = Levels(count).written(Cells.of(weight, torch.tensor(1.0, dtype=DOUBLE)), draws(), "weight")
    assert len(cells.plus.unique()) == count
    stored = cells.weight(torch.tensor(1.0, dtype=DOUBLE))
    assert len(stored.unique()) == 2 * count - 1
    assert (stored - weight).abs().max().item() <= 0.5 / (count - 1) + 1e-12


@pytest.mark.parametrize("aim", [0.0, 0.4, 1.0])
def test_programming_noise_has_its_deviation_at_every_level(aim: float) -> None:
    found = held(ProgrammingNoise(0.03), aim)
    assert found.std().item() == pytest.approx(0.03, rel=0.01)
    assert found.mean().item() == pytest.approx(aim, abs=4 * 0.03 / math.sqrt(MANY))


def test_programming_noise_is_new_at_every_step_and_mismatch_is_not() -> None:
    assert not torch.equal(held(ProgrammingNoise(0.1), 0.5, seed=1), held(ProgrammingNoise(0.1), 0.5, seed=2))
    assert torch.equal(held(Mismatch(0.1), 0.5, seed=1), held(Mismatch(0.1), 0.5, seed=2))


def test_mismatch_is_a_gain_of_every_cell() -> None:
    found = held(Mismatch(0.05), 0.5)
    assert found.mean().item() == pytest.approx(0.5, rel=1e-3)
    assert found.std().item() == pytest.approx(0.025, rel=0.01)
    torch.testing.assert_close(held(Mismatch(0.05), 1.0), 2 * found)


def test_drift_is_a_power_law_at_two_times_and_nothing_in_the_free_phase() -> None:
    device = Drift(0.06, phase=10.0, first=20.0)
    weight = torch.randn(50, dtype=DOUBLE)
    free, first, second = (device.aged(weight, phase, draws(), "weight") for phase in range(3))
    assert torch.equal(free, weight)
    torch.testing.assert_close(first, weight * 1.5**-0.06, rtol=1e-12, atol=0)
    torch.testing.assert_close(second / first, torch.full_like(weight, (40 / 30) ** -0.06), rtol=1e-12, atol=0)


def test_drift_spreads_from_cell_to_cell_and_stays() -> None:
    device = Drift(0.06, spread=0.01, phase=60.0, first=20.0)
    ones = torch.ones(MANY, dtype=DOUBLE)
    exponents = [-device.aged(ones, phase, draws(phase), "weight").log() / math.log(1 + 3 * phase) for phase in (1, 2)]
    torch.testing.assert_close(*exponents)
    assert exponents[0].mean().item() == pytest.approx(0.06, rel=1e-3)
    assert exponents[0].std().item() == pytest.approx(0.01, rel=0.01)


def test_cells_are_stuck_by_their_share_whatever_is_written() -> None:
    device = StuckCells(off=0.03, on=0.05)
    low, high = held(device, 0.3), held(device, 0.7)
    off, on = (low == 0.0), (low == 1.0)
    assert off.double().mean().item() == pytest.approx(0.03, rel=0.05)
    assert on.double().mean().item() == pytest.approx(0.05, rel=0.05)
    assert torch.equal(off, high == 0.0)
    assert torch.equal(on, high == 1.0)
    assert bool((low[~off & ~on] == 0.3).all())


def test_phase_change_memory_has_no_negative_conductances() -> None:
    """At zero, half of the noise of writing would make some; the rest flickers by up to a fifth, times the root of a log."""
    found = held(PhaseChange(), 0.0)
    assert 0.5 < (found == 0).double().mean().item() < 0.62
    written = 0.26348 / 25 / math.sqrt(2)
    assert written < found.square().mean().sqrt().item() < written * math.hypot(1, 0.2 * math.sqrt(math.log(4e7)))


@pytest.mark.parametrize(("aim", "deviation"), [(0.5, 0.26348 + 1.965 / 2 - 1.1731 / 4), (1.0, 1.05538)])
def test_phase_change_memory_is_written_as_measured(aim: float, deviation: float) -> None:
    found, written = held(PhaseChange(), aim), deviation / 25
    flicker = min(0.0088 / aim**0.65, 0.2) * math.sqrt(math.log((20 + 250e-9) / 500e-9)) * aim
    assert found.mean().item() == pytest.approx(aim, rel=2e-3)
    assert found.std().item() == pytest.approx(math.hypot(written, flicker), rel=0.02)


def test_phase_change_memory_drifts_by_its_law_at_two_times() -> None:
    """The mean of a power law over exponents that spread, against a sum over many of them."""
    generator = torch.Generator().manual_seed(3)
    exponents = (0.049 + 0.008 * torch.randn(MANY, dtype=DOUBLE, generator=generator)).abs()
    for time in (3600.0, 86400.0):
        expected = ((1 + time / 20) ** -exponents).mean().item()
        assert held(PhaseChange(time), 1.0).mean().item() == pytest.approx(expected, rel=3e-3)
    assert held(PhaseChange(86400.0, scale=0.0), 1.0).std().item() == 0.0


@pytest.mark.parametrize(
    ("age", "coefficients"),
    [("second", (0.348, 16.030, -43.853, 45.393, -16.815)), ("two days", (0.782, 20.274, -43.507, 37.062, -11.934))],
)
def test_resistive_memory_spreads_as_measured(age: str, coefficients: tuple[float, ...]) -> None:
    for aim in (0.5, 1.0):
        deviation = sum(c * aim**power for power, c in enumerate(coefficients)) / 40
        found = held(ResistiveMemory(age), aim)
        assert found.std().item() == pytest.approx(deviation, rel=0.02)
        assert found.mean().item() == pytest.approx(aim, abs=5 * deviation / math.sqrt(MANY) + 1e-4)


def test_resistive_memory_spreads_more_as_it_ages() -> None:
    assert held(ResistiveMemory("day"), 0.5).std() > held(ResistiveMemory("second"), 0.5).std()


def test_read_noise_is_fresh_at_every_sweep() -> None:
    device, like, drawn = ReadNoise(0.2), torch.zeros(MANY, dtype=DOUBLE), draws()
    first, second = device.current(like, drawn), device.current(like, drawn)
    assert first.std().item() == pytest.approx(0.2, rel=0.01)
    assert abs(cosine(first, second)) < 0.02


def crossbar(g: Tensor, ratio: float) -> Tensor:
    """What each column senses for a volt at each row, by nodal analysis of all wires and cells: (rows, columns)."""
    rows, columns = g.shape
    wire = 1 / ratio
    size = 2 * rows * columns  # a node of the row's wire and one of the column's at each cell
    matrix = torch.zeros(size, size, dtype=DOUBLE)
    right = torch.zeros(size, rows, dtype=DOUBLE)

    def node(i: int, j: int, upper: int) -> int:
        return upper * rows * columns + i * columns + j

    def tie(a: int, b: int | None, conductance: float) -> None:
        matrix[a, a] += conductance
        if b is not None:
            matrix[b, b] += conductance
            matrix[a, b] -= conductance
            matrix[b, a] -= conductance

    for i in range(rows):
        for j in range(columns):
            tie(node(i, j, 0), node(i, j, 1), g[i, j].item())
            tie(node(i, j, 0), node(i, j - 1, 0) if j else None, wire)  # the first is tied to its driver
            tie(node(i, j, 1), node(i + 1, j, 1) if i + 1 < rows else None, wire)  # the last to a virtual ground
        right[node(i, 0, 0), i] = wire
    volts = torch.linalg.solve(matrix, right)
    return torch.stack([volts[node(rows - 1, j, 1)] * wire for j in range(columns)], 1)


def test_wires_are_right_to_first_order() -> None:
    """Against the exact solution of a crossbar: the error that is left falls with the square of the resistance."""
    g = torch.rand(5, 4, dtype=DOUBLE, generator=torch.Generator().manual_seed(2))

    def error(ratio: float) -> tuple[float, float]:
        # Inputs are the second dimension of a weight. An ideal cell lets its conductance times a volt through.
        found = WireResistance(ratio).written(Cells(g.T.clone(), torch.zeros(4, 5, dtype=DOUBLE)), draws(), "weight").plus.T
        exact = crossbar(g, ratio)
        return (exact - g).abs().max().item(), (found - exact).abs().max().item()

    (drop, left), (drop_less, left_less) = error(1e-3), error(1e-4)
    assert drop == pytest.approx(10 * drop_less, rel=0.05)
    assert left == pytest.approx(100 * left_less, rel=0.1)
    assert left < 0.05 * drop


def test_larger_crossbars_lose_more_and_tiles_limit_that() -> None:
    ones = torch.ones(64, 64, dtype=DOUBLE)

    def kept(tile: int) -> float:
        return WireResistance(1e-5, tile).written(Cells(ones, 0 * ones), draws(), "weight").plus.mean().item()

    assert 0 < kept(64) < kept(32) < kept(16) < 1
    last = WireResistance(1e-5).written(Cells(ones, 0 * ones), draws(), "weight").plus
    assert last.argmin().item() == 63 * 64, "the last column of a row is far from its driver, the first row far from the sense"


def test_wires_of_a_convolution_are_those_of_its_unrolled_matrix() -> None:
    weight = torch.rand(6, 3, 2, 2, dtype=DOUBLE)
    cells = Cells(weight, torch.zeros_like(weight))
    found = WireResistance(1e-4).written(cells, draws(), "weight").plus
    flat = WireResistance(1e-4).written(Cells(weight.flatten(1), torch.zeros(6, 12, dtype=DOUBLE)), draws(), "weight").plus
    assert torch.equal(found, flat.view_as(weight))


# What they do to a gradient


def test_what_was_written_is_the_same_in_free_and_nudged_phases() -> None:
    """So equilibrium propagation is exact, for the block that was written: that of a copy with those weights."""
    for device in (Levels(5), ProgrammingNoise(0.1), Mismatch(0.2), StuckCells(0.1, 0.02), PhaseChange(), ResistiveMemory()):
        energy = net()
        hardware = Hardware(devices=[device])
        found = gradient(energy, hardware)
        written = net()
        torch.manual_seed(7)
        chip = EnergyBlock(energy, hardware=hardware, name="block").chip
        drawn = Draws(0, "block", training=True)
        with torch.no_grad():
            for name, p in written.named_parameters():
                if p.dim() > 1:
                    p.copy_(chip._held(p, drawn, f"energy.{name}", ""))
        assert not torch.allclose(written.edges[0].weight, energy.edges[0].weight)
        torch.testing.assert_close(found, gradient(written, None), rtol=1e-9, atol=1e-12)


def test_the_gradient_gets_worse_with_each_imperfection() -> None:
    energy = net()
    exact = gradient(energy, None, estimator=RecurrentBackprop(FixedPoint(200)))
    for weak, strong in (
        (Levels(200), Levels(4)),
        (ProgrammingNoise(0.01), ProgrammingNoise(0.3)),
        (Mismatch(0.01), Mismatch(0.3)),
        (Mismatch(0.01, "separate"), Mismatch(0.3, "separate")),
        (Drift(0.05, phase=1e-4), Drift(0.05, phase=300.0)),
        (StuckCells(0.003), StuckCells(0.2)),
        (ReadNoise(1e-4), ReadNoise(0.1)),
        (SettleTime(20), SettleTime(1)),
        (WireResistance(1e-5), WireResistance(3e-3)),
        (ResistiveMemory(scale=0.1), ResistiveMemory(scale=3.0)),
        (PhaseChange(scale=0.1), PhaseChange(scale=5.0)),
    ):
        near, far = (cosine(gradient(energy, Hardware(devices=[device])), exact) for device in (weak, strong))
        assert near > 0.99, weak
        assert far < near - 0.003, strong


def test_shared_mismatch_leaves_an_energy_and_separate_mismatch_does_not() -> None:
    """Against finite differences of the block with its mismatch, through weights that change all cells in proportion."""
    x = torch.randn(6, 16, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))

    def off(crossbars: str) -> float:
        energy = net()
        estimator = EquilibriumPropagation(FixedPoint(200, order="downward"), beta=1e-4)
        hardware = Hardware(devices=[Mismatch(0.2, crossbars)])
        block = EnergyBlock(energy, FixedPoint(200, order="upward"), estimator, hardware=hardware)
        x.grad = None
        leaf = x.clone().requires_grad_()
        block(leaf).square().sum().backward()
        direction = torch.randn(x.shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(2))
        with torch.no_grad():
            ahead, behind = (block(x + sign * 1e-5 * direction).square().sum() for sign in (1, -1))
        expected = ((ahead - behind) / 2e-5).item()
        return abs((leaf.grad * direction).sum().item() - expected) / abs(expected)

    assert off("shared") < 1e-6
    assert off("separate") > 1e-3


def test_drift_between_phases_enters_a_contrast_over_beta() -> None:
    """The error is a / β + b for small β, and a is in proportion to the time between phases."""
    energy = net()
    exact = gradient(energy, None, 0.1)

    def error(beta: float, phase: float) -> Tensor:
        return gradient(energy, Hardware(devices=[Drift(0.05, phase=phase)]), beta) - exact

    strong, middle, weak = (error(beta, 1e-3) for beta in (0.02, 0.01, 0.005))
    torch.testing.assert_close(weak - middle, 2 * (middle - strong), rtol=1e-2, atol=1e-2 * weak.abs().max().item())
    torch.testing.assert_close(weak, 10 * error(0.005, 1e-4), rtol=1e-3, atol=1e-3 * weak.abs().max().item())
    assert (weak - middle).norm() > 0.1 * weak.norm()


def test_crossbars_apart_without_mismatch_are_one() -> None:
    torch.manual_seed(0)
    energy = Hopfield([Convolution(2, 3, padding=1), Dense(48, 4)], [clamp(0.5), clamp(0.5), identity()]).double()
    x = torch.rand(3, 2, 4, 4, dtype=DOUBLE)
    found = []
    for hardware in (Hardware(devices=[Mismatch(0.0, "separate")]), None):
        block = EnergyBlock(energy, FixedPoint(30), EquilibriumPropagation(FixedPoint(20)), hardware=hardware)
        found.append(torch.autograd.grad(block(x).square().sum(), [*energy.parameters()]))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Levels(1), "`count` must be a whole number of at least 2, got 1"),
        (lambda: ProgrammingNoise(-0.1), r"`deviation` must be 0 or more, got -0\.1"),
        (lambda: Mismatch(math.nan), "`deviation` must be 0 or more, got nan"),
        (lambda: Mismatch(0.1, "two"), "Unknown crossbars 'two'; choose one of 'shared', 'separate'"),
        (lambda: Drift(-0.05), "`exponent` must be 0 or more"),
        (lambda: Drift(first=0.0), "`first` must be positive, got 0.0: it is the time from writing to the free phase"),
        (lambda: StuckCells(1.5), r"`off` must lie between 0 and 1, got 1\.5: it is a share of all cells"),
        (lambda: StuckCells(0.6, 0.6), "shares of the same cells, got 0.6 and 0.6: more than all"),
        (lambda: ReadNoise(-1), "`deviation` must be 0 or more, got -1"),
        (lambda: SettleTime(0), "`sweeps` must be a whole number of at least 1, got 0"),
        (lambda: WireResistance(-1e-4), "`ratio` must be 0 or more"),
        (lambda: WireResistance(1e-4, 0), "`tile` must be a whole number of at least 1"),
        (lambda: PhaseChange(-1.0), "`time` must be 0 or more"),
        (lambda: ResistiveMemory("week"), "`age` must be one of 'second', 'day', 'two days', got 'week': .* no law"),
    ],
)
def test_impossible_devices_say_what_is_wrong(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
