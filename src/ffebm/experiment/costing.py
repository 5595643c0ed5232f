"""What presets and runs would take on analog hardware."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ffebm.experiment.errors import UserError
from ffebm.experiment.forecast import sketch
from ffebm.experiment.places import SETTINGS, check_is_run
from ffebm.experiment.preset import read_preset_or_file
from ffebm.experiment.run import Run
from ffebm.experiment.settings import Settings
from ffebm.hardware.cost import KINDS, PHASES, Bill, Estimate, Technology, estimate, workload

__all__ = ["SHAPES", "Costing", "costing_of", "counted_sweeps", "numbers", "price"]
__dir__ = __all__.copy

# Shape of an image, and classes, of the data sets that are the same everywhere
SHAPES = {
    "digits": ((1, 8, 8), 10),
    "mnist": ((1, 28, 28), 10),
    "fashion-mnist": ((1, 28, 28), 10),
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
    "imagenet32": ((3, 32, 32), 1000),
}


@dataclass(frozen=True)
class Costing:
    """An estimate, and what it is of."""

    name: str
    settings: Settings
    estimate: Estimate
    sweeps: tuple[float, float] | None  # of a free and of a nudged phase on average, where a run has counted them


def costing_of(source: str, technology: Technology, overrides: Sequence[str] = (), batch: int | None = None) -> Costing:
    """The cost of a preset, of settings in a TOML file, or of a run."""
    folder = Path(source)
    if (folder / SETTINGS).is_file() or ("/" in source and folder.is_dir()):
        check_is_run(folder)
        if overrides:
            raise UserError(f"A run keeps its settings: leave out {overrides[0]}, or name a preset.")
        run = Run.open(folder)
        description = run.description() if run.described else None
        shape = None if description is None else (description.shape, len(description.classes))
        return price(folder.name, run.settings(), technology, batch, shape, counted_sweeps(run))
    return price(source, read_preset_or_file(source, overrides), technology, batch)


def price(
    name: str,
    settings: Settings,
    technology: Technology,
    batch: int | None = None,
    shape: tuple[tuple[int, ...], int] | None = None,
    sweeps: tuple[float, float] | None = None,
) -> Costing:
    """The cost of settings, for images of a shape and so many classes; those of official data sets are known."""
    known = shape or SHAPES.get(settings.data.name)
    if known is None:
        raise UserError(
            f"How large are images, and how many classes are there? data.name={settings.data.name} does not say: train a run "
            "on them, and name its folder."
        )
    model = sketch(settings, *known)
    try:
        with torch.device("meta"):
            work = workload(model, known[0], sweeps)
        found = estimate(work, technology, batch or settings.trainer.batch)
    except (TypeError, ValueError) as error:  # a part that does not know what it takes, a converter that cannot be
        raise UserError(str(error)) from None
    return Costing(name, settings, found, sweeps)


def counted_sweeps(run: Run) -> tuple[float, float] | None:
    """Sweeps of a free and of a nudged phase in the last epoch, the mean over blocks, where they were calibrated."""
    rows = run.metrics()
    last = rows[-1] if rows else {}
    if "free_sweeps" not in last or "nudged_sweeps" not in last:
        return None
    return last["free_sweeps"], last["nudged_sweeps"]


def numbers(costing: Costing) -> dict[str, Any]:
    """All that is known of it, for programs."""
    found, technology = costing.estimate, costing.estimate.technology
    return {
        "name": costing.name,
        "batch": found.inference.batch,
        "sweeps": costing.sweeps,
        "bills": {name: None if bill is None else _of_bill(bill) for name, bill in found.bills.items()},
        "tiles": [asdict(tiles) for tiles in found.tiles],
        "technology": {
            "description": technology.description,
            "node_nm": technology.node,
            "design": asdict(technology.design),
            "constants": {
                name: {"value": constant.quantity.to(constant.unit), "unit": constant.unit}
                | {"node_nm": constant.node, "source": constant.source}
                for name, constant in technology.constants.items()
            },
        },
    }


def _of_bill(bill: Bill) -> dict[str, Any]:
    return {
        "energy_joules": bill.energy,
        "seconds": bill.time,
        "energy_per_sample_joules": bill.energy / bill.batch,
        "seconds_per_sample": bill.time / bill.batch,
        "by_kind": {k: {"energy": bill.energy_of(kind=k), "time": bill.time_of(kind=k)} for k in KINDS},
        "by_phase": {p: {"energy": bill.energy_of(p), "time": bill.time_of(p)} for p in PHASES},
        "lines": [asdict(line) for line in bill.lines],
    }
