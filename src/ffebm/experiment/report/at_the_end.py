"""What a report says of how blocks and gradients stand on the final weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ffebm.experiment.errors import UserError
from ffebm.experiment.final_check import SAMPLES, BlockAtRest, FinalCheck, final_check_of
from ffebm.experiment.report.document import Part, Table, Text
from ffebm.experiment.run import Run

__all__ = ["final_checks", "final_numbers"]
__dir__ = __all__.copy

HEADER = (
    "run",
    "certified contraction, by block",
    "free and nudged sweeps",
    "largest residual, by block",
    "where tests end",
    "smallest cosine",
)


def final_checks(runs: Sequence[Run]) -> list[Part]:
    """A row for every run that was measured; nothing where none was."""
    found, damaged = _read(runs)
    lines = [(name, *_cells(check)) for name, check in found.items()]
    trouble: list[Part] = [*map(Text, damaged)]
    if not lines:
        return trouble
    words = (
        f"By `ffebm check`, on {SAMPLES} training images: sweeps are chosen as training would choose them for the next step. A "
        "residual is the largest change of any unit of any image in the last free sweep. Cosines are with the fully converged "
        "gradient in double precision, and the smallest of all parameters is shown."
    )
    return [Text(words), Table("On the final weights", HEADER, lines), *trouble]


def final_numbers(runs: Sequence[Run]) -> dict[str, Any]:
    """The same, by the names of runs."""
    return {name: asdict(check) for name, check in _read(runs)[0].items()}


def _read(runs: Sequence[Run]) -> tuple[dict[str, FinalCheck], list[str]]:
    """Those that can be read, and a sentence on each that cannot."""
    found: dict[str, FinalCheck] = {}
    damaged: list[str] = []
    for run in runs:
        try:
            check = final_check_of(run)
        except UserError as error:
            damaged.append(str(error))
            continue
        if check is not None:
            found[run.folder.name] = check
    return found, damaged


def _cells(found: FinalCheck) -> tuple[str, ...]:
    blocks = found.blocks
    return (
        ", ".join("?" if block.contraction is None else f"{block.contraction:.2f}" for block in blocks),
        ", ".join(map(_sweeps, blocks)),
        ", ".join(f"{block.residual:.0e}" for block in blocks),
        ", ".join(f"{block.rest:.0e}" for block in blocks),
        found.trouble if found.cosine is None else f"{found.cosine:.5f} ({found.parameter})",
    )


def _sweeps(block: BlockAtRest) -> str:
    return f"{block.free_sweeps}" if block.nudged_sweeps is None else f"{block.free_sweeps} + {block.nudged_sweeps}"
