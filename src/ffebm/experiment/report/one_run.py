"""What a report says of a single run that the paper has no result beside."""

from __future__ import annotations

import numpy as np

from ffebm.experiment.clock import clock
from ffebm.experiment.errors import UserError
from ffebm.experiment.evaluation import evaluation_of, out_of_date
from ffebm.experiment.fidelity_log import FidelityLog
from ffebm.experiment.figures import confusion_figure, picture
from ffebm.experiment.forecast import survey
from ffebm.experiment.report.document import Part, Picture, Table, Text
from ffebm.experiment.report.fidelity_figure import fidelity_figure
from ffebm.experiment.run import Run

__all__ = ["one_run"]
__dir__ = __all__.copy


def one_run(run: Run) -> list[Part]:
    """How it went, what it is made of, and what it takes for what, as far as files of the run tell."""
    return [*_outcome(run), *_fidelity(run), *_model(run), *_confusion(run)]


def _outcome(run: Run) -> list[Part]:
    rows = run.metrics()
    if not rows:
        return [Text("No epoch is finished yet.")]
    last, best = rows[-1], max(rows, key=lambda row: row["test_accuracy"])
    epochs = run.settings().trainer.epochs
    lines = [
        ("test accuracy", f"{100 * last['test_accuracy']:.2f} %"),
        ("best of all epochs", f"{100 * best['test_accuracy']:.2f} %, after epoch {best['epoch']:.0f}"),
        ("among the first five", f"{100 * last['test_top5']:.2f} %"),
        ("test loss", f"{last['test_loss']:.4f}"),
        ("training accuracy", f"{100 * last['train_accuracy']:.2f} %"),
        ("training loss", f"{last['train_loss']:.4f}"),
        ("residual of the worst block", f"{last['residual']:.1e}"),
        ("gradient", run.settings().gradient.kind),
        ("epochs", f"{last['epoch']:.0f} of {epochs}"),
        ("training time", clock(last["seconds"])),
    ]
    return [Table("After the last epoch", ("", ""), lines)]


def _fidelity(run: Run) -> list[Part]:
    """Of blocks on hardware to ideal ones, where a meter has looked."""
    try:
        entries = FidelityLog(run.folder).entries()
    except UserError as error:
        return [Text(str(error))]
    if not entries:
        return []
    last = entries[-1].step
    lines = [
        (
            entry.fidelity.block,
            f"{entry.fidelity.cosine:.4f}",
            f"{entry.fidelity.ratio:.3g}",
            f"{entry.fidelity.handed_cosine:.4f}",
            f"{entry.fidelity.handed_ratio:.3g}",
            f"{100 * entry.fidelity.saturated:.1f} %",
            f"{100 * entry.fidelity.unmoved:.1f} %",
        )
        for entry in entries
        if entry.step == last
    ]
    header = ("block", "cosine", "length", "cosine handed back", "length", "at an end of the range", "not moved by a step")
    title = f"Gradients of blocks on hardware beside those of ideal blocks, before step {last + 1}"
    return [Table(title, header, lines), Picture("The same along the run", picture(fidelity_figure(entries)))]


def _model(run: Run) -> list[Part]:
    try:
        data = run.description()
        summary = survey(run.settings(), data.shape, len(data.classes))
    except UserError as error:
        return [Text(str(error))]
    lines = [
        (
            row.part,
            row.kind,
            ", ".join("×".join(map(str, shape)) for shape in row.shapes),
            f"{row.parameters:,}",
            "unknown" if row.macs is None else f"{row.macs:,}",
        )
        for row in summary.rows
    ]
    total = ("all", "", "", f"{summary.parameters:,}", "")
    header = ("part", "kind", "layers", "parameters", "multiply-accumulates, of blocks a sweep's")
    return [Table("The model", header, [*lines, total])]


def _confusion(run: Run) -> list[Part]:
    """From what `ffebm evaluate` found, where it still holds."""
    try:
        found = evaluation_of(run)
        if found is None:
            return [Text("`ffebm evaluate` of this run adds which classes are taken for which.")]
        if reason := out_of_date(run, found):
            return [Text(f"When confusions of classes were last measured, {reason}: `ffebm evaluate` measures them anew.")]
        drawn = picture(confusion_figure(np.array(found.confusion, dtype=np.int64), list(found.classes), run.folder.name))
    except (ValueError, UserError) as error:
        return [Text(f"What `ffebm evaluate` found cannot be read: {error}.")]
    title = f"{found.images:,} test images: true class (row) and what the model took them for (column)"
    return [Picture(title, drawn)]
