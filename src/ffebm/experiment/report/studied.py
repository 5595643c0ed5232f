"""The report of a study: the answer, every level, and the front of accuracy against energy."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ffebm.experiment.figures import picture
from ffebm.experiment.files import write_atomically
from ffebm.experiment.report.document import Chart, Curve, Document, Part, Section, Table, Text
from ffebm.experiment.report.markdown import markdown
from ffebm.experiment.report.outcome import comparisons_of, with_error
from ffebm.experiment.report.study_figure import study_figure
from ffebm.experiment.report.writing import curves, made, origin, save_document
from ffebm.experiment.studies.findings import Findings, Point, standard_error
from ffebm.hardware.cost import Technology
from ffebm.hardware.cost.quantity import in_units, suited

__all__ = ["report_study"]
__dir__ = __all__.copy


def report_study(
    findings: Findings, folder: Path, technology: Technology, asked: int, failures: Mapping[str, str] | None = None
) -> str:
    """Write the report of a study, finished or not; returns its answer and its table as Markdown.

    Args:
        asked: how many runs there are to be.
        failures: runs that failed, and what they said.
    """
    document = _document(findings, technology, asked, failures or {})
    save_document(document, folder)
    if any(point.outcomes for point in findings.points):
        figure = study_figure(findings)
        for kind in ("png", "svg"):
            write_atomically(folder / f"study.{kind}", picture(figure, kind))
    answer = document.sections[0]
    return markdown(Document(document.title, [answer], {}))


def _document(findings: Findings, technology: Technology, asked: int, failures: Mapping[str, str]) -> Document:
    study = findings.study
    runs = [outcome.run for point in findings.points for outcome in point.outcomes]
    opening: list[Part] = [Text(study.question)] if study.question else []
    answer = findings.answer()
    opening += map(Text, answer)
    opening.append(Text(_how(findings, len(runs), asked)))
    opening += [Text(f"Failed: {name}: {said}") for name, said in failures.items()]
    if findings.unpriced:
        opening.append(Text(f"There is no energy beside some accuracies: {findings.unpriced}"))
    sections = [Section("Answer", [*opening, _table(findings)])]
    if runs:
        sections.append(Section("Accuracy, gradient and energy", _charts(findings)))
        sections.append(Section("Learning curves", curves(comparisons_of(runs))))
    about = Text(f"Energies by `ffebm cost`: {technology.description}; every constant with its source is in report.json.")
    sections.append(Section("How this was made", [about, *origin(runs, ())]))
    numbers: dict[str, Any] = {
        "title": study.title,
        "made": made(),
        "answer": answer,
        "points": [_numbers(point, point in findings.front()) for point in findings.points],
        "failures": dict(failures),
        "technology": {
            "description": technology.description,
            "node_nm": technology.node,
            "design": asdict(technology.design),
            "constants": {
                name: {"value": each.quantity.to(each.unit), "unit": each.unit, "node_nm": each.node, "source": each.source}
                for name, each in technology.constants.items()
            },
        },
    }
    return Document(study.title, sections, numbers)


def _how(findings: Findings, finished: int, asked: int) -> str:
    study = findings.study
    axes = " × ".join(f"{axis.label} ({', '.join(level.name for level in axis.levels)})" for axis in study.axes)
    return (
        f"Varied: {axes}; {study.preset}{', ' if study.changes else ''}{', '.join(study.changes)}. {finished} of {asked} runs "
        "are finished. Accuracies are of test images after the last epoch, with the standard error of their mean over seeds. "
        "What a level loses is taken seed by seed, with its own. Cosines are those with the ideal gradient: of the worst block "
        "on hardware, when it was last metered, or else of the first gradient's worst parameter. Energies are estimates, for "
        "one sample."
    )


def _table(findings: Findings) -> Table:
    front = findings.front()
    axes = findings.study.axes
    header = [axis.label for axis in axes]
    header += ["test accuracy, %", "smallest cosine", "training step", "inference", "on the front"]
    rows = [
        (
            *(level.name for level in point.levels),
            with_error([outcome.accuracy for outcome in point.outcomes]),
            with_error(point.cosines),
            _amount(point.energy),
            _amount(point.inference),
            "yes" if point in front else "",
        )
        for point in findings.points
    ]
    return Table("Every level: mean over seeds, and energy for a sample", tuple(header), rows)


def _charts(findings: Findings) -> list[Part]:
    first = findings.study.axes[0]
    accuracy = Chart("Test accuracy: mean over seeds, and its standard error", first.label, "%", [], steps=True)
    cosine = Chart("Smallest cosine with the ideal gradient", first.label, "cosine", [], steps=True)
    size, unit = suited(max((p.energy for p in findings.points if math.isfinite(p.energy)), default=1.0), "J")
    energy = Chart("Energy of a training step, for a sample", first.label, unit, [], steps=True)
    against = Chart("Accuracy against energy of a training step; the line is the front", unit, "%", [])
    for number, (level, points) in enumerate(findings.lines()):
        name = first.label if level is None else level.name
        done = [point for point in points if point.outcomes]
        accuracy.curves.append(_curve(name, done, [p.accuracy for p in done], number, [p.accuracy_error for p in done]))
        measured = [point for point in done if point.cosines]
        errors = [standard_error(p.cosines) for p in measured]
        cosine.curves.append(_curve(name, measured, [statistics.fmean(p.cosines) for p in measured], number, errors))
        priced = [point for point in done if math.isfinite(point.energy)]
        energy.curves.append(_curve(name, priced, [p.energy / size for p in priced], number))
        against.curves.append(
            Curve(
                name,
                [p.energy / size for p in priced],
                [p.accuracy for p in priced],
                number,
                errors=[p.accuracy_error for p in priced],
                notes=[_note(p) for p in priced],
                points=True,
            )
        )
    front = findings.front()
    if front:
        notes = [_note(point) for point in front]
        energies, accuracies = [point.energy / size for point in front], [point.accuracy for point in front]
        against.curves.append(Curve("front", energies, accuracies, len(against.curves), dashed=True, notes=notes))
    return [chart for chart in (accuracy, cosine, energy, against) if any(len(curve.x) for curve in chart.curves)]


def _curve(name: str, points: Sequence[Point], values: Sequence[float], colour: int, errors: Sequence[float] = ()) -> Curve:
    names = [point.levels[0].name for point in points]
    return Curve(name, names, values, colour, errors=errors, notes=[_note(point) for point in points])


def _note(point: Point) -> str:
    """All that is known of a point, with the settings that make it."""
    lines = [f"{change}" for level in point.levels for change in level.changes]
    accuracies = [outcome.accuracy for outcome in point.outcomes]
    lines += [f"test accuracy {with_error(accuracies)} %, {len(accuracies)} seed{'s' if len(accuracies) > 1 else ''}"]
    if point.cosines:
        lines.append(f"smallest cosine {with_error(point.cosines)}")
    if math.isfinite(point.energy):
        lines.append(f"training step {_amount(point.energy)}, inference {_amount(point.inference)} a sample")
    return "\n".join(lines)


def _numbers(point: Point, on_front: bool) -> dict[str, Any]:
    return {
        "levels": [level.name for level in point.levels],
        "settings": [change for level in point.levels for change in level.changes],
        "seeds": [outcome.seed for outcome in point.outcomes],
        "accuracies": [outcome.accuracy for outcome in point.outcomes],
        "cosines": [outcome.cosine for outcome in point.outcomes],
        "training_energies": [outcome.energy for outcome in point.outcomes],
        "inference_energies": [outcome.inference for outcome in point.outcomes],
        "training_seconds": [outcome.seconds for outcome in point.outcomes],
        "on_front": on_front,
    }


def _amount(joules: float) -> str:
    return in_units(joules, "J") if math.isfinite(joules) else "–"
