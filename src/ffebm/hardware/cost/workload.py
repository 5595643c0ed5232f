"""What a model has its hardware do, in numbers: products, conversions and digital work, before any of it has a price."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ffebm.interaction import Matrix
from ffebm.model import FFEBM
from ffebm.relaxation import Relaxation
from ffebm.substrate import Equipment, Substrate

__all__ = ["AnalogPart", "DigitalPart", "Workload", "workload"]
__dir__ = __all__.copy

UNSAID = Equipment()  # where a block runs on nothing in particular


@dataclass(frozen=True)
class DigitalPart:
    """A stage or the readout, for one sample."""

    name: str
    macs: int
    inputs: int
    outputs: int
    parameters: int
    first: bool = False  # whether nothing before it learns, so that no error goes further down


@dataclass(frozen=True)
class AnalogPart:
    """A block, for one sample."""

    name: str
    inputs: int
    layers: tuple[int, ...]  # units of each
    outputs: int
    matrices: tuple[Matrix, ...]
    turns: int  # groups of layers that a sweep moves one after the other
    parameters: int
    free_sweeps: float
    nudged_sweeps: float | None = None  # None where its gradient comes without nudges
    nudges: int = 0  # phases besides the free one
    elastic: bool = False  # whether its nudge follows the output, so that the readout runs at every nudged sweep
    tried: tuple[int, int] = (0, 0)  # nudged phases that choose β, once a batch, and samples that they are made with
    equipment: Equipment = UNSAID

    @property
    def units(self) -> int:
        return sum(self.layers)

    @property
    def macs(self) -> int:
        """Of all matrices, one way."""
        return sum(matrix.macs for matrix in self.matrices)

    @property
    def weights(self) -> int:
        return sum(matrix.weights for matrix in self.matrices)


@dataclass(frozen=True)
class Workload:
    """All parts of a model, from the input on: a stage and a block in turn, and the readout."""

    stages: tuple[DigitalPart, ...]
    blocks: tuple[AnalogPart, ...]
    readout: DigitalPart

    @property
    def digital(self) -> tuple[DigitalPart, ...]:
        return (*self.stages, self.readout)


@torch.no_grad()
def workload(model: FFEBM, input_shape: tuple[int, ...] | None = None, sweeps: tuple[float, float] | None = None) -> Workload:
    """Count what a model does, without relaxing anything.

    Args:
        input_shape: of one sample; not needed for a model made by `build`.
        sweeps: of a free and of a nudged phase, where they have been measured; by default the most that blocks may make.
    """
    shape = input_shape or model.input_shape
    rows = model.summary(shape).rows
    assert shape is not None  # or there would be no summary
    entering = math.prod(shape)
    stages: list[DigitalPart] = []
    blocks: list[AnalogPart] = []
    last = len(model.chain)
    for number, (_, block) in enumerate(model.chain, 1):
        stage, analog = rows[2 * number - 2], rows[2 * number - 1]
        x = stage.shapes[0]
        stages.append(_digital(stage.part, stage.macs, entering, math.prod(x), stage.parameters, first=number == 1))
        layout = block.system.layout(x)
        if layout is None:
            raise ValueError(
                f"{block.label}, a {block.system.kind}, does not say which crossbars it takes, so nothing can be said of its "
                "cost. Give its energy `layout`, or its interactions `matrix`."
            )
        units = tuple(math.prod(layer) for layer in analog.shapes)
        nudging = block.estimator.nudging
        elastic = number == last and model.nudge == "elastic" and nudging is not None and not nudging.chosen.linearised
        free = _made(block.relax, None if sweeps is None else sweeps[0], block.hardware)
        nudged = None if nudging is None else _made(nudging.relax, None if sweeps is None else sweeps[1], block.hardware)
        entering = units[block.output_layer]
        blocks.append(
            AnalogPart(
                analog.part,
                math.prod(x),
                units,
                entering,
                layout.matrices,
                layout.turns,
                analog.parameters,
                free,
                nudged,
                nudges=0 if nudging is None else len(nudging.chosen.points),
                elastic=elastic,
                tried=(0, 0) if nudging is None or nudging.automatic is None else nudging.automatic.phases,
                equipment=UNSAID if block.hardware is None else block.hardware.equipment,
            )
        )
    readout = rows[-1]
    classes = math.prod(readout.shapes[0])
    return Workload(tuple(stages), tuple(blocks), _digital(readout.part, readout.macs, entering, classes, readout.parameters))


def _made(relax: Relaxation, counted: float | None, hardware: Substrate | None) -> float:
    """Sweeps of a phase: as many as were counted, and no more than the hardware makes."""
    most = (relax if hardware is None else hardware.shortened(relax)).steps
    return most if counted is None else min(counted, most)


def _digital(name: str, macs: int | None, inputs: int, outputs: int, parameters: int, *, first: bool = False) -> DigitalPart:
    if macs is None:
        raise ValueError(
            f"The multiply-accumulates of {name} are not known, so nothing can be said of its cost: give those of its layers "
            "that have matrices a method `macs(shape)`."
        )
    return DigitalPart(name, macs, inputs, outputs, parameters, first)
