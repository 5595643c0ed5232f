"""The report of a table of the paper: what was run, beside what was printed, and whether the paper's claims hold."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from ffebm.experiment.preset import read_preset
from ffebm.experiment.queue import Stage
from ffebm.experiment.report.claims import Verdict, claims_of, verdict_table
from ffebm.experiment.report.document import Part, Table
from ffebm.experiment.report.markdown import markdown
from ffebm.experiment.report.microscope import look_if_possible
from ffebm.experiment.report.outcome import Comparison, comparisons_of, with_error
from ffebm.experiment.report.writing import write_report
from ffebm.experiment.reproduction.experiments import SCALES, Experiment
from ffebm.experiment.reproduction.recipe import read_recipe
from ffebm.experiment.reproduction.static import read_analyses
from ffebm.experiment.reproduction.table_cell import TableCell
from ffebm.experiment.settings import Settings

__all__ = ["recipe_table", "report_experiment"]
__dir__ = __all__.copy

APART = {
    "description": True,
    "seed": True,
    "paper": True,
    "parts": True,
    "data": {"name", "root", "workers"},
    "model": {"channels", "dense", "split", "pooled", "clamped_outputs", "clamped"},
    "gradient": {"kind"},
    "trainer": {"threads", "devices", "nodes", "accelerator", "test_batch", "checkpoint_every", "keep"},
}


def report_experiment(
    experiment: Experiment,
    scale: str,
    cells: Sequence[TableCell],
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
    chosen = SCALES[scale]
    listed = experiment.cells(scale, overrides=overrides) if experiment.name in chosen.runs else []
    cells = list(dict.fromkeys([*listed, *begun, *cells]))
    runs = [cell.run(folder) for cell in begun]
    finished = [cell.run(folder) for cell in begun if cell.progress(folder).stage is Stage.FINISHED]
    rows = comparisons_of([run for run in runs if not run.damage()])
    besides = f" Besides: {', '.join(overrides)}." if overrides else ""
    words = [f"Scale {scale}: {chosen.words}.{besides} {len(finished)} of {len(cells)} runs are finished."]
    parts: list[Part] = []
    verdicts: list[Verdict] = []
    if scale == "tiny":
        words.append("Images are generated, in the official layouts: these numbers say that the path works, and no more.")
    else:
        words += [*filter(None, [chosen.chosen]), *_over_all(rows)]
        names = {cell.name: cell.row_name for cell in cells}
        by_row = {names[row.runs[0].folder.name]: row for row in rows}
        verdicts = [claim.judge(by_row) for claim in claims_of(cells, chosen.goals.get(experiment.name, {}), chosen.checked)]
        parts = [verdict_table(verdicts), *([recipe_table(cells)] if chosen.runs else [])]
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
        parts=parts,
        numbers={"claims": [asdict(verdict) for verdict in verdicts]},
        planned=Counter(f"{cell.row_name}-{cell.kind}" for cell in cells),
        published=experiment.published,
        static=analyses,
        microscopes=seen,
        failures=failures,
    )
    return markdown(replace(document, sections=document.sections[:1]))


def recipe_table(cells: Sequence[TableCell]) -> Table:
    """Every setting in which these runs differ from the paper's, beside the paper's; what is not one value lists them all."""
    here: dict[str, dict[str, None]] = {}
    paper: dict[str, dict[str, None]] = {}
    for cell in cells:
        own, printed = (
            _flat(settings) for settings in (cell.settings, read_preset(cell.preset, read_recipe("paper", cell.preset)))
        )
        for key, value in own.items():
            here.setdefault(key, {})[value] = None
            paper.setdefault(key, {})[printed[key]] = None
    differing = [key for key in here if here[key].keys() != paper[key].keys()]
    lines = [(key, ", ".join(here[key]), ", ".join(paper[key])) for key in differing]
    return Table("The recipe of all rows, where it is not the paper's", ("setting", "here", "paper"), lines)


def _flat(settings: Settings) -> dict[str, str]:
    """Settings as text, but for those that make the rows and columns of a table, or say where a run happens."""
    tables = settings.recipe.model_dump(mode="json", exclude=APART)
    return {
        f"{section}.{key}" if isinstance(table, dict) else section: _worded(value)
        for section, table in tables.items()
        for key, value in (table.items() if isinstance(table, dict) else [(section, table)])
    }


def _worded(value: object) -> str:
    """As people type it."""
    return "none" if value is None else str(value).lower()


def _over_all(rows: Sequence[Comparison]) -> list[str]:
    """How far the gradients are apart over all rows."""
    said: list[str] = []
    for other, name in (("id", "ID"), ("bp", "plain backprop")):
        every = [gap for row in rows for gap in row.gaps(other)]
        if len(every) > 1:
            said.append(
                f"Over all {len(every)} pairs of runs, EP − {name} is {with_error(every, signed=True)} points (the mean and "
                f"its standard error); one pair varies by {statistics.stdev(every):.2f} (the standard deviation)."
            )
    return said
