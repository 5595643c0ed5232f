"""The energy microscope: how the blocks of a trained net relax, on one image sweep by sweep, and on the test set at large."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from ffebm.block import EnergyBlock
from ffebm.diagnostics import Trace, trace
from ffebm.errors import DivergenceError
from ffebm.experiment.data import Batches, Dataset, Samples, load_for
from ffebm.experiment.errors import UserError
from ffebm.experiment.run import Run
from ffebm.experiment.settings import Gradient
from ffebm.experiment.trained import load_relaxing
from ffebm.gradient import EquilibriumPropagation
from ffebm.gradient.equilibrium_propagation import LastBlock
from ffebm.model import FFEBM, ReadoutCost
from ffebm.relaxation import FixedPoint, Relaxed

__all__ = ["BlockView", "Microscope", "TracedPhase", "look", "look_if_possible"]
__dir__ = __all__.copy

SWEEPS = 40  # that are traced
PATIENCE, STILL = 200, 1e-3  # sweeps after which a block counts as not settled, and what it may still move by when it has
BATCH = 250


@dataclass(frozen=True)
class TracedPhase:
    """One relaxation of one block, sweep by sweep."""

    energy: list[float]  # before the first sweep and after each
    residual: list[float]  # of each sweep

    @classmethod
    def of(cls, traced: Trace) -> TracedPhase:
        return cls(traced.energy[:, 0].tolist(), traced.residual[:, 0].tolist())


@dataclass(frozen=True)
class BlockView:
    """One block under the microscope."""

    name: str
    free: TracedPhase
    pushed: TracedPhase  # nudged by +β, towards a lower loss
    pulled: TracedPhase  # nudged by −β
    contraction: float  # by how much the residual shrinks a sweep, while there is something left to shrink
    floor: list[float]  # share of units at the lower end of their range, by layer, over the test images
    ceiling: list[float]  # at the upper end
    sweeps: dict[int, int]  # test images by the sweeps that they took to settle
    unsettled: int  # those that did not


@dataclass(frozen=True)
class Microscope:
    """All blocks of a run's net."""

    run: str
    sample: int  # of the test set
    label: str  # its class
    guess: str  # what the net takes it for
    beta: float
    hold_pooling: bool  # whether max-pooling keeps its positions while a block is nudged
    images: int  # that saturation and sweeps are counted over
    blocks: list[BlockView]


def look_if_possible(
    runs: Sequence[Run], *, images: int | None = None, data: Path | None = None, console: Console | None = None
) -> tuple[list[Microscope], list[str]]:
    """Look at the nets of some runs; where one cannot be looked at, a sentence says why."""
    seen: list[Microscope] = []
    trouble: list[str] = []
    for run in runs:
        try:
            seen.append(look(run, images=images, data=data, console=console))
        except (UserError, DivergenceError, ValueError) as error:
            trouble.append(f"{run.folder.name} could not be put under the microscope: {error}")
    return seen, trouble


def look(
    run: Run, *, sample: int = 0, images: int | None = None, data: Path | None = None, console: Console | None = None
) -> Microscope:
    """Look at the net of a run.

    Args:
        sample: number of the test image to trace.
        images: how many test images to count saturation and sweeps over; all by default.
    """
    settings = run.settings()
    dataset = load_for(settings.data, data, run.description())
    if not 0 <= sample < len(dataset.test):
        raise UserError(f"There is no test image {sample}: {dataset.name} has {len(dataset.test):,}, counted from 0.")
    model = load_relaxing(run, dataset.description).put_on(None)  # energies are those of ideal blocks
    x, y = dataset.normalise(dataset.test.x[sample : sample + 1]), dataset.test.y[sample : sample + 1]
    traced, logits = _traced(model, x.to(memory_format=torch.channels_last), y, settings.gradient)
    count = min(images or len(dataset.test), len(dataset.test))
    counted = _counted(model, dataset, count, console)
    blocks = [
        BlockView(block.label, free, pushed, pulled, _rate(free.residual), *counts)
        for (_, block), (free, pushed, pulled), counts in zip(model.chain, traced, counted, strict=True)
    ]
    label, guess = dataset.classes[int(y)], dataset.classes[int(logits.argmax())]
    nudge = settings.gradient
    return Microscope(run.folder.name, sample, label, guess, nudge.beta, nudge.hold_pooling, count, blocks)


def _traced(model: FFEBM, x: Tensor, y: Tensor, chosen: Gradient) -> tuple[list[list[TracedPhase]], Tensor]:
    """The free phase and both nudged ones of every block, on one sample, from settled states; and the logits."""

    def settle(block: EnergyBlock, x: Tensor) -> Relaxed:
        return block.estimator.equilibrium(block.energy, x, replace(block.relax, steps=1000, tolerance=1e-6))

    visits = list(model.walk(x, settle))
    outputs = [visit.output for visit in visits]
    logits = model.readout(outputs[-1])
    cost = ReadoutCost(model.readout, model.criterion)
    deltas = torch.autograd.grad(cost(outputs[-1], y).sum(), outputs)
    sweeps = FixedPoint(SWEEPS, order="output-first")
    estimator = EquilibriumPropagation(sweeps, beta=chosen.beta, scale=chosen.scale, hold_pooling=chosen.hold_pooling)
    found: list[list[TracedPhase]] = []
    for visit, delta in zip(visits, deltas, strict=True):
        block, entering = visit.block, visit.x.detach()
        state = tuple(layer.detach() for layer in visit.relaxed.state)
        if visit is visits[-1] and model.nudge == "elastic":
            phases = estimator.phases(LastBlock(block.system, cost, y).nudge(entering), entering)
        else:
            phases = estimator.trial_by_error(block.system, entering, state, delta).phases
        around = block.energy.latched(state) if estimator.hold_pooling else block.energy
        free = trace(block.energy, replace(block.relax, steps=SWEEPS, tolerance=None), entering)
        nudged = [trace(around, sweeps, entering, start=state, nudge=phase.tilt) for phase in phases]
        found.append([TracedPhase.of(traced) for traced in (free, *nudged)])
    return found, logits


@torch.no_grad()
def _counted(
    model: FFEBM, dataset: Dataset, count: int, console: Console | None
) -> list[tuple[list[float], list[float], dict[int, int], int]]:
    """Saturated shares at equilibrium, and sweeps to get there, of every block."""
    layers = [len(block.energy.activations) for _, block in model.chain]
    floor = [torch.zeros(size, dtype=torch.float64) for size in layers]
    ceiling = [torch.zeros(size, dtype=torch.float64) for size in layers]
    sweeps: list[list[Tensor]] = [[] for _ in layers]
    unsettled = [0] * len(layers)
    batches = Batches(dataset, Samples(dataset.test.x[:count], dataset.test.y[:count]), BATCH)
    for batch in track(batches, "Settling", total=len(batches), console=console, transient=True, disable=console is None):
        x = batch.x.to(memory_format=torch.channels_last)
        for number, visit in enumerate(model.walk(x, _patiently)):
            relaxed = visit.relaxed
            for layer, (state, activation) in enumerate(zip(relaxed.state, visit.block.energy.activations, strict=True)):
                floor[number][layer] += (state <= activation.low).double().mean() * len(x) / count
                ceiling[number][layer] += (state >= activation.high).double().mean() * len(x) / count
            settled = relaxed.residual <= STILL
            sweeps[number].append(relaxed.sweeps[settled])
            unsettled[number] += int((~settled).sum())
    return [
        (low.tolist(), high.tolist(), dict(sorted(Counter(torch.cat(taken).tolist()).items())), rest)
        for low, high, taken, rest in zip(floor, ceiling, sweeps, unsettled, strict=True)
    ]


def _patiently(block: EnergyBlock, x: Tensor) -> Relaxed:
    return block.settle(x, replace(block.relax, steps=PATIENCE, tolerance=STILL))


def _rate(residuals: list[float]) -> float:
    """The geometric mean of the factors between sweeps, from the third on and until rounding takes over."""
    falling = [r for r in residuals[2:] if r > 1e-6]
    return (falling[-1] / falling[0]) ** (1 / (len(falling) - 1)) if len(falling) > 1 else 0.0
