"""Reports of runs: tables beside the paper's, curves, static figures, the microscope; as a page, Markdown and JSON."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tomli_w

from ffebm.experiment.figures import picture
from ffebm.experiment.files import write_atomically, write_json
from ffebm.experiment.report.accuracy_figure import accuracy_figure
from ffebm.experiment.report.at_the_end import final_checks, final_numbers
from ffebm.experiment.report.document import Chart, Curve, Document, Listing, Part, Picture, Section, Table, Text
from ffebm.experiment.report.epochs_figure import epochs_figure, most_compared
from ffebm.experiment.report.markdown import markdown
from ffebm.experiment.report.microscope import Microscope
from ffebm.experiment.report.one_run import one_run
from ffebm.experiment.report.outcome import GRADIENTS, Comparison, comparisons_of, tables
from ffebm.experiment.report.page import page
from ffebm.experiment.reproduction.published import Published
from ffebm.experiment.reproduction.static import Static
from ffebm.experiment.reproduction.static_figures import bars_figure, transients_figure
from ffebm.experiment.run import Run, RunError, remake_command

__all__ = ["compose", "curves", "made", "origin", "save_document", "write_report"]
__dir__ = __all__.copy


def write_report(
    folder: Path,
    title: str,
    *,
    runs: Sequence[Run] = (),
    words: Sequence[str] = (),
    parts: Sequence[Part] = (),
    planned: Mapping[str, int] = MappingProxyType({}),
    published: Sequence[Published] = (),
    static: Sequence[Static] = (),
    microscopes: Sequence[Microscope] = (),
    failures: Mapping[str, str] | None = None,
    numbers: Mapping[str, Any] = MappingProxyType({}),
) -> Document:
    """Write report.html, report.md and report.json into a folder, and figures of several finished runs.

    Args:
        words: paragraphs to begin with.
        parts: what follows them.
        planned: how many seeds there are to be, by the names of runs without their seed.
        published: results of others, for the last rows of the tables.
        failures: runs that failed, and what they said.
        numbers: what report.json holds besides its own.
    """
    found = [(run, run.damage()) for run in runs]
    damaged = {str(run.folder): damage for run, damage in found if damage}
    runs = [run for run, damage in found if not damage]  # the rest is shown all the same
    opening = [*map(Text, words), *parts]
    document = compose(title, runs, opening, published, static, microscopes, {**(failures or {}), **damaged}, planned)
    save_document(replace(document, numbers={**document.numbers, **numbers}), folder)
    rows = comparisons_of(runs)
    if _finished(rows) and len(runs) > 1:
        figures = {"accuracy": accuracy_figure(rows)}
        if (row := most_compared(rows)) is not None:
            figures["epochs"] = epochs_figure(row)
        for name, figure in figures.items():
            for kind in ("png", "svg"):
                write_atomically(folder / f"{name}.{kind}", picture(figure, kind))
    return document


def save_document(document: Document, folder: Path) -> None:
    """report.html, report.md and report.json."""
    # A folder's name may hold bytes that are no UTF-8: Python replaces them by characters that UTF-8 lacks.
    write_atomically(folder / "report.md", markdown(document).encode("utf-8", "replace"))
    write_json(folder / "report.json", document.numbers)
    write_atomically(folder / "report.html", page(document).encode("utf-8", "replace"))


def compose(
    title: str,
    runs: Sequence[Run],
    opening: Sequence[Part],
    published: Sequence[Published],
    static: Sequence[Static],
    microscopes: Sequence[Microscope],
    failures: Mapping[str, str],
    planned: Mapping[str, int] = MappingProxyType({}),
) -> Document:
    rows = comparisons_of(runs)
    sections: list[Section] = []
    alone = len(runs) == 1 and not published and rows[0].settings.paper is None
    opening = list(opening)
    if alone:
        opening += one_run(runs[0])
    elif rows:
        opening += tables(rows, published, planned)
    if not alone and (row := most_compared(rows)) is not None:
        words = "Accuracy by epoch: the mean over seeds, and the range of them; the last epoch counts"
        opening.append(Picture(words, picture(epochs_figure(row))))
    if _finished(rows) and not alone:
        opening.append(Picture("Top-1 accuracy: the mean over seeds, and each of them", picture(accuracy_figure(rows))))
    opening += map(Text, _missing(rows, failures))
    if opening:
        sections.append(Section("Results", opening))
    if any(run.metrics() for run in runs):
        sections.append(Section("Learning curves", curves(rows)))
    if checked := final_checks(runs):
        sections.append(Section("At the end of training", checked))
    sections += [Section(f"EP against ID: {analysis.title}", _static(analysis)) for analysis in static]
    sections += [Section(f"Energy microscope: {seen.run}", _microscope(seen)) for seen in microscopes]
    sections.append(Section("How this was made", origin(runs, static)))
    numbers: dict[str, Any] = {
        "title": title,
        "made": made(),
        "rows": [_numbers(row) for row in rows],
        "failures": dict(failures),
        "final": final_numbers(runs),
        "static": [_static_numbers(analysis) for analysis in static],
        "microscopes": [asdict(microscope) for microscope in microscopes],
    }
    return Document(title, sections, numbers)


def _finished(rows: Sequence[Comparison]) -> bool:
    return any(outcome.top1 for row in rows for outcome in row.outcomes.values())


def _numbers(row: Comparison) -> dict[str, Any]:
    paper = None if row.settings.paper is None else row.settings.paper.model_dump(mode="json")
    return {"net": row.label, "paper": paper, "outcomes": {kind: asdict(outcome) for kind, outcome in row.outcomes.items()}}


def _static_numbers(static: Static) -> dict[str, Any]:
    layers = [{"name": x.name, "block": x.block, "cosine": x.cosine, "deviation": x.deviation} for x in static.layers]
    return {"title": static.title, "samples": static.samples, "beta": static.beta, "sweeps": static.sweeps, "layers": layers}


def _missing(rows: Sequence[Comparison], failures: Mapping[str, str]) -> list[str]:
    texts = [f"Failed: {name}: {said}" for name, said in failures.items()]
    if open_ := [
        name for row in rows for outcome in row.outcomes.values() for name in outcome.unfinished if name not in failures
    ]:
        texts.append(f"Not finished: {', '.join(open_)}.")
    return texts


def curves(compared: Sequence[Comparison]) -> list[Part]:
    """Test accuracy, loss and residual by epoch; a colour for each recipe, dots for all gradients but EP."""
    charts = {
        "test_accuracy": Chart("Test accuracy", "epoch", "%", []),
        "train_loss": Chart("Training loss", "epoch", "loss", []),
    }
    charts["residual"] = Chart("Residual of the worst block: what units still moved by", "epoch", "residual", [], log=True)
    for colour, run, recipe in ((number, run, row.label) for number, row in enumerate(compared) for run in row.runs):
        rows, settings = run.metrics(), run.settings()
        for name, chart in charts.items():
            if name == "residual" and not settings.relaxes:
                continue
            values = [100 * row[name] if name == "test_accuracy" else row[name] for row in rows]
            label = f"{recipe}, {GRADIENTS[settings.gradient.kind]}, seed {settings.seed}"
            epochs = [row["epoch"] for row in rows]
            chart.curves.append(Curve(label, epochs, values, colour, dashed=settings.gradient.kind != "ep"))
    return list(charts.values())


def _static(static: Static) -> list[Part]:
    verdict = (
        f"Smallest cosine {static.worst.cosine:.5f} ({static.worst.name}); largest relative deviation {static.deviation:.2e}, "
        f"at any step of any layer. {static.samples}; β {static.beta}; {static.sweeps} sweeps a block; free phases: "
        f"{static.free}."
    )
    layers = [(x.name, str(x.block), f"{x.cosine:.6f}", f"{x.deviation:.2e}") for x in static.layers]
    return [
        Text(verdict),
        Picture("Gradients through backward time: ID in colour, EP dotted", picture(transients_figure(static))),
        Picture("Cosine between the final gradients of every layer", picture(bars_figure([static]))),
        *(Text(f"{reason}.") for reason in static.explanation()),
        Table("Every layer", ("weights", "block", "cosine", "largest deviation"), layers),
    ]


def _microscope(seen: Microscope) -> list[Part]:
    intro = (
        f"Test image {seen.sample}, {seen.label}, which the net takes for {seen.guess}. Nudges, of β {seen.beta}, begin where "
        f"the free phase has settled, and {'hold' if seen.hold_pooling else 'do not hold'} the positions of max-pooling. "
        f"Saturation and sweeps to settle are counted over {seen.images:,} test images."
    )
    energy = Chart("Free phase: energy above its lowest", "sweep", "energy", [], log=True)
    residual = Chart("Free phase: largest change of any unit", "sweep", "residual", [], log=True)
    nudged = Chart("Nudged phases: energy above that of the free equilibrium", "sweep", "energy", [])
    moved = Chart("Nudged phases: largest change of any unit", "sweep", "residual", [], log=True)
    settled = Chart("Sweeps until nothing moves by more than 0.001", "sweeps", "test images", [], bars=True)
    lines: list[tuple[str, ...]] = []
    for number, block in enumerate(seen.blocks):
        lowest = min(block.free.energy)
        energy.curves.append(_curve(block.name, [e - lowest for e in block.free.energy], number))
        residual.curves.append(_curve(block.name, block.free.residual, number, begin=1))
        for phase, sign in ((block.pushed, "+β"), (block.pulled, "−β")):
            name, dashed = f"{block.name}, {sign}", sign == "−β"
            nudged.curves.append(_curve(name, [e - phase.energy[0] for e in phase.energy], number, dashed=dashed))
            moved.curves.append(_curve(name, phase.residual, number, begin=1, dashed=dashed))
        settled.curves.append(Curve(block.name, list(block.sweeps), list(block.sweeps.values()), number))
        taken = sum(sweeps * count for sweeps, count in block.sweeps.items()) / max(1, sum(block.sweeps.values()))
        saturated = (", ".join(f"{100 * share:.0f}" for share in end) for end in (block.floor, block.ceiling))
        lines.append((block.name, f"{block.contraction:.3f}", f"{taken:.1f}", f"{block.unsettled:,}", *saturated))
    motion = ("contraction a sweep", "sweeps to settle, mean", "not settled")
    header = ("block", *motion, "% of units at 0, by layer", "% at 1, by layer")
    return [Text(intro), Table("Blocks", header, lines), energy, residual, nudged, moved, settled]


def _curve(name: str, values: Sequence[float], colour: int, *, begin: int = 0, dashed: bool = False) -> Curve:
    return Curve(name, list(range(begin, begin + len(values))), values, colour, dashed)


def origin(runs: Sequence[Run], static: Sequence[Static]) -> list[Part]:
    parts: list[Part] = [Text(f"Made by `{_command()}`, {time.strftime('%Y-%m-%d')}.")]
    places: dict[str, None] = {}
    for run in runs:
        try:
            found = [_place({**place, "seed": "of each run"}) for place in run.environments()]
        except RunError as error:
            found = [str(error)]
        places |= dict.fromkeys(found)
    places |= dict.fromkeys(_place(analysis.environment) for analysis in static)
    parts += [Text(place) for place in places]
    if runs:
        parts.append(Listing("Commands that make each run again", "\n".join(remake_command(run) for run in runs)))
    for row in comparisons_of(runs):
        seeds = sorted({seed for outcome in row.outcomes.values() for seed in outcome.seeds})
        title = f"Settings of {row.label}; gradients {', '.join(row.outcomes)}; seeds {', '.join(map(str, seeds))}"
        parts.append(Listing(title, tomli_w.dumps(row.settings.as_toml())))
    return parts


def made() -> dict[str, str]:
    """By which command, and when."""
    return {"command": _command(), "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}


def _place(environment: Mapping[str, Any]) -> str:
    packages = environment.get("packages", {})
    packages = packages if isinstance(packages, dict) else {}
    named = environment.get("devices")
    devices = ", ".join(map(str, named)) if isinstance(named, list) and named else ""
    devices = devices or f"{environment.get('processor')}, {environment.get('cores')} cores"
    commit, changed, _ = str(environment.get("commit") or "").partition("+")
    version = f"ffebm {packages.get('ffebm')}" + (f" at {commit[:10]}" if commit else "") + (", changed" if changed else "")
    return (
        f"{devices}, {environment.get('threads')} threads; seed {environment.get('seed')}; {environment.get('system')}; "
        f"Python {environment.get('python')}, torch {packages.get('torch')}, {version}."
    )


def _command() -> str:
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
