"""From counts and constants to energy and time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ffebm.checks import check_size
from ffebm.hardware.cost.bill import PHASES, Bill, Line, Phase
from ffebm.hardware.cost.technology import Technology
from ffebm.hardware.cost.workload import AnalogPart, DigitalPart, Workload
from ffebm.interaction import Matrix

__all__ = ["Estimate", "Tiles", "estimate"]
__dir__ = __all__.copy


@dataclass(frozen=True)
class Tiles:
    """The crossbars of a block."""

    part: str
    tiles: int
    cells: int  # that hold weights, in all copies
    use: float  # the part of all cells that these are


@dataclass(frozen=True)
class Estimate:
    """What a batch takes: in inference and in a training step, with analog blocks and all digitally."""

    workload: Workload
    technology: Technology
    tiles: tuple[Tiles, ...]
    inference: Bill
    digital_inference: Bill
    training: Bill | None  # None where gradients come without nudges, which is nothing that a chip can do
    digital_training: Bill

    @property
    def bills(self) -> dict[str, Bill | None]:
        return {
            "inference": self.inference,
            "inference, digital": self.digital_inference,
            "training step": self.training,
            "training step, digital": self.digital_training,
        }


def estimate(workload: Workload, technology: Technology, batch: int = 32) -> Estimate:
    """Energy and time of a batch, for the same net in a technology: with its analog blocks, and all digital.

    The digital net makes one sweep upward where a block relaxes, as a feedforward net does, and learns by backprop.
    """
    check_size("batch", batch)
    rates = _Rates(technology, batch)
    digital = [line for part in workload.digital for line in rates.digital(part)]
    instead = [line for block in workload.blocks for line in rates.digital_instead(block)]
    analog = [line for block in workload.blocks for line in rates.analog(block, trains=False)]
    trained: list[Line] | None = None
    if all(block.nudged_sweeps is not None for block in workload.blocks):
        trained = [line for block in workload.blocks for line in rates.analog(block, trains=True)]
        trained += rates.elastic(workload)
    names = [part.name for pair in zip(workload.stages, workload.blocks, strict=True) for part in pair]
    names.append(workload.readout.name)

    def bill(lines: list[Line], phases: tuple[Phase, ...] = PHASES) -> Bill:
        kept = [line for line in lines if line.phase in phases and line.count]
        return Bill(batch, tuple(sorted(kept, key=lambda line: (phases.index(line.phase), names.index(line.part)))))

    return Estimate(
        workload,
        technology,
        tuple(rates.tiles(block) for block in workload.blocks),
        bill(digital + analog, ("free",)),
        bill(digital + instead, ("free",)),
        None if trained is None else bill(digital + trained),
        bill(digital + instead),
    )


class _Rates:
    """The lines of every part, by what things take in a technology."""

    def __init__(self, technology: Technology, batch: int) -> None:
        self.t = technology
        self.design = technology.design
        self.batch = batch

    def tiles(self, block: AnalogPart) -> Tiles:
        per_weight = self._per_weight(block) * block.equipment.ways
        tiles = sum(self._copies(matrix) * self._tiles(matrix) for matrix in block.matrices) * per_weight
        cells = sum(self._copies(matrix) * matrix.weights for matrix in block.matrices) * per_weight
        return Tiles(block.name, tiles, cells, cells / (tiles * self.design.rows * self.design.columns) if tiles else 0.0)

    def digital(self, part: DigitalPart) -> Iterator[Line]:
        """Forward and backward through a stage, and the gradient of its weights."""
        yield from self._layer(part.name, part.macs, part.inputs, part.outputs, part.parameters, first=part.first)

    def digital_instead(self, block: AnalogPart) -> Iterator[Line]:
        """What a feedforward net of the same weights does in place of a block."""
        below = max(block.units - block.outputs, block.inputs)
        yield from self._layer(block.name, block.macs, below, block.units, block.parameters, first=False)

    def analog(self, block: AnalogPart, *, trains: bool) -> Iterator[Line]:
        """A block that settles; all of its units are read where it trains, its output alone where it does not."""
        read = block.units if trains and block.equipment.reads_all else block.outputs
        yield from self._phase("free", block, block.free_sweeps, block.inputs, read, self.batch)
        if not trains:
            return
        assert block.nudged_sweeps is not None
        pushed = block.inputs + block.outputs  # which a nudge goes into besides
        yield from self._phase("nudged", block, block.nudged_sweeps, pushed, read, block.nudges * self.batch)
        phases, samples = block.tried
        yield from self._phase("nudged", block, block.nudged_sweeps, pushed, read, phases * samples, per_step=True)
        yield from self._update(block)

    def elastic(self, workload: Workload) -> Iterator[Line]:
        """What an elastic nudge takes besides: each nudged sweep reads the output, and runs the readout there and back."""
        last, readout = workload.blocks[-1], workload.readout
        if last.elastic and last.nudged_sweeps is not None:
            times = last.nudged_sweeps * last.nudges * self.batch
            yield self._macs("nudged", readout.name, times * 2 * readout.macs)
            yield self._read("nudged", last, times * last.outputs, last.outputs)
            yield self._driven("nudged", last, times * last.outputs, times)

    def _layer(self, name: str, macs: int, inputs: int, outputs: int, parameters: int, *, first: bool) -> Iterator[Line]:
        batch = self.batch
        yield self._macs("free", name, batch * macs)
        yield self._memory("free", name, batch * (inputs + outputs))
        yield self._memory("free", name, parameters, per_step=True)
        if not first:
            yield self._macs("nudged", name, batch * macs)
            yield self._memory("nudged", name, batch * (inputs + outputs))
            yield self._memory("nudged", name, parameters, per_step=True)
        yield self._macs("update", name, batch * macs)
        yield self._memory("update", name, batch * (inputs + outputs))
        yield self._memory("update", name, 2 * parameters, per_step=True)

    def _phase(
        self, phase: Phase, block: AnalogPart, sweeps: float, driven: int, read: int, times: int, *, per_step: bool = False
    ) -> Iterator[Line]:
        """Values go in, the block settles, units are read, and what was read is kept."""
        lines = (
            self._driven(phase, block, times * driven, times),
            self._settling(phase, block, times * sweeps),
            self._read(phase, block, times * read, read),
            self._memory(phase, block.name, times * (driven + read)),
        )
        yield from (replace(line, per_step=per_step) for line in lines)

    def _settling(self, phase: Phase, block: AnalogPart, sweeps: float) -> Line:
        """Each sweep sends a current up and a current down through every matrix."""
        macs = sweeps * 2 * block.macs
        if self.design.settle == "analog":
            energy = macs * self._per_weight(block) * self.t.settle_energy
        else:
            products = sum(matrix.positions * self._tiles(matrix) for matrix in block.matrices)
            size = self.design.rows * self.design.columns / self.t.cells
            energy = sweeps * 2 * products * self._per_weight(block) * size * self.t.product_energy
        waits = max((1 if self.design.at_once else matrix.positions for matrix in block.matrices), default=0)
        return Line(phase, block.name, "settling", macs, energy, sweeps * block.turns * waits * self.t.seconds("settle_time"))

    def _driven(self, phase: Phase, block: AnalogPart, conversions: float, settled: float) -> Line:
        bits = block.equipment.dac_bits or self.design.dac_bits
        time = settled * self.t.seconds("dac_time")
        return Line(phase, block.name, "input conversion", conversions, conversions * self.t.dac_energy(bits), time)

    def _read(self, phase: Phase, block: AnalogPart, conversions: float, units: int) -> Line:
        bits, conversions = block.equipment.adc_bits or self.design.adc_bits, conversions * block.equipment.repeats
        converters = math.ceil(units / self.design.units_per_adc)
        time = conversions / converters / self.t.rate("adc_rate")
        return Line(phase, block.name, "read-out", conversions, conversions * self.t.adc_energy(bits), time)

    def _update(self, block: AnalogPart) -> Iterator[Line]:
        """The contrast of two states is two outer products: of a mean with a difference, and the other way round."""
        products = 2 * self.batch
        if self.design.update == "outer-product" or not block.equipment.reads_all:
            cells = self._per_weight(block) * block.equipment.ways * products * block.macs
            copies = max((1 if self.design.at_once else matrix.positions for matrix in block.matrices), default=0)
            time = products * copies * self.t.seconds("outer_time")
            yield Line("update", block.name, "weight writes", cells, cells * self.t.outer_energy, time)
            return
        yield self._macs("update", block.name, products * block.macs)
        yield self._memory("update", block.name, self.batch * (1 + block.nudges) * block.units)
        yield self._memory("update", block.name, 2 * block.parameters, per_step=True)
        cells = self.tiles(block).cells
        time = self.t.seconds("write_time") * self.design.rows * self.design.columns / self.t.cells if cells else 0.0
        yield Line("update", block.name, "weight writes", cells, cells * self.t.write_energy, time, per_step=True)

    def _macs(self, phase: Phase, name: str, macs: float) -> Line:
        time = macs / self.design.multipliers / self.t.rate("clock")
        return Line(phase, name, "digital", macs, macs * self.t.mac_energy, time)

    def _memory(self, phase: Phase, name: str, accesses: float, *, per_step: bool = False) -> Line:
        """Beside the work that needs it: memory takes no time of its own."""
        return Line(phase, name, "memory", accesses, accesses * self.t.access_energy, 0.0, per_step)

    def _copies(self, matrix: Matrix) -> int:
        return matrix.positions if self.design.at_once else 1

    def _tiles(self, matrix: Matrix) -> int:
        """Arrays that a matrix takes, of one sign and one position of it."""
        return matrix.groups * math.ceil(matrix.rows / self.design.rows) * math.ceil(matrix.columns / self.design.columns)

    def _per_weight(self, block: AnalogPart) -> int:
        return self.design.arrays_per_weight if block.equipment.signed else 1
