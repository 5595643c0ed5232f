"""How blocks and gradient stand at the end of a run: whether it learnt to its last step by what it was meant to learn by."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from pydantic import TypeAdapter, ValidationError

from ffebm.calibration import calibrate
from ffebm.checks import brief_name
from ffebm.diagnostics import converged_gradients, cosines, gradients, quiet_copy, smallest_cosine
from ffebm.errors import DivergenceError, UnsettledError
from ffebm.experiment.data import load_for
from ffebm.experiment.errors import UserError
from ffebm.experiment.files import read_regular, write_json
from ffebm.experiment.run import LARGEST, Run
from ffebm.experiment.trained import load_relaxing, usable
from ffebm.model import FFEBM

__all__ = ["BlockAtRest", "FinalCheck", "check_run", "final_check_of", "measure_run"]
__dir__ = __all__.copy

CALIBRATED, SAMPLES = 32, 64  # training images to choose sweeps by, as training does, and others to measure on
MOST_BLOCKS, LONGEST = 1000, 500  # of what is read: blocks, and letters of a name or a sentence
ROUNDING = 1e-6


@dataclass(frozen=True)
class BlockAtRest:
    """One block on the final weights."""

    name: str
    contraction: float | None  # by how much a plain sweep brings it nearer to rest, certified; None where nothing is known
    free_sweeps: int  # as training would make them at the next step
    nudged_sweeps: int | None
    residual: float  # by how much any unit of any sample still moves in the last of those free sweeps
    rest: float  # the same where tests end


@dataclass(frozen=True)
class FinalCheck:
    """All blocks of a run, and its gradient, on the final weights and training images."""

    images: int
    blocks: list[BlockAtRest]
    cosine: float | None  # with the converged gradient, of the parameter that has the smallest; None where there is none
    parameter: str  # which one that is
    cosines: dict[str, float | None]  # of every parameter; None where its gradient vanishes
    trouble: str = ""  # why there is no converged gradient
    epoch: int = 0  # after which it was; 0 where nobody knows

    @property
    def contraction(self) -> float | None:
        """Of the slowest block; None where one is not certified."""
        found = [block.contraction for block in self.blocks]
        return None if None in found else max(c for c in found if c is not None)

    @property
    def rest(self) -> float:
        """What any unit of any block still moves by where tests end."""
        return max(block.rest for block in self.blocks)


def check_run(run: Run, root: Path | None = None) -> FinalCheck:
    """Measure how a run stands at the end, and write that into its folder."""
    found = measure_run(run, root)
    write_json(run.final_file, asdict(found))
    return found


def measure_run(run: Run, root: Path | None = None) -> FinalCheck:
    """Sweeps are chosen as training chooses them; the gradient is held against the converged one in double precision.

    Args:
        root: where the data lies now, if not where it was.
    """
    settings = run.settings()
    dataset = load_for(settings.data, root, run.description())
    model = load_relaxing(run, dataset.description)
    epoch = len(run.metrics())
    x, y = dataset.few(CALIBRATED + SAMPLES)
    chosen = torch.arange(len(y)) % (1 + SAMPLES // CALIBRATED) == 0
    with usable(run):
        with torch.no_grad():
            model(x[~chosen])
        rests = _residuals(model)
        model.train()
        if settings.calibrates:
            calibrate(model, x[chosen], y[chosen], settings.gradient.quality).apply(model)
        model = quiet_copy(model)
        found = gradients(model, x[~chosen], y[~chosen])
        blocks = [
            BlockAtRest(
                block.label,
                None if block.limit is None or block.limit.certificate is None else block.limit.certificate.contraction,
                block.relax.steps,
                None if block.estimator.relax is None else block.estimator.relax.steps,
                residual,
                rest,
            )
            for (_, block), residual, rest in zip(model.chain, _residuals(model), rests, strict=True)
        ]
        try:
            truth = converged_gradients(model, x[~chosen], y[~chosen])
        except (UnsettledError, DivergenceError) as error:
            return FinalCheck(len(y[~chosen]), blocks, None, "", {}, str(error), epoch)
    cosine, parameter = smallest_cosine(found, truth, 16 * torch.finfo(torch.float32).eps)
    similar = {name: value if math.isfinite(value) else None for name, value in cosines(found, truth).items()}
    return FinalCheck(len(y[~chosen]), blocks, cosine, parameter, similar, "", epoch)


def final_check_of(run: Run) -> FinalCheck | None:
    """What `check_run` wrote of the run as it is now, if it did."""
    try:
        found = TypeAdapter(FinalCheck).validate_python(json.loads(read_regular(run.final_file, LARGEST)))
        _check(found)
        return found if found.epoch == len(run.metrics()) else None
    except FileNotFoundError:
        return None
    except ValidationError as error:
        first = error.errors()[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except (OSError, ValueError, RecursionError) as error:
        reason = str(error)
    raise UserError(
        f"{run.final_file} cannot be read: {brief_name(reason, 200)}. `ffebm check` measures it again, or remove it."
    )


def _check(found: FinalCheck) -> None:
    """Refuse what no run comes to: files are edited, and bits flip."""
    if not 0 < len(found.blocks) <= MOST_BLOCKS:
        raise ValueError(f"it has {len(found.blocks):,} blocks")
    known = [found.cosine, *found.cosines.values()]
    if not all(cosine is None or abs(cosine) <= 1 + ROUNDING for cosine in known):
        raise ValueError("a cosine is none")
    amounts = [each for block in found.blocks for each in (block.contraction, block.residual, block.rest)]
    if not all(amount is None or 0 <= amount < math.inf for amount in amounts):
        raise ValueError("what a block still moves by, or contracts by, cannot be")
    words = [found.parameter, found.trouble, *(block.name for block in found.blocks)]
    if not all(len(word) <= LONGEST and word.isprintable() for word in words):
        raise ValueError("a name in it is none")


def _residuals(model: FFEBM) -> list[float]:
    """Of every block, the largest of the samples."""
    return [float("nan") if block.residual is None else block.residual.max().item() for _, block in model.chain]
