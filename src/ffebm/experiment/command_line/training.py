"""`ffebm train`."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from ffebm.experiment.command_line.console import DataOption, examples, named, notes, out, percent, preset_completions
from ffebm.experiment.errors import UserError
from ffebm.experiment.places import BUNDLED, OWN, check_is_run, find_data
from ffebm.experiment.processes import follow_leash, is_first
from ffebm.experiment.tables import titled

if TYPE_CHECKING:
    from ffebm.experiment.run import Run
    from ffebm.experiment.settings import Settings
    from ffebm.experiment.training import Learner

__all__ = ["train"]
__dir__ = __all__.copy

LOADING = "Loading torch and Lightning …"


@examples(
    "ffebm train                     # digits, in under a minute",
    "ffebm train gradient.kind=id    # by implicit differentiation",
    "ffebm train cifar10-small --data ~/data --output runs/mine",
    "ffebm train --resume runs/mine",
    "ffebm train folder --data ~/my-pictures  # a folder for every class, or .npz files",
    "ffebm train cifar10-small --data ~/data --dry-run  # the model, and how long it would take",
    "ffebm train my.toml seed=1 'model.split=[2, 2]'",
    "ffebm train cifar100-l15 --data ~/data trainer.devices=8",
)
def train(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="PRESET|FILE.toml",
            help="What to train; `ffebm presets` lists what there is.",
            autocompletion=preset_completions,
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change; `ffebm settings` explains all.")
    ] = None,
    data: DataOption = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="RUN", callback=named, help="Folder for the results; a fresh one below runs/ by default."),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", callback=named, help="Go on with a run that was interrupted.")
    ] = None,
    deterministic: Annotated[
        bool,
        typer.Option(
            "--deterministic",
            help="Use only algorithms that give the same bits again: on the same machine and versions, with as many threads "
            "and processes. On one CPU thread that is so anyway. Across machines or thread counts nothing can promise it.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the model and estimate the time; train nothing and write nothing.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say only what is wrong, and what came of it.")] = False,
) -> None:
    """Train a model, and put all that comes of it into a folder."""
    follow_leash()
    if dry_run and (resume is not None or output is not None):
        raise UserError("--dry-run is of a run that has not begun: leave out --resume and --output.")
    given = list(overrides or [])
    if source is not None and "=" in source:  # no preset was named
        source, given = None, [source, *given]
    if resume is None and data is not None:
        given.append(f"data.root={json.dumps(str(data.absolute()), ensure_ascii=False)}")  # TOML quotes alike
    if deterministic:
        given.append("trainer.deterministic=true")
    if resume is not None:
        if source is not None or given or output is not None:
            raise UserError(
                "A resumed run keeps its settings: give --resume alone, or with --data if that has moved. "
                "To change settings, start a new run from its settings.toml."
            )
        _resume(resume, data, quiet)
    else:
        from ffebm.experiment.preset import DEFAULT, read_preset_or_file
        from ffebm.experiment.settings.paths import folder_in_environment

        settings = read_preset_or_file(source, given)
        if settings.data.root is None and settings.data.name not in (BUNDLED, OWN) and (folder := folder_in_environment()):
            settings = settings.model_copy(update={"data": settings.data.at(folder)})  # so that the run can be made again
        find_data(settings.data.name, settings.data.root)  # before torch is loaded, which takes seconds
        if dry_run:
            _preview(settings)
        else:
            _start(settings, output, Path(source).stem if source else DEFAULT, quiet)


def _preview(settings: Settings) -> None:
    begun = time.perf_counter()
    with notes.status("Loading torch, and timing a few steps …"):
        from ffebm.experiment.settings.duration import in_words
        from ffebm.experiment.training.preview import model_table, preview

        found = preview(settings, notes, begun)
    out.print(model_table(found.summary))
    out.print(
        f"\n{found.steps:,} steps of {found.step_seconds:.2g} s in {settings.trainer.epochs} epochs, and a test of "
        f"{found.test_seconds:.2g} s after each: about {in_words(found.seconds)} in one process on this machine.",
        soft_wrap=True,
    )


def _start(settings: Settings, output: Path | None, name: str, quiet: bool) -> None:
    with notes.status(LOADING):
        from ffebm.experiment.run import Run
        from ffebm.experiment.training import train

    first = is_first(settings.trainer.processes)
    run = Run.create(output, name) if first else Run(output or Path("runs"))  # only the first process writes
    _follow(run, first, quiet, lambda: train(settings, run, notes, quiet=quiet))


def _resume(folder: Path, data: Path | None, quiet: bool) -> None:
    check_is_run(folder)
    with notes.status(LOADING):
        from ffebm.experiment.run import Run
        from ffebm.experiment.training import resume

    run = Run.open(folder)
    _follow(run, is_first(run.settings().trainer.processes), quiet, lambda: resume(run, notes, data, quiet=quiet))


def _follow(run: Run, first: bool, quiet: bool, training: Callable[[], Learner]) -> None:
    """Train, and say where the results go, how it went, and how to go on."""
    from ffebm.experiment.run import remake_command, resume_command
    from ffebm.experiment.training import Stopped

    if first and not quiet:
        notes.print(f"Run folder: [bold]{escape(str(run.folder))}[/]", highlight=False)
    try:
        learner = training()
    except Stopped as stop:
        if first:
            notes.print(f"{stop} Go on with:\n[bold]{escape(resume_command(run))}[/]", highlight=False, soft_wrap=True)
        raise typer.Exit(stop.exit_code if first else 0) from None
    except BaseException:
        if first:
            run.discard_if_empty()
        raise
    if first:
        _summarise(learner, run)
        place = escape(shlex.quote(str(run.folder)))
        out.print(f"Run folder:     [bold]{place}[/]", soft_wrap=True)
        out.print(f"Look closer:    ffebm evaluate {place}", soft_wrap=True)
        out.print(f"Make it again:  {escape(remake_command(run))}", soft_wrap=True)


def _summarise(learner: Learner, run: Run) -> None:
    from ffebm.experiment.clock import clock

    rows, settings = learner.history, learner.settings
    last, best = rows[-1], max(rows, key=lambda row: row["test_accuracy"])
    table = Table(show_header=False)
    blocks = f"{settings.model.blocks} block{'s' if settings.model.blocks > 1 else ''}"
    table.add_row("model", f"{settings.model.layers} layers in {blocks}, width {settings.model.width:g}")
    table.add_row("gradient", settings.gradient.kind)
    table.add_row("test accuracy", f"[bold]{percent(last['test_accuracy'])}[/] (best {percent(best['test_accuracy'])})")
    if len(learner.dataset.classes) > 10:
        table.add_row("top-5", percent(last["test_top5"]))
    table.add_row("test loss", f"{last['test_loss']:.4f}")
    table.add_row("training accuracy", percent(last["train_accuracy"]))
    table.add_row("residual", f"{last['residual']:.1e}")
    table.add_row("training time", f"{clock(last['seconds'])}, {last['images_per_second']:,.0f} images/s")
    if settings.paper is not None and settings.gradient.kind in ("ep", "id"):
        scores = settings.paper.ep if settings.gradient.kind == "ep" else settings.paper.id
        table.add_row(
            "the paper", f"{scores.top1} ± {scores.top1_spread} % (full width and epochs, {scores.hours} h on an A100)"
        )
    out.print(titled(run.folder.name, table))
