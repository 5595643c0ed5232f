"""Blocks as electrical circuits: what a netlist says, and a second solver that reads it. ngspice is in test_ngspice.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st

import mna
from circuits import GAINS, INPUTS, converged, input_of, network, swept
from ffebm import Dense, Exponential, Hopfield, Ideal, Scale, Threshold
from ffebm.circuit import (
    GROUND,
    Amplifier,
    Circuit,
    CurrentSource,
    Diode,
    Junction,
    Node,
    Port,
    Resistor,
    Section,
    StraightLines,
    VoltageSource,
)
from ffebm.hardware import netlist

REAL = [Exponential(1e-12, 1.0), Exponential(1e-9, 2.0), Threshold(0.1, 10.0, 1e-7)]
gains = st.sampled_from([(1.0, 1.0), (4.0, 1.0), (2.0, 2.0), (3.0, 0.5)])
KINDS = st.sampled_from(INPUTS)


@pytest.mark.parametrize("gain", GAINS)
@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("diode", REAL, ids=lambda diode: type(diode).__name__)
def test_a_block_stays_where_its_circuit_rests_free_and_nudged(kind: str, gain: tuple[float, float], diode) -> None:
    """A sweep of the block moves no voltage that Kirchhoff's law was solved for: its only equilibrium is there."""
    energy, x = network(kind, gain, diode), input_of(2)
    currents = 0.3 * torch.randn(2, 3, dtype=torch.float64)
    circuit = energy.circuit((6,))
    for pushed in (torch.zeros_like(currents), currents):
        values = [circuit.values(a, at_output(circuit, b)) for a, b in zip(x.tolist(), pushed.tolist(), strict=True)]
        state = tuple(map(torch.stack, zip(*(mna.layers(circuit, each) for each in values), strict=True)))
        assert swept(energy, x, state, -pushed).residual.max() < 1e-11
        assert swept(energy, x, tuple(1.01 * v for v in state), -pushed).residual.max() > 1e-4


def at_output(circuit: Circuit, currents: list[float]) -> list[list[float] | None]:
    return [None] * (len(circuit.layers) - 1) + [currents]


@pytest.mark.parametrize("gain", GAINS)
@pytest.mark.parametrize("kind", INPUTS)
def test_diodes_that_are_nearly_ideal_miss_by_as_much_as_their_ideality(kind: str, gain: tuple[float, float]) -> None:
    energy, x = network(kind, gain, Ideal()), input_of(3)
    state = converged(energy, x)

    def error(ideality: float) -> float:
        circuit = energy.circuit((6,), ideal=Junction(ideality=ideality))
        return max(
            (volts - v[row]).abs().max().item()
            for row in range(3)
            for v, volts in zip(state, mna.layers(circuit, circuit.values(x[row].tolist())), strict=True)
        )

    errors = [error(ideality) for ideality in (1e-4, 1e-3)]
    assert errors[-1] < 0.02
    assert 8 < errors[1] / errors[0] < 12


@given(kind=KINDS, gain=gains, seed=st.integers(0, 1000), siemens=st.sampled_from([1e-6, 1e-3, 1.0]))
@settings(max_examples=6)
def test_a_netlist_says_all_there_is_of_a_circuit(kind: str, gain: tuple[float, float], seed: int, siemens: float) -> None:
    diode = (Ideal(), *REAL)[seed % 4]
    energy = network(kind, gain, diode, seed=seed, scale=Scale(siemens=siemens, volts=0.5))
    circuit = energy.circuit((6,), ideal=Junction(ideality=0.01))
    circuit = circuit.fed(input_of(1, seed)[0].tolist(), at_output(circuit, [0.1, 0.0, -0.2]))
    title, sections = mna.read(netlist(circuit))
    assert title == circuit.title
    for given_section, found in zip(circuit.sections, sections, strict=True):
        assert (found.title, found.nodes) == (given_section.title, given_section.nodes)
        assert " ".join(found.notes) == " ".join(given_section.notes)
        for part, again in zip(given_section.parts, found.parts, strict=True):
            assert again == (replace(part, conductance=again.conductance) if part.name[0] == "r" else _rounded(part, again))
            if part.name[0] == "r":
                assert again.conductance == pytest.approx(part.conductance, rel=1e-15, abs=0)


def _rounded(part, again):
    """Two slopes are written as one and a difference."""
    if part.name[0] != "d" or again.model == part.model:
        return part
    assert again.model.on == pytest.approx(part.model.on, rel=1e-15)
    return replace(part, model=replace(part.model, on=again.model.on))


def test_a_convolution_is_a_crossbar_with_a_resistor_for_every_tap() -> None:
    energy, x = network("image", (2.0, 1.0), Exponential(1e-12, 1.0)), torch.randn(1, 2, 4, 4, dtype=torch.float64)
    circuit = energy.circuit((2, 4, 4))
    voltages = mna.layers(circuit, circuit.values(x.flatten().tolist()))
    state = tuple(v.view(1, *s.shape[1:]) for v, s in zip(voltages, energy.init_state(x), strict=True))
    assert swept(energy, x, state).residual.max() < 1e-11


@pytest.mark.parametrize("kind", INPUTS)
def test_a_scale_changes_what_is_soldered_and_not_what_is_read(kind: str) -> None:
    x = input_of(1)[0].tolist()
    read = [
        mna.layers(circuit, circuit.values(x))
        for scale in (Scale(), Scale(siemens=1e-6), Scale(siemens=1e-3, volts=0.1))
        for circuit in [network(kind, (4.0, 1.0), Threshold(0.0, 10 * scale.siemens, 0.0), scale=scale).circuit((6,))]
    ]
    for other in read[1:]:
        torch.testing.assert_close(other, read[0], rtol=1e-8, atol=1e-10)


def test_a_circuit_that_an_engineer_gets_says_what_everything_is() -> None:
    text = netlist(network("voltage", (4.0, 1.0), Ideal()).circuit((6,), ideal=Junction(ideality=0.001)))
    for words in (
        "A resistive network of 6 - 8 - 5 - 3 nodes",
        "Units are volts, amperes and ohms.",
        "The input: 6 voltages, held by sources, each as it is and inverted",
        "Layer 1: 8 nodes, each with a diode",
        "node h1_1: kept from falling below 0 V",
        "node h1_8: kept from rising above 0 V",
        "Amplifiers behind layer 1: voltages forward x 4, currents backward x 1",
        "Crossbar from layer 2 to the output: 5 x 3 nodes, 15 resistors",
        "The nudge: a current into every output node",
        "an ideality of 0.001",
    ):
        assert words in text.replace("\n* ", " ") or words in text, words
    assert max(map(len, text.splitlines())) <= 128
    assert text.isascii()


def test_an_energy_without_a_circuit_says_so() -> None:
    with pytest.raises(TypeError, match="A Hopfield has no electrical circuit: `Resistive` has one"):
        Hopfield([Dense(4, 3)]).circuit((4,))


def test_a_layer_that_no_current_source_ends_in_cannot_be_nudged() -> None:
    circuit = network("voltage", (1.0, 1.0), Ideal()).circuit((6,))
    with pytest.raises(ValueError, match="Layer 1 of the circuit cannot be nudged, because no current source ends in it"):
        circuit.values([0.0] * 6, [[0.1] * 8])


NODES = (Node("a"), Node("b"))
BAD = {
    "no node of the circuit": lambda: one(Resistor("r1", "a", "c", 1.0)),
    "Two nodes have one name: 'a'": lambda: Circuit("", (Section("", (Node("a"), Node("a"))),)),
    "Two parts have one name: 'r1'": lambda: one(Resistor("r1", "a", "b", 1.0), Resistor("r1", "b", "a", 1.0)),
    "begins with 'd', as SPICE has it, got 'r1'": lambda: one(Diode("r1", "a", GROUND, Junction())),
    "cannot be called 'A-1'": lambda: Node("A-1"),
    "A comment is one line of text": lambda: Node("a", "fine\nquit"),
    "A comment is one line": lambda: Section("fine\r.control"),
    "`conductance` of a Resistor must be positive, got 0.0": lambda: Resistor("r1", "a", "b", 0.0),
    "`conductance` of a Resistor must be positive, got nan": lambda: Resistor("r1", "a", "b", float("nan")),
    "`value` of a CurrentSource must be a finite number, got inf": lambda: CurrentSource("i1", "a", "b", float("inf")),
    "`value` of a VoltageSource must be a finite number": lambda: VoltageSource("v1", "a", "b", float("nan")),
    "`forward` of a Amplifier": lambda: Amplifier("a1", "a", "b", float("inf"), 1.0),
    "`ideality` of a Junction must be positive": lambda: Junction(ideality=0.0),
    "A diode conducts more when it is open": lambda: StraightLines(0.0, 1.0, 2.0),
    "A port is 'ia', which is no source": lambda: Circuit("", (Section("", NODES),), inputs=(Port("ia", 0, 1.0),)),
    "A layer is read at 'c', which is no node": lambda: Circuit("", (Section("", NODES),), layers=(("c",),)),
    "`volts` of a Circuit must be positive": lambda: Circuit("", (), volts=0.0),
    "nudges of 1 layers, and only 0": lambda: Circuit("", (), nudges=((),)),
    "`unit` must be a whole number of at least 0": lambda: Port("ia", -1, 1.0),
}


def one(*parts: Resistor | Diode) -> Circuit:
    return Circuit("", (Section("", NODES, parts),))


@pytest.mark.parametrize("words", BAD)
def test_circuits_that_cannot_be_are_refused(words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        BAD[words]()
