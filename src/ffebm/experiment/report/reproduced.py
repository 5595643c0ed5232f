"""The report of a table of the paper: what was run, beside what was printed, and whether the paper's claims hold."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from ffebm.experiment.report.markdown import markdown
from ffebm.experiment.report.microscope import look_if_possible
from ffebm.experiment.report.outcome import Comparison, comparisons_of, with_error
from ffebm.experiment.report.writing import write_report
from ffebm.experiment.reproduction.cell import Cell, Stage
from ffebm.experiment.reproduction.experiments import SCALES, Experiment
from ffebm.experiment.reproduction.static import read_analyses

__all__ = ["claims", "report_experiment"]
__dir__ = __all__.copy

AGREE, ALIKE = 1.0, 1.5  # points that EP may be from ID or from plain backprop, and blocks of different sizes from each other


def report_experiment(
    experiment: Experiment,
    scale: str,
    cells: Sequence[Cell],
    folder: Path,
    *,
    overrides: Sequence[str] = (),
    data: Path | None = None,
    failures: Mapping[str, str] | None = None,
    look_closer: bool = True,
    notes: Console | None = None,
) -> str:
    """Write the report of all runs of a table that there are, finished or not; returns its results as Markdown.

    Args:
        cells: the runs that were asked for; whatever else lies in the folder is reported, too.
        overrides: settings that they have besides the scale's own.
        look_closer: put a finished run under the microscope, which takes a while.
    """
    begun = experiment.present(scale, folder, overrides)
    cells = [*begun, *(cell for cell in cells if cell not in begun)]
    runs = [cell.run(folder) for cell in begun]
    finished = [cell.run(folder) for cell in begun if cell.progress(folder).stage is Stage.FINISHED]
    rows = comparisons_of(runs)
    besides = f" Besides: {', '.join(overrides)}." if overrides else ""
    words = [f"Scale {scale}: {SCALES[scale].words}.{besides} {len(finished)} of {len(cells)} runs are finished."]
    if scale == "tiny":
        words.append("Images are generated, in the official layouts: these numbers say that the path works, and no more.")
    else:
        words += [*filter(None, [SCALES[scale].chosen]), *claims(experiment, rows)]
    # One look, at the last of the rows by EP, which has the most blocks.
    trained = [run for run in finished if run.settings().gradient.kind == "ep" and run.weights_file.is_file()]
    seen, trouble = look_if_possible(trained[-1:] if look_closer else [], images=1000, data=data, console=notes)
    # Analyses lie among the runs, or beside their folder, where `ffebm reproduce static` puts them.
    analyses, unread = read_analyses(sorted([*folder.glob("*/static.json"), *folder.parent.glob("static*/static.json")]))
    document = write_report(
        folder,
        experiment.title,
        runs=runs,
        words=[*words, *trouble, *unread],
        published=experiment.published,
        static=analyses,
        microscopes=seen,
        failures=failures,
    )
    return markdown(replace(document, sections=document.sections[:1]))


def claims(experiment: Experiment, rows: Sequence[Comparison]) -> list[str]:
    """What the paper claims, held against the runs."""
    said: list[str] = []
    for other, name in (("id", "ID"), ("bp", "plain backprop")):
        gaps = {row.label: row.gaps(other) for row in rows if row.gaps(other)}
        if gaps:
            worst = max(gaps, key=lambda label: abs(statistics.fmean(gaps[label])))
            verdict = "holds" if abs(statistics.fmean(gaps[worst])) <= AGREE else "does not hold"
            widest = f"the widest gap is {with_error(gaps[worst])} ({worst})"
            said.append(f"EP within {AGREE:g} point of {name} in every row: {verdict}; {widest}.")
        every = [gap for found in gaps.values() for gap in found]
        if len(every) > 1:
            said.append(
                f"Over all {len(every)} pairs of runs, EP − {name} is {with_error(every)} (the mean and its standard error); "
                f"one pair varies by {statistics.stdev(every):.2f} (the standard deviation)."
            )
    if experiment.name == "split":
        for layers in sorted({row.settings.model.layers for row in rows}):
            found = [row.values("ep") for row in rows if row.settings.model.layers == layers]
            values = [statistics.fmean(seeds) for seeds in found if seeds]
            if len(values) > 1:
                width = max(values) - min(values)
                verdict = "holds" if width <= ALIKE else "does not hold"
                said.append(f"{layers} layers, EP, block sizes within {ALIKE:g} points of each other: {verdict}; {width:.2f}.")
    return said
