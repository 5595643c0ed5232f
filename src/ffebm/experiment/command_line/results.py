"""`ffebm evaluate`, `predict`, `export` and `report`: what runs have come to."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from ffebm.experiment.command_line.console import (
    MOST,
    DataOption,
    JsonOption,
    ModelArgument,
    examples,
    named,
    notes,
    out,
    percent,
    print_json,
)
from ffebm.experiment.errors import UserError
from ffebm.experiment.places import SETTINGS, check_is_run, find_data
from ffebm.experiment.tables import titled
from ffebm.experiment.zoo import Entry, entry, is_in_zoo

if TYPE_CHECKING:
    from ffebm.experiment.evaluation import Evaluation

__all__ = ["check", "evaluate", "export", "predict", "report"]
__dir__ = __all__.copy

CONFIRMED = 0.05  # points: machines round differently, and turn a few images of ten thousand


@examples(
    "ffebm evaluate runs/digits-20270101-120000",
    "ffebm evaluate runs/mine --data ~/data",
    "ffebm evaluate runs/mine --json | jq .top1",
    "ffebm evaluate digits-l4-bs2  # of the zoo",
)
def evaluate(run: ModelArgument, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Measure a trained model on the whole test set: top-1, top-5, loss, every class, and a picture of the confusions."""
    from ffebm.experiment.settings import read_settings

    check_is_run(run)
    known = read_settings(run / SETTINGS).data
    find_data(known.name, data or known.root)  # before torch is loaded, which takes seconds
    with notes.status("Loading torch …"):
        from ffebm.experiment.evaluation import draw_confusions, evaluate_run
        from ffebm.experiment.run import Run

    found = evaluate_run(Run.open(run), data, notes, drawn=not as_json)
    if as_json:
        print_json(asdict(found))
        if not is_in_zoo(run):
            draw_confusions(Run.open(run), found)  # last: who waits for numbers need not wait for a picture
        return
    table = Table()
    table.add_column("")
    table.add_column("accuracy", justify="right")
    table.add_row("top-1", f"[bold]{percent(found.top1)}[/]")
    table.add_row("top-5", percent(found.top5))
    table.add_row("loss", f"{found.loss:.4f}", end_section=True)
    ranked = sorted(found.classes.items(), key=lambda item: item[1])
    shown = ranked if len(ranked) <= 20 else [*ranked[:10], ("…", float("nan")), *ranked[-10:]]
    for name, accuracy in shown:
        table.add_row(escape(name), "" if name == "…" else percent(accuracy))
    out.print(titled(f"{found.name}: {found.images:,} test images", table))
    if not found.own_data:
        words = f"These are not the run's own images, but all that {data} has, without a part for training."
        out.print(escape(words), soft_wrap=True)
    if is_in_zoo(run):
        out.print(_held_against(entry(run.name), found), soft_wrap=True)
        return
    files = f"All classes: {run / 'evaluation.json'}\nConfusions:  {run / 'confusion.png'}"
    out.print(escape(files), soft_wrap=True)


def _held_against(known: Entry, found: Evaluation) -> str:
    """What a model of the zoo comes to here, beside what was measured when it was put there."""
    if found.fingerprint != known.fingerprint:
        return (
            f"These are not the {known.images:,} test images on which {percent(known.accuracy)} was measured: their bytes or "
            "labels differ."
        )
    gap = 100 * (found.top1 - known.accuracy)
    verdict = "confirmed" if abs(gap) < CONFIRMED else f"NOT confirmed, this is {gap:+.2f} points off"
    return f"Measured when it was put into the zoo, on the same test images: {percent(known.accuracy)}; {verdict}."


@examples("ffebm check runs/mine", "ffebm check runs/mine --data ~/data --json | jq .cosine")
def check(run: ModelArgument, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Measure how blocks and gradient of a trained model stand: certificates, residuals, cosines to the converged gradient."""
    from ffebm.experiment.settings import read_settings

    check_is_run(run)
    known = read_settings(run / SETTINGS).data
    find_data(known.name, data or known.root)  # before torch is loaded, which takes seconds
    with notes.status("Loading torch …"):
        from ffebm.experiment.final_check import check_run, measure_run
        from ffebm.experiment.run import Run

    with notes.status("Relaxing, in double precision too …"):
        found = (measure_run if is_in_zoo(run) else check_run)(Run.open(run), data)
    if as_json:
        print_json(asdict(found))
        return
    table = Table("block", "certified contraction", "sweeps", "residual", "residual in tests")
    for block in found.blocks:
        contraction = "unknown" if block.contraction is None else f"{block.contraction:.3f}"
        sweeps = f"{block.free_sweeps}" + ("" if block.nudged_sweeps is None else f" and {block.nudged_sweeps}")
        table.add_row(escape(block.name), contraction, sweeps, f"{block.residual:.1e}", f"{block.rest:.1e}")
    out.print(titled(f"{run.name}: {found.images} training images", table))
    cosine = found.trouble or f"{found.cosine:.5f} ({found.parameter})"
    out.print(f"Smallest cosine with the converged gradient: {escape(cosine)}", soft_wrap=True)


@examples("ffebm predict runs/mine cat.png dog.jpg", "ffebm predict runs/digits-20270101-120000 scan/*.png")
def predict(
    run: ModelArgument,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE", help="PNG or JPEG files: their middle, scaled.")],
    top: Annotated[int, typer.Option(min=1, max=MOST, help="How many classes to show for each.")] = 3,
) -> None:
    """Say what is in some pictures."""
    check_is_run(run)
    with notes.status("Loading torch …"):
        from ffebm.experiment.classifier import predict_images
        from ffebm.experiment.run import Run

    table = Table()
    table.add_column("image", overflow="fold")
    table.add_column("class")
    table.add_column("probability", no_wrap=True)
    for path, guesses in predict_images(Run.open(run), images, top):
        for number, (name, probability) in enumerate(guesses):
            bar = "█" * round(20 * probability)
            table.add_row(
                escape(str(path)) if number == 0 else "",
                escape(name),
                f"{100 * probability:5.1f} % {bar}",
                end_section=number == len(guesses) - 1,
            )
    out.print(table)


@examples("ffebm export runs/mine model.onnx", "ffebm export runs/mine model.pt2")
def export(
    run: ModelArgument,
    path: Annotated[
        Path,
        typer.Argument(metavar="FILE", callback=named, help="model.onnx for ONNX, model.pt2 for torch.export."),
    ],
) -> None:
    """Write a trained model to a file that runs without ffebm, and check that it does what the model does.

    The file takes normalised images and makes a fixed number of sweeps. Image shape, normalisation and names of classes are in
    its metadata.
    """
    check_is_run(run)
    with notes.status("Loading torch …"):
        from ffebm.experiment.classifier import Classifier
        from ffebm.experiment.export import export as write

        classifier = Classifier.from_pretrained(run)
    with notes.status(f"Writing {escape(str(path))} …"):
        found = write(classifier, path)
    out.print(
        f"{escape(str(found.path))}: {found.bytes / 2**20:.1f} MiB. Its logits differ from the model's by "
        f"{found.difference:.1g} at most.",
        soft_wrap=True,
    )


@examples(
    "ffebm report runs/mine",
    "ffebm report runs/split-converged/* --output results/split",
    "ffebm report runs/mine runs/other --sample 7 --images 1000",
)
def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", callback=named, help="Folders of runs; others among them are passed over.")
    ],
    output: Annotated[
        Path, typer.Option(metavar="DIR", callback=named, help="Folder for report.html, report.md and report.json.")
    ] = Path("report"),
    title: Annotated[str, typer.Option(callback=named, help="Of the page.")] = "Runs",
    look_at: Annotated[
        list[Path] | None,
        typer.Option("--look", metavar="RUN", callback=named, help="Runs to put under the microscope; the first by default."),
    ] = None,
    sample: Annotated[int, typer.Option(min=0, max=MOST, help="Test image to follow sweep by sweep, from 0.")] = 0,
    images: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Test images to count sweeps over; all by default.")
    ] = None,
    closer: Annotated[
        bool, typer.Option("--microscope/--no-microscope", help="Whether to look at all; it needs the data.")
    ] = True,
    data: DataOption = None,
) -> None:
    """Write one page on some runs: tables, curves, settings, and how their blocks relax."""
    if not closer and (data is not None or look_at or sample or images):
        raise UserError(
            "--data, --look, --sample and --images are for the microscope: leave out either them or --no-microscope."
        )
    with notes.status("Loading torch …"):
        from ffebm.experiment.evaluation import evaluate_run, is_up_to_date
        from ffebm.experiment.report import look, look_if_possible, write_report
        from ffebm.experiment.reproduction.static import read_analyses
        from ffebm.experiment.run import Run

    found = [Run.open(run) for run in runs if (run / "settings.toml").is_file()]
    analyses, unread = read_analyses(run / "static.json" for run in runs if (run / "static.json").exists())
    if not found and not analyses and not unread:
        Run.open(runs[0])  # which says what is wrong with it
    looked = (
        [Run.open(run) for run in look_at]
        if look_at
        else [run for run in found if not run.damage() and run.metrics() and run.settings().relaxes][:1]
    )
    if data is not None and not looked:
        raise UserError("No run among these has finished an epoch, so nothing is read from --data: leave it out.")
    looked = looked if closer else []
    if len(found) == 1 and looked:
        with suppress(UserError):  # the microscope says what is wrong with the data
            if not is_up_to_date(found[0]):
                evaluate_run(found[0], data, notes)
    if look_at or sample or images or data:  # what was asked for by name is not passed over
        seen, trouble = [look(run, sample=sample, images=images, data=data, console=notes) for run in looked], []
    else:
        seen, trouble = look_if_possible(looked, console=notes)
    for sentence in (trouble := [*trouble, *unread]):
        notes.print(f"[yellow]Warning:[/] {escape(sentence)}", highlight=False, soft_wrap=True)
    write_report(output, title, runs=found, words=trouble, static=analyses, microscopes=seen)
    out.print(f"Report: {escape(str(output / 'report.html'))}, with report.md and report.json", soft_wrap=True)
