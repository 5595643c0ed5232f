"""The circuits of a trained model: written as netlists, and held against a circuit simulator."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ffebm.checks import one_line
from ffebm.circuit import Circuit, Junction
from ffebm.energy import Energy
from ffebm.errors import DeviceError, UnsettledError
from ffebm.experiment.data import Dataset, load_for
from ffebm.experiment.errors import UserError
from ffebm.experiment.files import write_atomically
from ffebm.experiment.run import Run
from ffebm.experiment.trained import load_trained, usable
from ffebm.hardware import NgspiceDriver, find_ngspice, netlist
from ffebm.hardware.agreement import Agreement, agreement_of, errands
from ffebm.model import FFEBM

__all__ = ["Checked", "NoCircuitError", "check_circuits", "export_circuit"]
__dir__ = __all__.copy

MOST = 300_000  # conductances that ngspice is asked to solve: a single operating point of so many takes minutes


@dataclass(frozen=True)
class Checked:
    """A block, held against its circuit: how well they agree, or why there is no circuit."""

    block: int  # from 1
    energy: str
    nodes: int = 0
    parts: int = 0
    volts: float = 1.0  # that a state of 1 is
    agreement: Agreement | None = None
    reason: str = ""


def export_circuit(run: Run, block: int, sample: int, path: Path, ideality: float, root: Path | None = None) -> Circuit:
    """Write a block of a run as a netlist, with a test image at its input.

    Args:
        block: from 1.
        sample: which test image, from 0.
        ideality: of the diodes that stand in for ideal ones.
        root: where the data lies now, if not where it was.
    """
    model, dataset = _model_and_data(run, root)
    if block > len(model.chain):
        raise UserError(f"There is no block {block} in {run.folder}: it has {len(model.chain)}, counted from 1.")
    x, _ = _images(dataset, slice(sample, sample + 1), f"test image {sample}")
    with torch.no_grad(), usable(run):
        (visit,) = (visit for visit in model.walk(x) if visit.number == block)
    try:
        circuit = _circuit(visit.block.energy, visit.x, ideality)
    except NoCircuitError as error:
        raise UserError(f"Block {block} of {run.folder} cannot be exported: {error}") from None
    fed = circuit.fed(visit.x[0].double().flatten().tolist())
    title = f"Block {block} of {len(model.chain)} of {one_line(run.folder.name)}, with test image {sample} at the model's input"
    named = replace(fed, title=title, notes=(f"{fed.title}.", *fed.notes))
    write_atomically(path, netlist(named).encode())
    return named


def check_circuits(
    run: Run,
    samples: int,
    ideality: float,
    root: Path | None = None,
    watch: Callable[[int, int], object] = lambda _done, _all: None,
) -> list[Checked]:
    """Solve all blocks of a run that have a circuit by ngspice, free and nudged, for the first test images.

    Args:
        watch: is told how many blocks of how many are done.
    """
    try:
        find_ngspice()
    except DeviceError as error:
        raise UserError(str(error)) from None
    model, dataset = _model_and_data(run, root)
    x, y = _images(dataset, slice(0, samples), f"{samples} test images")
    with usable(run):
        given = errands(model, x, y)
    found: list[Checked] = []
    for number, (block, x, delta) in enumerate(given, 1):
        watch(number - 1, len(given))
        kind = type(block.energy).__name__
        if sum(p.numel() for p in block.energy.parameters()) > MOST:
            found.append(
                Checked(number, kind, reason=f"it has more than {MOST:,} conductances, which ngspice takes hours for.")
            )
            continue
        try:
            circuit = _circuit(block.energy, x, ideality)
        except NoCircuitError as error:
            found.append(Checked(number, kind, reason=str(error)))
            continue
        try:
            with NgspiceDriver(block.energy, ideal=Junction(ideality=ideality)) as driver:
                agreed = agreement_of(block, x, delta, driver)
        except (DeviceError, UnsettledError) as error:
            raise UserError(f"Block {number} of {run.folder} could not be held against ngspice: {error}") from None
        nodes, parts = (sum(1 for _ in each) for each in (circuit.nodes, circuit.parts))
        found.append(Checked(number, kind, nodes, parts, circuit.volts, agreed))
    watch(len(given), len(given))
    return found


def _model_and_data(run: Run, root: Path | None) -> tuple[FFEBM, Dataset]:
    dataset = load_for(run.settings().data, root, run.description())
    model, _ = load_trained(run, dataset.description)
    return model, dataset


def _images(dataset: Dataset, part: slice, asked: str) -> tuple[Tensor, Tensor]:
    if part.stop > len(dataset.test):
        raise UserError(f"There is no {asked}: {dataset.name} has {len(dataset.test):,}, counted from 0.")
    x = dataset.normalise(dataset.test.x[part])
    return x.to(memory_format=torch.channels_last), dataset.test.y[part]


class NoCircuitError(UserError):
    """A block that no circuit is known of."""


def _circuit(energy: Energy, x: Tensor, ideality: float) -> Circuit:
    try:
        return deepcopy(energy).double().circuit(tuple(x.shape[1:]), ideal=Junction(ideality=ideality))
    except TypeError as error:
        raise NoCircuitError(str(error)) from None
