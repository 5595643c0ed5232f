"""What a run's fidelity meter measured: a file with a row for every block and look."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import NamedTuple

from ffebm.checks import brief
from ffebm.experiment.errors import RunError
from ffebm.experiment.files import read_regular, write_atomically
from ffebm.hardware import BlockFidelity

__all__ = ["Entry", "FidelityLog"]
__dir__ = __all__.copy

LARGEST = 1 << 22  # bytes of the file: a hundred blocks at three hundred looks are less
COLUMNS = ("step", *(field.name for field in fields(BlockFidelity)))


class Entry(NamedTuple):
    """One block at one look."""

    step: int
    fidelity: BlockFidelity


class FidelityLog:
    """The file `fidelity.csv` of a run folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "fidelity.csv"

    def entries(self) -> list[Entry]:
        """Everything in it, oldest first; nothing, where there is no such file."""
        try:
            lines = io.StringIO(read_regular(self.path, LARGEST).decode("utf-8"), newline="")
            return [_entry(row) for row in csv.DictReader(lines, strict=True)]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError, KeyError, csv.Error) as error:
            raise RunError(f"{self.path} is damaged: {error}. Move it away; the run goes on without it.") from None

    def add(self, step: int, found: Sequence[BlockFidelity]) -> None:
        """One more look, in place of those that a resumed run had made later."""
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        kept = [entry for entry in self.entries() if entry.step < step]
        for entry in [*kept, *(Entry(step, fidelity) for fidelity in found)]:
            values = asdict(entry.fidelity)
            shown = {name: value if name == "block" else f"{value:.6g}" for name, value in values.items()}
            writer.writerow({"step": entry.step, **shown})
        write_atomically(self.path, text.getvalue().encode())


def _entry(row: dict[str, str]) -> Entry:
    step, block = int(row["step"]), row["block"]
    numbers = {name: float(row[name]) for name in COLUMNS if name not in ("step", "block")}
    if len(row) != len(COLUMNS) or not 0 <= step < 2**31 or not block.isprintable() or len(block) > 200:
        raise ValueError("a row is not that of a block")
    parts = [numbers[name] for name in ("cosine", "handed_cosine", "saturated", "unmoved")]
    if not all(math.isnan(part) or abs(part) <= 1 + 1e-6 for part in parts):
        raise ValueError(f"cosines or shares of {brief(block)} at step {step} cannot be")
    return Entry(step, BlockFidelity(block, **numbers))
