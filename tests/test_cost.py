"""What hardware takes: published anchors, conservation, and tables of constants."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn
from typer.testing import CliRunner

from ffebm import (
    FFEBM,
    AutomaticBeta,
    Conductance,
    ConvConductance,
    Convolution,
    Dense,
    Edge,
    Energy,
    EnergyBlock,
    EquilibriumPropagation,
    FixedPoint,
    Hopfield,
    Resistive,
    Stencil,
    Unrolled,
    build,
    clamp,
    identity,
)
from ffebm.builder import ConvLayer, DenseLayer
from ffebm.energy import Layout
from ffebm.experiment.command_line import app
from ffebm.experiment.costing import SHAPES, costing_of
from ffebm.experiment.data import load
from ffebm.experiment.errors import UserError
from ffebm.experiment.technology_files import read_technology
from ffebm.hardware import Converter, Hardware
from ffebm.hardware.cost import (
    CONSTANTS,
    KINDS,
    PHASES,
    Design,
    Estimate,
    Quantity,
    Technology,
    converter_energy,
    estimate,
    workload,
)
from ffebm.hardware.cost.quantity import in_units
from ffebm.hardware.devices import Mismatch, SettleTime
from ffebm.interaction import Matrix

ROOT = Path(__file__).parent.parent
TABLE = read_technology()
CENTERED = {"estimator": EquilibriumPropagation(), "nudge": "stationary"}


def with_design(**choices: object) -> Technology:
    return replace(TABLE, design=replace(TABLE.design, **choices))


def net(**options: object) -> FFEBM:
    return build((1, 8, 8), [ConvLayer(4), ConvLayer(6), DenseLayer(12), DenseLayer(10)], 2, 10, **options)


def priced(model: FFEBM | None = None, technology: Technology = TABLE, batch: int = 4) -> Estimate:
    return estimate(workload(net() if model is None else model), technology, batch)


class TestQuantities:
    @pytest.mark.parametrize(
        ("value", "unit", "base"), [(1.67, "pJ", 1.67e-12), (2, "mW", 2e-3), (1.2, "GS/s", 1.2e9), (3, "µs", 3e-6), (4, "", 4)]
    )
    def test_units_are_read(self, value: float, unit: str, base: float) -> None:
        assert Quantity.of(value, unit).value == pytest.approx(base, rel=1e-12)
        assert Quantity.of(value, unit).to(unit) == pytest.approx(value, rel=1e-12)

    def test_a_power_over_a_rate_is_an_energy_and_nothing_else(self) -> None:
        energy = Quantity.of(2, "mW") / Quantity.of(1.2, "GS/s")
        assert energy.to("pJ") == pytest.approx(5 / 3)
        for wrong in ("ns", "mW", "GHz", ""):
            with pytest.raises(ValueError, match=r"1.67 pJ is an energy.*is needed"):
                energy.to(wrong)
        with pytest.raises(ValueError, match="is needed"):
            energy + Quantity.of(1, "ns")

    @pytest.mark.parametrize("unit", ["pj", "joule", "GS", "kg", "mmW", "p J"])
    def test_unknown_units_are_refused(self, unit: str) -> None:
        with pytest.raises(ValueError, match=f"Unknown unit `{unit}`.*for example pJ"):
            Quantity.of(1, unit)

    @pytest.mark.parametrize(("value", "words"), [(1.67e-12, "1.67 pJ"), (0, "0 J"), (9.9999e-10, "1 nJ"), (3e-18, "0.003 fJ")])
    def test_amounts_get_the_prefix_that_suits_them(self, value: float, words: str) -> None:
        assert in_units(value, "J") == words


class TestAnchors:
    """Figures that others have published, from the table."""

    def test_the_converter_of_isaac(self) -> None:
        assert TABLE.adc_energy(8) == pytest.approx(1.67e-12, rel=5e-3)  # 16 mW for 8 of them at 1.2 GS/s

    def test_the_product_of_puma(self) -> None:
        assert TABLE.product_energy == pytest.approx(274e-12, rel=1e-3)
        assert TABLE.product_energy / 128**2 == pytest.approx(17e-15, rel=2e-2)  # a multiply-accumulate

    def test_the_serial_write_of_puma(self) -> None:
        assert TABLE.write_energy * 128**2 == pytest.approx(22.6e-9, rel=1e-3)

    @pytest.mark.parametrize(
        ("bits", "node", "rate", "picojoules"),
        [
            (4, 32, 1e8, 0.92),
            (6, 32, 1e8, 1.07),
            (8, 32, 1e8, 1.71),
            (10, 32, 1e8, 3.31),
            (8, 32, 1.28e9, 1.93),
            (8, 65, 1e8, 6.5),
            (8, 14, 1e8, 0.36),
        ],
    )
    def test_the_survey_of_converters(self, bits: int, node: float, rate: float, picojoules: float) -> None:
        assert converter_energy(bits, node, rate) == pytest.approx(picojoules * 1e-12, rel=0.01)

    def test_a_product_that_is_converted_costs_a_net_what_puma_says(self) -> None:
        """One full array, one sweep: a product up and one down."""
        block = EnergyBlock(Hopfield([Dense(128, 128)], identity()), FixedPoint(1))
        model = FFEBM([nn.Identity()], [block], nn.Linear(128, 10), input_shape=(128,))
        found = priced(model, with_design(settle="converted", arrays_per_weight=1), batch=1)
        assert found.inference.energy_of(kind="settling") == pytest.approx(2 * 274e-12, rel=1e-3)
        assert found.inference.time_of(kind="settling") == pytest.approx(2 * 100e-9)

    def test_constants_go_to_another_node_by_its_size(self) -> None:
        smaller = replace(TABLE, node=16)
        assert smaller.mac_energy == pytest.approx(TABLE.mac_energy / 2)
        assert smaller.adc_energy(8) == pytest.approx(TABLE.adc_energy(8) / 2)
        assert smaller.seconds("settle_time") == TABLE.seconds("settle_time")


class TestCounts:
    def test_matrices_multiply_as_often_as_edges_do(self) -> None:
        edges = [
            (Dense(20, 7), (5, 2, 2)),
            (Convolution(4, 6, 3, padding=1), (4, 8, 8)),
            (Convolution(4, 6, 3, stride=2, groups=2), (4, 9, 9)),
        ]
        for edge, shape in edges:
            matrix = edge.matrix(shape)
            assert isinstance(matrix, Matrix)
            assert matrix.macs == edge.macs(shape)
            assert matrix.weights == edge.weight.numel()

    def test_a_grouped_convolution_is_several_matrices(self) -> None:
        assert Convolution(4, 6, 3, groups=2).matrix((4, 5, 5)) == Matrix(rows=18, columns=3, positions=9, groups=2)

    def test_a_model_by_hand(self) -> None:
        """Two layers of 300 and 200 units behind a stage: all counts follow from the sizes."""
        energy = Hopfield([Dense(300, 200)], [clamp(0.5), identity()])
        nudged = EquilibriumPropagation(FixedPoint(3), stencil=Stencil.one_sided())
        model = FFEBM([nn.Linear(50, 300)], [EnergyBlock(energy, FixedPoint(7), nudged)], nn.Linear(200, 10), input_shape=(50,))
        found = priced(model, batch=5)
        inference, training = found.inference, found.training
        assert training is not None
        assert inference.count_of(kind="input conversion") == 5 * 300
        assert inference.count_of(kind="read-out") == 5 * 200  # the last layer alone
        assert inference.count_of(kind="settling") == 5 * 7 * 2 * 300 * 200
        assert inference.count_of(kind="digital") == 5 * (50 * 300 + 200 * 10)
        assert training.count_of("free", "read-out") == 5 * 500  # all layers
        assert training.count_of("nudged", "read-out") == 5 * 500
        assert training.count_of("nudged", "input conversion") == 5 * (300 + 200)  # the nudge, too
        assert training.count_of("nudged", "settling") == 5 * 3 * 2 * 300 * 200
        assert training.count_of("nudged", "digital") == 5 * 200 * 10  # no error goes below the first stage
        assert training.count_of("update", "digital") == 5 * (50 * 300 + 200 * 10 + 2 * 300 * 200)
        assert training.count_of(kind="weight writes") == 2 * 300 * 200  # two conductances a weight, once a step
        (tiles,) = found.tiles
        assert (tiles.tiles, tiles.cells) == (3 * 2 * 2, 2 * 300 * 200)
        digital = found.digital_training
        assert digital.count_of(kind="digital") == 5 * (2 * 50 * 300 + 3 * 200 * 10 + 3 * 300 * 200)
        assert {line.kind for line in digital.lines} == {"digital", "memory"}

    def test_two_nudges_are_read_twice(self) -> None:
        one, two = (
            priced(net(estimator=EquilibriumPropagation(stencil=stencil), nudge="stationary")).training
            for stencil in (Stencil.one_sided(), Stencil.centered())
        )
        assert one is not None
        assert two is not None
        for kind in ("settling", "input conversion", "read-out"):
            assert two.count_of("nudged", kind) == 2 * one.count_of("nudged", kind)
            assert two.count_of("free", kind) == one.count_of("free", kind)

    def test_an_elastic_nudge_reads_the_output_at_every_sweep(self) -> None:
        ways = {nudge: priced(net(nudge=nudge), batch=1).training for nudge in ("elastic", "stationary")}
        elastic, stationary = ways["elastic"], ways["stationary"]
        assert elastic is not None
        assert stationary is not None
        sweeps = 2 * 10
        assert elastic.count_of("nudged", "read-out") - stationary.count_of("nudged", "read-out") == sweeps * 10
        assert elastic.count_of("nudged", "digital") - stationary.count_of("nudged", "digital") == sweeps * 2 * 100

    def test_sweeps_that_were_counted_stand_in_for_the_most(self) -> None:
        model = net()
        most, counted = (estimate(workload(model, sweeps=sweeps), TABLE).inference for sweeps in (None, (5.0, 2.0)))
        assert counted.count_of(kind="settling") == most.count_of(kind="settling") / 4

    def test_positions_take_turns_or_have_arrays_of_their_own(self) -> None:
        turns, at_once = priced(technology=with_design(at_once=False)), priced(technology=with_design(at_once=True))
        assert at_once.inference.time < turns.inference.time
        assert at_once.inference.energy_of(kind="settling") == turns.inference.energy_of(kind="settling")
        assert at_once.tiles[0].cells == 64 * turns.tiles[0].cells  # 8 × 8 positions

    def test_what_is_not_known_is_said(self) -> None:
        class Own(Energy):
            def init_state(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
                return x, x

            def forward(self, state: tuple[torch.Tensor, ...], x: torch.Tensor) -> torch.Tensor:
                return (state[0] * state[1]).sum(1)

        block = EnergyBlock(Own([clamp(), clamp()]))
        with pytest.raises(ValueError, match="does not say which crossbars"):
            workload(FFEBM([nn.Identity()], [block], nn.Linear(4, 2), input_shape=(4,)))
        stage = nn.Bilinear(4, 4, 4)

        class Odd(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = stage

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.inner(x, x)

        with pytest.raises(ValueError, match="multiply-accumulates of stage 1 are not known"):
            workload(FFEBM([Odd()], [EnergyBlock(Hopfield([], clamp()))], nn.Linear(4, 2), input_shape=(4,)))

    def test_skips_are_crossbars_too(self) -> None:
        chain = Hopfield([Dense(8, 8), Dense(8, 8)], clamp())
        skipping = Hopfield([Dense(8, 8), Dense(8, 8), Edge(0, 2, Dense(8, 8))], clamp())
        first, second = chain.layout((8,)), skipping.layout((8,))
        assert first is not None
        assert second is not None
        assert (len(first.matrices), first.turns) == (2, 2)
        assert (len(second.matrices), second.turns) == (3, 3)

    def test_circuits_tell_their_crossbars_with_that_of_the_input(self) -> None:
        held = Resistive([Conductance(8, 6, doubled=True), Conductance(6, 4)], input="voltage")
        driven = Resistive([ConvConductance(2, 3, 3, padding=1)])
        assert held.layout((8,)) == Layout((Matrix(16, 6), Matrix(6, 4)), 2)
        assert driven.layout((2, 5, 5)) == Layout((Matrix(18, 3, positions=25),), 2)
        (matrix,) = driven.layout((2, 5, 5)).matrices
        assert 2 * matrix.macs == driven.sweep_macs((2, 5, 5))

    def test_gradients_without_nudges_have_no_cost_on_a_chip(self) -> None:
        found = priced(net(estimator=Unrolled()))
        assert found.training is None
        assert found.inference.energy > 0
        assert found.digital_training.energy > 0


class TestEquipment:
    """What a block is built with has its price."""

    def test_bits_and_repeated_readings_are_those_of_the_block(self) -> None:
        chip = Hardware(dac=Converter(bits=6), adc=Converter(bits=5, average=3))
        found, plain = (priced(net(hardware=hardware, **CENTERED)) for hardware in (chip, None))
        assert found.training is not None
        assert plain.training is not None
        for phase in ("free", "nudged"):
            assert found.training.count_of(phase, "read-out") == 3 * plain.training.count_of(phase, "read-out")
        one = found.training.energy_of(kind="read-out") / found.training.count_of(kind="read-out")
        assert one == pytest.approx(TABLE.adc_energy(5))
        into = found.training.energy_of(kind="input conversion") / found.training.count_of(kind="input conversion")
        assert into == pytest.approx(TABLE.dac_energy(6))

    def test_reading_the_output_alone_leaves_the_contrast_to_the_chip(self) -> None:
        chip = Hardware(adc=Converter(bits=8), read="output")
        found = priced(net(hardware=chip, **CENTERED), batch=1).training
        assert found is not None
        assert found.count_of("free", "read-out") == 6 * 64 + 10
        assert {line.kind for line in found.lines if line.part == "block 1" and line.phase == "update"} == {"weight writes"}

    def test_crossbars_for_currents_back_are_built_and_written(self) -> None:
        ways = {kind: Hardware(devices=[Mismatch(0.1, crossbars=kind)]) for kind in ("shared", "separate")}
        shared, separate = (priced(net(hardware=chip, **CENTERED)) for chip in ways.values())
        assert shared.training is not None
        assert separate.training is not None
        assert [each.tiles for each in separate.tiles] == [2 * each.tiles for each in shared.tiles]
        assert separate.training.count_of(kind="weight writes") == 2 * shared.training.count_of(kind="weight writes")
        assert separate.training.energy_of(kind="settling") == shared.training.energy_of(kind="settling")

    def test_phases_that_are_cut_short_take_less(self) -> None:
        chip = Hardware(devices=[SettleTime(4)])
        found = workload(net(hardware=chip, **CENTERED))
        assert [(block.free_sweeps, block.nudged_sweeps) for block in found.blocks] == [(4, 4)] * 2
        counted = workload(net(hardware=chip, **CENTERED), sweeps=(5.5, 2.5))
        assert [(block.free_sweeps, block.nudged_sweeps) for block in counted.blocks] == [(4, 2.5)] * 2

    def test_a_strength_that_is_chosen_is_tried_first(self) -> None:
        """Six strengths, both ways, on eight samples: 96 phases a batch, whatever its size."""
        nudges = [EquilibriumPropagation(automatic=automatic) for automatic in (AutomaticBeta(), None)]
        chosen, plain = (priced(net(estimator=nudge, nudge="stationary"), batch=64).training for nudge in nudges)
        assert chosen is not None
        assert plain is not None
        for kind in ("settling", "read-out", "input conversion"):
            assert chosen.count_of("nudged", kind) == pytest.approx(plain.count_of("nudged", kind) * (1 + 96 / 128))
        assert chosen.count_of("update") == plain.count_of("update")


class TestConservation:
    @settings(max_examples=15, deadline=None)
    @given(
        batch=st.integers(1, 64),
        settle=st.sampled_from(["analog", "converted"]),
        update=st.sampled_from(["digital", "outer-product"]),
        rows=st.sampled_from([32, 100, 256]),
    )
    def test_parts_sum_to_the_whole(self, batch: int, settle: str, update: str, rows: int) -> None:
        found = priced(technology=with_design(settle=settle, update=update, rows=rows), batch=batch)
        for bill in found.bills.values():
            assert bill is not None
            for total, value in ((bill.energy, bill.energy_of), (bill.time, bill.time_of)):
                assert math.fsum(value(phase) for phase in PHASES) == pytest.approx(total, rel=1e-12)
                assert math.fsum(value(kind=kind) for kind in KINDS) == pytest.approx(total, rel=1e-12)
                assert math.fsum(value(phase, kind) for phase in PHASES for kind in KINDS) == pytest.approx(total, rel=1e-12)
            assert math.fsum(bill.by_part().values()) == pytest.approx(bill.energy, rel=1e-12)
            assert all(line.energy >= 0 and line.time >= 0 for line in bill.lines)

    @settings(max_examples=10, deadline=None)
    @given(batch=st.integers(1, 1000), update=st.sampled_from(["digital", "outer-product"]))
    def test_twice_the_batch_takes_twice_but_for_what_is_done_once_a_step(self, batch: int, update: str) -> None:
        work, technology = workload(net()), with_design(update=update)
        once, twice = (estimate(work, technology, size).bills for size in (batch, 2 * batch))
        for name, bill in once.items():
            double = twice[name]
            assert bill is not None
            assert double is not None
            per_step = [math.fsum(line.energy for line in each.lines if line.per_step) for each in (bill, double)]
            assert per_step[0] == pytest.approx(per_step[1], rel=1e-12)
            assert double.energy - per_step[1] == pytest.approx(2 * (bill.energy - per_step[0]), rel=1e-12)

    def test_more_bits_never_cost_less(self) -> None:
        for name in ("adc_bits", "dac_bits"):
            found = [priced(technology=with_design(**{name: bits})).inference.energy for bits in range(1, 21)]
            assert found == sorted(found)
        assert priced(technology=with_design(adc_bits=12)).inference.energy > priced().inference.energy

    def test_more_sweeps_larger_tiles_and_wider_nets(self) -> None:
        few, many = (priced(net(relax=FixedPoint(sweeps))).inference for sweeps in (5, 10))
        assert many.energy_of(kind="settling") == pytest.approx(2 * few.energy_of(kind="settling"))
        assert many.energy_of(kind="read-out") == few.energy_of(kind="read-out")
        assert priced(technology=with_design(rows=16, columns=16)).tiles[0].tiles > priced().tiles[0].tiles

    def test_writes_by_outer_products_grow_with_the_batch(self) -> None:
        found = [priced(technology=with_design(update="outer-product"), batch=batch).training for batch in (8, 16)]
        small, large = (bill.count_of(kind="weight writes") for bill in found if bill is not None)
        assert large == 2 * small


class TestTables:
    def test_every_constant_has_a_meaning_a_source_and_the_unit_it_needs(self) -> None:
        assert set(TABLE.constants) == set(CONSTANTS)
        for name, constant in TABLE.constants.items():
            assert len(constant.source) > 3
            constant.quantity.to(CONSTANTS[name][0])

    def test_a_table_of_ones_own_needs_only_what_differs(self, tmp_path: Path) -> None:
        path = tmp_path / "chip.toml"
        path.write_text(
            'description = "mine"\nnode = 22\n[design]\nrows = 64\n[constants]\n'
            'adc_power = { value = 1, unit = "mW", source = "measured", node = 22 }\n'
        )
        found = read_technology(path, ["columns=256"])
        assert (found.description, found.node, found.design.rows, found.design.columns) == ("mine", 22, 64, 256)
        assert found.adc_energy(8) == pytest.approx(1e-3 / 1.2e9)
        assert found.constants["dac_energy"] == TABLE.constants["dac_energy"]

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("nodes = 22", "Unknown key `nodes` of chip.toml; did you mean `node`"),
            ("node = -1", "not negative"),
            ("node = 0", "positive"),
            ("[design]\nrow = 3", r"Unknown key `row` in \[design\].*did you mean `rows`"),
            ("[design]\nrows = 0", "`rows` must be a whole number of at least 1"),
            ('[design]\nupdate = "none of these"', "Unknown update"),
            ("[design]\nat_once = 3", "true or false"),
            ("[design]\nadc_bits = 40", "20 at most"),
            ("design = 3", "`design` of chip.toml is a section"),
            ("[constants]\nadc_powr = 3", r"Unknown key `adc_powr` in \[constants\].*did you mean `adc_power`"),
            ("[constants]\nadc_power = 3", "needs { value"),
            ('[constants]\nadc_power = { value = 3, unit = "mW" }', "needs a `source`"),
            ('[constants]\nadc_power = { value = 3, unit = "pJ", source = "me" }', "3 pJ is an energy.*a power.*is needed"),
            ('[constants]\nadc_power = { value = 3, unit = "kg", source = "me" }', "Unknown unit `kg`"),
            ('[constants]\nadc_power = { value = "3", unit = "mW", source = "me" }', "`value` must be a number"),
            ('[constants]\nadc_power = { value = 3, units = "mW", source = "me" }', "did you mean `unit`"),
            ('[constants]\nadc_power = { value = 0, unit = "mW", source = "me" }', "`adc_power` must be positive"),
            ("[constants", "not a readable TOML file"),
        ],
    )
    def test_bad_tables_are_refused(self, text: str, words: str, tmp_path: Path) -> None:
        path = tmp_path / "chip.toml"
        path.write_text(text)
        with pytest.raises(UserError, match=words):
            read_technology(path)

    def test_a_technology_needs_all_constants(self) -> None:
        with pytest.raises(ValueError, match="missing: adc_rate"):
            Technology("", 32, {k: v for k, v in TABLE.constants.items() if k != "adc_rate"}, Design())


class TestCommand:
    runner = CliRunner()

    def run(self, *arguments: str) -> str:
        found = self.runner.invoke(app, ["cost", *arguments], catch_exceptions=False)
        assert found.exit_code == 0, found.output
        return found.output

    def test_a_preset(self, tmp_path: Path) -> None:
        figure = tmp_path / "cost.svg"
        text = self.run("digits", "--figure", str(figure))
        for words in ("energy, all", "time, all", "free, analog", "update, digital", "Crossbars: ", "Not in it"):
            assert words in text
        assert "<svg" in figure.read_text()

    def test_json_holds_what_the_table_shows(self) -> None:
        found = json.loads(self.run("digits", "trainer.batch=8", "design.adc_bits=6", "--json"))
        cost = costing_of("digits", read_technology(None, ["adc_bits=6"]), ["trainer.batch=8"])
        training = cost.estimate.training
        assert training is not None
        assert found["batch"] == 8
        assert found["bills"]["training step"]["energy_joules"] == pytest.approx(training.energy)
        assert found["technology"]["design"]["adc_bits"] == 6
        assert found["technology"]["constants"]["adc_power"]["source"].startswith("ISAAC")

    def test_the_printed_table_is_one_to_start_from(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.toml"
        path.write_text(self.run("--constants"))
        assert read_technology(path) == TABLE

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ([], "What is to be estimated"),
            (["digit"], "did you mean `digits`"),
            (["digits", "nonsense"], "neither a table of constants"),
            (["digits", "a.toml", "b.toml"], "One table of constants"),
            (["digits", "design.row=3"], "did you mean `rows`"),
            (["digits", "--figure", "cost.txt"], "names no picture"),
            (["digits", "missing.toml"], "There is no file"),
            (["folder"], "How large are images"),
            (["digits", "hardware.adc_bits=24"], "20 at most"),
        ],
    )
    def test_mistakes_are_told(self, arguments: list[str], words: str) -> None:
        with pytest.raises(UserError, match=re.escape(words)):
            self.runner.invoke(app, ["cost", *arguments], catch_exceptions=False)

    def test_shapes_are_those_of_the_data(self) -> None:
        found = load("digits")
        assert SHAPES["digits"] == (found.shape, len(found.classes))


class TestDocs:
    def test_results_are_what_the_command_says_now(self) -> None:
        for path in sorted((ROOT / "results" / "cost").glob("*.txt")):
            first, *lines = path.read_text().splitlines()
            source, *changes = first.removeprefix("$ ffebm cost ").split()
            choices = [change.removeprefix("design.") for change in changes]
            found = costing_of(source, read_technology(None, choices)).estimate.bills.values()
            totals = [in_units(bill.energy / bill.batch, "J") for bill in found if bill is not None]
            (line,) = [line for line in lines if line.startswith("energy, all")]
            assert re.findall(r"[\d.]+ \wJ", line) == totals

    def test_numbers_in_the_docs_are_those_of_the_results(self) -> None:
        amounts = r"\b[\d.]+ [µm][Js]\b"
        known = {each for path in (ROOT / "results" / "cost").glob("*.txt") for each in re.findall(amounts, path.read_text())}
        (text,) = re.findall(r"## What comes of it\n(.*)", (ROOT / "docs" / "cost.md").read_text(), re.DOTALL)
        quoted = re.findall(amounts, text)
        assert len(quoted) > 12
        assert set(quoted) <= known
