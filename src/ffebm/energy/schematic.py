"""The circuit that a resistive network is: every conductance a resistor, every rail a diode, every gain an amplifier."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ffebm.circuit import (
    GROUND,
    Amplifier,
    Circuit,
    CurrentSource,
    Diode,
    Junction,
    Node,
    Part,
    Port,
    Resistor,
    Section,
    VoltageSource,
)

if TYPE_CHECKING:
    from ffebm.energy.resistive import Link, Resistive

__all__ = ["schematic"]
__dir__ = __all__.copy


@torch.no_grad()
def schematic(energy: Resistive, shape: Sequence[int], ideal: Junction) -> Circuit:
    """The circuit of a network for inputs of this shape, all of its sources that change at zero."""
    return _Draughtsman(energy, tuple(shape), ideal).circuit()


class _Draughtsman:
    """Draws section after section, from the input on."""

    def __init__(self, energy: Resistive, shape: tuple[int, ...], ideal: Junction) -> None:
        self.energy = energy
        self.shape = shape
        self.ideal = ideal
        self.shapes = energy.layer_shapes(shape)
        self.volts, self.siemens = energy.scale.volts, energy.scale.siemens
        self.amperes = energy.scale.amperes
        last = len(self.shapes) - 1
        self.layers = tuple(
            tuple(f"{'y' if layer == last else f'h{layer + 1}'}_{unit}" for unit in range(1, 1 + math.prod(size)))
            for layer, size in enumerate(self.shapes)
        )

    def circuit(self) -> Circuit:
        energy, last = self.energy, len(self.layers) - 1
        held = energy.input == "voltage"
        entering, inputs = self._held() if held else self._led_in()
        sections = [entering] if held else []
        links = list(energy.links)
        for layer in range(len(self.layers)):
            link = next((link for link in links if link.post == layer), None)
            if link is not None:
                sections += self._amplifiers(link)
            sections.append(self._layer(layer))
            if layer == 0 and not held:
                sections.append(entering)
            if link is not None:
                sections += [*self._biases(link), self._crossbar(link)]
        nudge, ports = self._nudge(last)
        widths = " - ".join(str(math.prod(size)) for size in (self.shape, *(self.shapes if held else self.shapes[1:])))
        return Circuit(
            title=f"A resistive network of {widths} nodes",
            sections=(*sections, nudge),
            layers=self.layers,
            inputs=inputs,
            nudges=(*((),) * last, ports),
            volts=self.volts,
            siemens=self.siemens,
            notes=self._notes(),
        )

    def _notes(self) -> tuple[str, ...]:
        names = ["x: the input", *(f"h{number}: layer {number}" for number in range(1, len(self.layers))), "y: the output"]
        ideal = self.energy.diode.model(self.ideal) is self.ideal
        diode = f"The block has ideal diodes. Here their ideality is {self.ideal.ideality:g}, so voltages differ by as little."
        words = (
            f"Nodes are called by layer and unit, from 1. {'; '.join(names)}. The state of the block are the voltages at rest."
        )
        return (
            (words, diode) if ideal and any(self._signs(layer) is not None for layer in range(len(self.layers))) else (words,)
        )

    def _held(self) -> tuple[Section, tuple[Port, ...]]:
        link = self.energy.links[0]
        units, factor = math.prod(self.shape), link.forward * self.volts
        signs = [(1, "x"), (-1, "xn")] if link.crossbar.doubled else [(1, "x")]
        wires = [(sign, f"{letter}_{unit + 1}", unit) for sign, letter in signs for unit in range(units)]
        nodes = tuple(Node(name, f"{'minus ' if sign < 0 else ''}unit {unit + 1} of the input") for sign, name, unit in wires)
        parts = tuple(VoltageSource(f"v{name}", name, GROUND, 0.0) for _, name, _ in wires)
        ports = tuple(Port(f"v{name}", unit, sign * factor) for sign, name, unit in wires)
        twice = ", each as it is and inverted, so that a conductance of either sign is a pair" if link.crossbar.doubled else ""
        notes = (f"A 1 in the input is {factor:g} V.",)
        return Section(f"The input: {_count(units, 'voltage')}, held by sources{twice}", nodes, parts, notes), ports

    def _led_in(self) -> tuple[Section, tuple[Port, ...]]:
        names = self.layers[0]
        parts = tuple(CurrentSource(f"ix_{unit}", GROUND, name, 0.0) for unit, name in enumerate(names, 1))
        ports = tuple(Port(part.name, unit, self.amperes) for unit, part in enumerate(parts))
        notes = (f"A 1 in the input is {self.amperes:g} A.",)
        return Section(f"The input: {_count(len(names), 'current')} into the first layer", (), parts, notes), ports

    def _layer(self, layer: int) -> Section:
        last, names = layer == len(self.layers) - 1, self.layers[layer]
        what = "The output" if last else f"Layer {layer + 1}"
        leak, signs, parts = self.energy.leaks[layer] * self.siemens, self._signs(layer), []
        notes = []
        if leak:
            parts += [Resistor(f"r0_{name}", name, GROUND, leak) for name in names]
            notes.append(f"A resistor of {1 / leak:g} ohms leads from every node to ground.")
        words = {1: "kept from falling below 0 V", -1: "kept from rising above 0 V", 0: ""}
        nodes = tuple(Node(name, words[sign]) for name, sign in zip(names, signs or [0] * len(names), strict=True))
        model = self.energy.diode.model(self.ideal)
        for name, sign in zip(names, signs or (), strict=False):
            if sign:
                ends = (GROUND, name) if sign > 0 else (name, GROUND)
                parts.append(Diode(f"d{name}", *ends, model))
        if signs is not None:
            notes.append("Diodes are the rails: from ground to a node, so that it stays above, or from a node to ground.")
        return Section(
            f"{what}: {_count(len(names), 'node')}{', each with a diode' if signs and all(signs) else ''}",
            nodes,
            tuple(parts),
            tuple(notes),
        )

    def _signs(self, layer: int) -> list[int] | None:
        """Of the rails at every node; None where there are none."""
        shape = self.shapes[layer]
        signs = self.energy.rails[layer].signs(shape, torch.zeros((), dtype=torch.float64)).expand(shape).flatten()
        return [int(sign) for sign in signs.tolist()] if bool(signs.any()) else None

    def _amplifiers(self, link: Link) -> Iterator[Section]:
        if link.pre < 0 or (link.forward, link.backward) == (1, 1):
            return
        names = self.layers[link.pre]
        parts = tuple(Amplifier(f"a{name}", name, f"{name}_a", link.forward, link.backward) for name in names)
        nodes = tuple(Node(f"{name}_a", f"{link.forward:g} x {name}") for name in names)
        gains = f"voltages forward x {link.forward:g}, currents backward x {link.backward:g}"
        title = f"Amplifiers behind layer {link.pre + 1}: {gains}"
        yield Section(title, nodes, parts)

    def _biases(self, link: Link) -> Iterator[Section]:
        if link.crossbar.bias is None:
            return
        below = self.shape if link.pre < 0 else self.shapes[link.pre]
        currents: Tensor = link.crossbar.up(link.crossbar.weight.new_zeros(1, *below)).flatten() * self.amperes
        names = self.layers[link.post]
        parts = tuple(
            CurrentSource(f"ib_{name}", GROUND, name, current) for name, current in zip(names, currents.tolist(), strict=True)
        )
        yield Section(f"Bias currents into {self._name(link.post)}", (), parts)

    def _crossbar(self, link: Link) -> Section:
        below = self.shape if link.pre < 0 else self.shapes[link.pre]
        if link.pre < 0:
            units = math.prod(below)
            lower = [f"x_{unit + 1}" for unit in range(units)]
            lower += [f"xn_{unit + 1}" for unit in range(units)] if link.crossbar.doubled else []
        else:
            plain = (link.forward, link.backward) == (1, 1)
            lower = [name if plain else f"{name}_a" for name in self.layers[link.pre]]
        found = link.crossbar.resistors(below)
        conductances = (link.crossbar.conductances(below).double() * self.siemens).tolist()
        ends = zip(found.below.tolist(), found.above.tolist(), conductances, strict=True)
        number, upper = link.post + 1, self.layers[link.post]
        parts: tuple[Part, ...] = tuple(
            Resistor(f"r{number}_{i + 1}_{j + 1}", lower[i], upper[j], conductance) for i, j, conductance in ends
        )
        least, most = min(conductances), max(conductances)
        source = "the input" if link.pre < 0 else self._name(link.pre)
        return Section(
            f"Crossbar from {source} to {self._name(link.post)}: {len(lower)} x {len(upper)} nodes, "
            f"{_count(len(parts), 'resistor')}",
            (),
            parts,
            (f"They have {1 / most:.4g} to {1 / least:.4g} ohms, {least:.3g} to {most:.3g} S.",),
        )

    def _nudge(self, layer: int) -> tuple[Section, tuple[Port, ...]]:
        parts = tuple(CurrentSource(f"in_{name}", GROUND, name, 0.0) for name in self.layers[layer])
        ports = tuple(Port(part.name, unit, self.amperes) for unit, part in enumerate(parts))
        notes = (
            "All are 0 A in the free phase. In a nudged phase they are -beta x the error at the output. What differs between "
            "two nudged phases, of opposite sign, makes the gradient.",
        )
        return Section("The nudge: a current into every output node", (), parts, notes), ports

    def _name(self, layer: int) -> str:
        return "the output" if layer == len(self.layers) - 1 else f"layer {layer + 1}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
