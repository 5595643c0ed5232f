"""`ffebm evaluate` and `ffebm predict`: what a run has come to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from ffebm.experiment.command_line.console import DataOption, RunArgument, examples, notes, out, percent


@examples("ffebm evaluate runs/digits-20270101-120000", "ffebm evaluate runs/mine --data ~/data")
def evaluate(run: RunArgument, data: DataOption = None) -> None:
    """Measure a trained model on the whole test set: top-1, top-5, loss, every class, and a picture of the confusions."""
    with notes.status("Loading torch …"):
        from ffebm.experiment.evaluation import evaluate_run
        from ffebm.experiment.run import Run

    found = evaluate_run(Run.open(run), data, notes)
    table = Table(title=f"{found.name}: {found.images:,} test images", title_justify="left")
    table.add_column("")
    table.add_column("accuracy", justify="right")
    table.add_row("top-1", f"[bold]{percent(found.top1)}[/]")
    table.add_row("top-5", percent(found.top5))
    table.add_row("loss", f"{found.loss:.4f}", end_section=True)
    ranked = sorted(found.classes.items(), key=lambda item: item[1])
    shown = ranked if len(ranked) <= 20 else [*ranked[:10], ("…", float("nan")), *ranked[-10:]]
    for name, accuracy in shown:
        table.add_row(escape(name), "" if name == "…" else percent(accuracy))
    out.print(table)
    files = f"All classes: {run / 'evaluation.json'}\nConfusions:  {run / 'confusion.png'}"
    out.print(escape(files), highlight=False, soft_wrap=True)


@examples("ffebm predict runs/mine cat.png dog.jpg", "ffebm predict runs/digits-20270101-120000 scan/*.png")
def predict(
    run: RunArgument,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE", help="PNG or JPEG files: the middle square, scaled.")],
    top: Annotated[int, typer.Option(min=1, help="How many classes to show for each.")] = 3,
) -> None:
    """Say what is in some pictures."""
    with notes.status("Loading torch …"):
        from ffebm.experiment.prediction import predict_images
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
