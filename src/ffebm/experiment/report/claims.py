"""What a table of the paper is to show, held against the runs that there are."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ffebm.experiment.errors import UserError
from ffebm.experiment.final_check import FinalCheck, final_check_of
from ffebm.experiment.report.document import Table
from ffebm.experiment.report.outcome import GRADIENTS, Comparison, with_error
from ffebm.experiment.reproduction.table_cell import TableCell
from ffebm.experiment.settings import Settings

__all__ = ["AtLeast", "Claim", "Close", "Settled", "SplitsAlike", "TrueGradients", "Verdict", "claims_of", "verdict_table"]
__dir__ = __all__.copy

CLOSE, CLOSE_BY_ONE, ALIKE = 0.5, 1.0, 1.5  # points: over several seeds; by one seed, or to backprop; splits of the same layers
SEVERAL = 3  # seeds
TRUE = 0.999  # the smallest cosine with the converged gradient
STILL = 3e-3  # what a unit may move by where there is no tolerance to end at
HOLDS, FAILS, OPEN = "holds", "does not hold", "not yet run"

Rows = Mapping[str, Comparison]  # by the names of rows


@dataclass(frozen=True)
class Verdict:
    """What came of a claim."""

    claim: str
    verdict: str  # holds, does not hold, or not yet run
    found: str  # by which numbers, as far as there are any


class Claim(Protocol):
    """Something that runs show, or do not."""

    def judge(self, rows: Rows) -> Verdict:
        """By the runs that are finished."""
        ...


@dataclass(frozen=True)
class Close:
    """EP is as good as another gradient, seed by seed."""

    row: str
    other: str
    points: float
    seeds: int

    def judge(self, rows: Rows) -> Verdict:
        over = f", mean of {self.seeds} seeds" if self.seeds > 1 else ""
        claim = f"EP within {self.points:g} of {GRADIENTS[self.other]}: {self.row}{over}"
        gaps = rows[self.row].gaps(self.other) if self.row in rows else []
        found = with_error(gaps, signed=True)
        if len(gaps) < self.seeds:
            return Verdict(claim, OPEN, f"{found} ({len(gaps)} of {self.seeds} seeds)" if gaps else "")
        return Verdict(claim, _verdict(abs(statistics.fmean(gaps)) <= self.points), found)


@dataclass(frozen=True)
class SplitsAlike:
    """The same layers in blocks of different sizes learn as much, by EP."""

    rows: tuple[str, ...]
    points: float

    def judge(self, rows: Rows) -> Verdict:
        claim = f"splits within {self.points:g} of each other, by EP: {', '.join(self.rows)}"
        means = [statistics.fmean(values) for row in self.rows if row in rows and (values := rows[row].values("ep"))]
        if not means:
            return Verdict(claim, OPEN, "")
        apart = max(means) - min(means)
        found = f"{apart:.2f} apart"
        if len(means) < len(self.rows) and apart <= self.points:  # once they are too far apart, more rows mend nothing
            return Verdict(claim, OPEN, f"{found} ({len(means)} of {len(self.rows)} rows)")
        return Verdict(claim, _verdict(apart <= self.points), found)


@dataclass(frozen=True)
class AtLeast:
    """EP comes to an accuracy."""

    row: str
    accuracy: float  # in per cent

    def judge(self, rows: Rows) -> Verdict:
        claim = f"EP comes to {self.accuracy:g} %: {self.row}"
        values = rows[self.row].values("ep") if self.row in rows else []
        if not values:
            return Verdict(claim, OPEN, "")
        return Verdict(claim, _verdict(statistics.fmean(values) >= self.accuracy), f"{with_error(values)} ({len(values)})")


@dataclass(frozen=True)
class Settled:
    """Blocks settle to the end of training."""

    runs: int  # how many there are to be, whose blocks relax

    def judge(self, rows: Rows) -> Verdict:
        claim = "blocks settle to the end: certified, and at rest where tests end, in every run"
        checks = _checks(rows)
        if not checks:
            return Verdict(claim, OPEN, "")
        slowest = [check.contraction for _, check in checks]
        sure = all(contraction is not None and contraction < 1 for contraction in slowest)
        rest = all(check.rest <= (settings.relaxation.tolerance or STILL) for settings, check in checks)
        known = [contraction for contraction in slowest if contraction is not None]
        found = f"slowest block {max(known):.3f}" if sure else "not all blocks are certified"
        found += f", largest residual {max(check.rest for _, check in checks):.1e}"
        return _of_all(claim, sure and rest, found, len(checks), self.runs)


@dataclass(frozen=True)
class TrueGradients:
    """The gradient at the end of training is that of settled phases."""

    runs: int

    def judge(self, rows: Rows) -> Verdict:
        claim = f"cosines with the converged gradient of at least {TRUE} on the final weights, of every parameter in every run"
        checks = _checks(rows)
        if not checks:
            return Verdict(claim, OPEN, "")
        cosines = [(check.cosine if check.cosine is not None else 0.0, check.parameter) for _, check in checks]
        worst, parameter = min(cosines)
        found = f"smallest {worst:.5f} ({parameter})" if parameter else f"smallest {worst:.5f}"
        return _of_all(claim, worst >= TRUE, found, len(checks), self.runs)


def claims_of(cells: Sequence[TableCell], goals: Mapping[str, float], checked: bool) -> list[Claim]:
    """What runs like these are to show.

    Args:
        goals: accuracies that EP is to come to, in per cent, by row.
        checked: whether it is measured how blocks and gradients stand at the end.
    """
    seeds = Counter((cell.row_name, cell.kind) for cell in cells)
    by_row = {cell.row_name: cell for cell in cells}
    claims: list[Claim] = []
    for other in ("id", "bp"):
        for row in by_row:
            pairs = min(seeds[row, "ep"], seeds[row, other])
            if pairs:
                several = pairs >= SEVERAL and other == "id"
                claims.append(Close(row, other, CLOSE if several else CLOSE_BY_ONE, pairs))
    groups: dict[tuple[object, ...], list[str]] = {}
    for row, cell in by_row.items():
        model = cell.settings.model
        if seeds[row, "ep"]:
            groups.setdefault((cell.settings.data.name, model.layers, model.width), []).append(row)
    claims += [SplitsAlike(tuple(rows), ALIKE) for rows in groups.values() if len(rows) > 1]
    claims += [AtLeast(row, accuracy) for row, accuracy in goals.items()]
    relaxing = sum(cell.settings.relaxes for cell in cells)
    return [*claims, *([Settled(relaxing), TrueGradients(relaxing)] if checked else [])]


def verdict_table(verdicts: Sequence[Verdict]) -> Table:
    lines = [(each.claim, each.verdict, each.found) for each in verdicts]
    return Table("What was to be shown, in points of top-1 accuracy", ("claim", "verdict", "found"), lines)


def _verdict(holds: bool) -> str:
    return HOLDS if holds else FAILS


def _of_all(claim: str, holds: bool, found: str, seen: int, wanted: int) -> Verdict:
    """What fails in one run fails; what holds in some may yet fail in another."""
    return Verdict(claim, OPEN if holds and seen < wanted else _verdict(holds), f"{found} ({seen} of {wanted} runs)")


def _checks(rows: Rows) -> list[tuple[Settings, FinalCheck]]:
    """Of all runs that were measured, with what each was asked for."""
    found: list[tuple[Settings, FinalCheck]] = []
    for run in (run for row in rows.values() for run in row.runs):
        try:
            check = final_check_of(run)
        except UserError:  # which the report says elsewhere
            check = None
        if check is not None and check.epoch == run.settings().trainer.epochs:
            found.append((run.settings(), check))
    return found
