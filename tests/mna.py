"""A second opinion on circuits: netlists read back, and solved by modified nodal analysis in double precision."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import torch

from ffebm.circuit import (
    GROUND,
    THERMAL_VOLTAGE,
    Amplifier,
    Circuit,
    CurrentSource,
    Diode,
    Junction,
    Node,
    Part,
    Resistor,
    Section,
    StraightLines,
    VoltageSource,
)

NUMBER = r"([-+0-9.e]+)"


def voltages(circuit: Circuit, values: Mapping[str, float] | None = None) -> dict[str, float]:
    """The voltage at every node, by Newton's method on Kirchhoff's current law; diodes become steep by and by."""
    analysis = _Analysis(circuit, {**circuit.sources, **(values or {})})
    steepest = min((m.ideality for m in circuit.diode_models if isinstance(m, Junction)), default=1.0)
    steps = max(1, math.ceil(2 * math.log10(100 / steepest)))
    solution = torch.zeros(analysis.size, dtype=torch.float64)
    for step in range(steps + 1):  # from diodes that are hardly any to the real ones
        solution = analysis.solve(solution, (100 / steepest) ** (1 - step / steps))
    return dict(zip(analysis.nodes, solution.tolist(), strict=False))


def layers(circuit: Circuit, values: Mapping[str, float] | None = None) -> list[torch.Tensor]:
    """The states of all layers."""
    found = voltages(circuit, values)
    return [torch.tensor([found[name] for name in layer], dtype=torch.float64) / circuit.volts for layer in circuit.layers]


class _Analysis:
    def __init__(self, circuit: Circuit, values: Mapping[str, float]) -> None:
        self.nodes = [node.name for node in circuit.nodes]
        self.places = {name: place for place, name in enumerate(self.nodes)}
        branches = [part for part in circuit.parts if isinstance(part, VoltageSource | Amplifier)]
        self.size = len(self.nodes) + len(branches)
        self.matrix = torch.zeros(self.size, self.size, dtype=torch.float64)
        self.right = torch.zeros(self.size, dtype=torch.float64)
        self.diodes = [part for part in circuit.parts if isinstance(part, Diode)]
        for part in circuit.parts:
            match part:
                case Resistor(_, first, second, conductance):
                    self._conduct(self.matrix, first, second, conductance)
                case CurrentSource(name, origin, into, _):
                    self._add(self.right, origin, -values[name])
                    self._add(self.right, into, values[name])
        for row, part in enumerate(branches, len(self.nodes)):  # a row for each current that is unknown
            match part:
                case VoltageSource(name, positive, negative, _):
                    for node, sign in ((positive, 1.0), (negative, -1.0)):
                        self._set(row, node, sign)
                        self._draw(node, row, sign)
                    self.right[row] = values[name]
                case Amplifier(_, input, output, forward, backward):
                    self._set(row, output, 1.0)
                    self._set(row, input, -forward)
                    self._draw(output, row, -1.0)
                    self._draw(input, row, backward)

    def _add(self, right: torch.Tensor, node: str, value: float) -> None:
        if node != GROUND:
            right[self.places[node]] += value

    def _set(self, row: int, node: str, value: float) -> None:
        if node != GROUND:
            self.matrix[row, self.places[node]] += value

    def _draw(self, node: str, branch: int, value: float) -> None:
        if node != GROUND:
            self.matrix[self.places[node], branch] += value

    def _conduct(self, matrix: torch.Tensor, first: str, second: str, conductance: float) -> None:
        for a, b in ((first, second), (second, first)):
            if a != GROUND:
                matrix[self.places[a], self.places[a]] += conductance
                if b != GROUND:
                    matrix[self.places[a], self.places[b]] -= conductance

    def solve(self, solution: torch.Tensor, softer: float) -> torch.Tensor:
        kinds = [[diode for diode in self.diodes if type(diode.model) is kind] for kind in (Junction, StraightLines)]
        laws = [_Law(diodes, self, softer) for diodes in kinds if diodes]
        across = [law.ends @ solution for law in laws]
        for _ in range(2000):
            matrix, right = self.matrix.clone(), self.right.clone()
            for law, volts in zip(laws, across, strict=True):
                current, slope = law(volts)
                matrix += law.ends.T @ (slope[:, None] * law.ends)
                right -= law.ends.T @ (current - slope * volts)
            found = torch.linalg.solve(matrix, right)
            limited = [law.limited(law.ends @ found, volts) for law, volts in zip(laws, across, strict=True)]
            moved = max((new - old).abs().max() for new, old in zip([found, *limited], [solution, *across], strict=True))
            solution, across = found, limited
            if moved < 1e-12 * max(1.0, solution.abs().max().item()):
                return solution
        raise AssertionError(f"Newton's method has not converged: the last step was {moved:.1e}")


class _Law:
    """Diodes of one kind: the current at a voltage, and how far they may open in one step."""

    def __init__(self, diodes: list[Diode], analysis: _Analysis, softer: float) -> None:
        self.ends = torch.zeros(len(diodes), analysis.size, dtype=torch.float64)
        for row, diode in zip(self.ends, diodes, strict=True):
            for node, sign in ((diode.anode, 1.0), (diode.cathode, -1.0)):
                if node != GROUND:
                    row[analysis.places[node]] = sign
        numbers = [tuple(vars(diode.model).values()) for diode in diodes]
        self.numbers = torch.tensor(numbers, dtype=torch.float64).T
        self.straight = isinstance(diodes[0].model, StraightLines)
        self.softer = softer

    def __call__(self, volts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.straight:
            offset, on, off = self.numbers
            opened = volts > offset
            return off * volts + (on - off) * (volts - offset).clamp(min=0), torch.where(opened, on, off)
        saturation, knee = self._junction
        grown = torch.exp((volts / knee).clamp(max=700))
        return saturation * (grown - 1), saturation / knee * grown

    @property
    def _junction(self) -> tuple[torch.Tensor, torch.Tensor]:
        saturation, ideality = self.numbers
        return saturation, self.softer * ideality * THERMAL_VOLTAGE

    def limited(self, volts: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """SPICE's limit: the logarithm of what Newton's method wants."""
        if self.straight:
            return volts
        saturation, knee = self._junction
        critical = knee * torch.log(knee / (math.sqrt(2) * saturation))
        step = 1 + (volts - before) / knee
        opened = torch.where(step > 0, before + knee * torch.log(step.clamp(min=1e-300)), critical)
        shut = torch.where(volts > knee, knee * torch.log((volts / knee).clamp(min=1e-300)), volts)
        near = (volts <= critical) | ((volts - before).abs() <= 2 * knee)
        return torch.where(near, volts, torch.where(before > 0, opened, shut))


Read = tuple[str, list[Section]]


def read(text: str) -> Read:
    """The title of a netlist and its sections, with the notes as one; what is for the solver is left out."""
    title, rest = text.split("\n", 1)
    models = {
        name: Junction(float(saturation), float(ideality))
        for name, saturation, ideality in re.findall(rf"^\.model (\w+) d\(is={NUMBER} n={NUMBER}\)$", rest, re.MULTILINE)
    }
    sections = []
    for head, body in re.findall(r"^\* -+\n((?:\* .*\n)+?)\* -+\n((?:.+\n)*)", rest, re.MULTILINE):
        name = " ".join(line.removeprefix("* ") for line in head.splitlines())
        lines = body.splitlines()
        nodes = re.findall(r"^\* node (\w+)(?:: (.*))?$", body, re.MULTILINE)
        parts = [part for group in _groups([line for line in lines if line[0] not in "*."]) for part in [_part(group, models)]]
        notes = [line.removeprefix("* ") for line in lines if line.startswith("* ") and not line.startswith("* node ")]
        sections.append(Section(name, tuple(Node(*node) for node in nodes), tuple(parts), (" ".join(notes),) if notes else ()))
    return title.removeprefix("* "), [each for each in sections if each.parts or each.nodes]


def _groups(lines: list[str]) -> list[list[str]]:
    """Lines that make one part: an amplifier has three."""
    groups: list[list[str]] = []
    for line in lines:
        if groups and line.split()[0] in (f"v{groups[-1][0].split()[0][1:]}", f"f{groups[-1][0].split()[0][1:]}"):
            groups[-1].append(line)
        else:
            groups.append([line])
    return groups


def _part(lines: list[str], models: Mapping[str, Junction]) -> Part:
    name, *words = lines[0].split()
    match name[0]:
        case "r":
            return Resistor(name, words[0], words[1], 1 / float(words[2]))
        case "d":
            return Diode(name, words[0], words[1], models[words[2]])
        case "v":
            return VoltageSource(name, words[0], words[1], float(words[3]))
        case "i":
            return CurrentSource(name, words[0], words[1], float(words[3]))
        case "b":
            law = rf"i={NUMBER}\*v\((\w+),(\w+)\)\+{NUMBER}\*max\(v\(\2,\3\)-\({NUMBER}\),0\)"
            found = re.fullmatch(law, words[2])
            assert found is not None, words
            off, anode, cathode, more, offset = found.groups()
            assert [anode, cathode] == words[:2]
            return Diode(name[1:], anode, cathode, StraightLines(float(offset), float(off) + float(more), float(off)))
        case "e":
            drive, sense, feed = (line.split() for line in lines)
            assert drive[1:3] == [f"{name[1:]}.drive", GROUND]
            assert drive[4] == GROUND
            assert sense == [f"v{name[1:]}", f"{name[1:]}.drive", sense[2], "dc", "0"]
            assert feed == [f"f{name[1:]}", drive[3], GROUND, f"v{name[1:]}", feed[4]]
            return Amplifier(name[1:], drive[3], sense[2], float(drive[5]), float(feed[4]))
    raise AssertionError(lines)
