"""`ffebm study`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from ffebm.checks import brief_name
from ffebm.experiment.command_line.console import DataOption, JsonOption, examples, notes, out, print_json, print_table
from ffebm.experiment.command_line.reproduction import (
    DevicesOption,
    JobsOption,
    OutputOption,
    PrintOption,
    RayOption,
    launcher,
)
from ffebm.experiment.errors import UserError

if TYPE_CHECKING:
    from ffebm.experiment.studies.study import Study

__all__ = ["study"]
__dir__ = __all__.copy


def _studies(incomplete: str) -> list[str]:
    """Names of studies that a shell may complete this to."""
    from ffebm.experiment.studies import study_names

    return [name for name in study_names() if name.startswith(incomplete)]


@examples(
    "ffebm study --list                    # what there is, and how long each takes",
    "ffebm study bits --dry-run            # which runs it makes",
    "ffebm study bits                      # how many bits do converters need? the same command goes on after a stop",
    "ffebm study bits --seeds 1 trainer.epochs=2",
    "ffebm study noise my-chip.toml        # priced by constants of your own",
    "ffebm study my-study.toml --output runs/mine --jobs 4",
    "ffebm study bits --print              # one command for each run, for any scheduler",
)
def study(
    source: Annotated[
        str | None,
        typer.Argument(metavar="NAME|FILE.toml", help="A study that comes along, or one of your own.", autocompletion=_studies),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[HARDWARE.toml] [KEY=VALUE]…", help="Constants of your own, and settings of every run."),
    ] = None,
    everything: Annotated[bool, typer.Option("--list", help="List the studies that come along.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Print the study's TOML file, to start one of your own from.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say which runs there are, and how long they may take.")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, max=1000, help="How many; by default as the study says.")] = None,
    data: DataOption = None,
    jobs: JobsOption = None,
    devices: DevicesOption = None,
    ray: RayOption = None,
    printed: PrintOption = False,
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Answer a question about hardware: train along one or two axes, over seeds, and report accuracy against energy.

    An axis is any setting: bits, noise, settle time, split. Finished runs are kept, and interrupted ones go on.
    """
    from ffebm.experiment.studies import READY, study_names
    from ffebm.experiment.studies.study import read_study

    if everything:
        _list([read_study(name) for name in study_names()])
        return
    if source is None:
        raise UserError("Which study? `ffebm study --list` shows those that come along.")
    files = [change for change in changes or [] if change.endswith(".toml") and "=" not in change]
    given = [change for change in changes or [] if change not in files]
    _check(given, files)
    chosen = read_study(source)
    if show:
        path = Path(source) if source.endswith(".toml") else READY / f"{source}.toml"
        sys.stdout.write(path.read_text(encoding="utf-8"))
        return
    folder = output or Path("runs") / f"study-{chosen.name}"
    trials = chosen.trials(seeds, given)
    for trial in trials:
        _ = trial.settings  # says what is wrong with one
    if dry_run:
        _preview(chosen, len(trials), seeds, given)
        return
    for trial in trials:
        trial.check(folder)  # before anything is begun
    if printed:
        for trial in trials:
            sys.stdout.write(trial.command(folder.absolute(), None if data is None else data.absolute()) + "\n")
        return
    from ffebm.experiment.places import find_data

    find_data(trials[0].settings.data.name, data or trials[0].settings.data.root)
    with notes.status("Loading torch …"):
        from ffebm.experiment.queue import Queue
        from ffebm.experiment.report.studied import report_study
        from ffebm.experiment.studies.findings import find
        from ffebm.experiment.technology_files import read_technology

    technology = read_technology(Path(files[0]) if files else None)
    queue = Queue(trials, folder, launcher(jobs, devices, ray), data)
    whole = queue.run(notes)
    findings = find(chosen, trials, folder, technology)
    text = report_study(findings, folder, technology, len(trials), queue.failures)
    if as_json:
        print_json({"study": chosen.name, "answer": findings.answer(), "report": str(folder / "report.json")})
    else:
        out.print(text, markup=False, soft_wrap=True)
        out.print(f"Report: {folder / 'report.html'}", soft_wrap=True, markup=False)
    if not whole:
        notes.print("Interrupted; the same command goes on from here.", highlight=False)
        raise typer.Exit(130)
    if queue.failures:
        raise UserError(f"{len(queue.failures)} of {len(trials)} runs failed; the same command tries them again.")


def _check(given: list[str], files: list[str]) -> None:
    if len(files) > 1:
        raise UserError(f"One table of constants at a time, got {' and '.join(map(brief_name, files))}.")
    for change in given:
        if "=" not in change:
            raise UserError(f"`{brief_name(change)}` is neither a table of constants, FILE.toml, nor KEY=VALUE.")
        key = change.partition("=")[0].strip()
        if key in ("seed", "data.root"):
            instead = "--seeds says how many" if key == "seed" else "give --data"
            raise UserError(f"`{brief_name(change)}` cannot be set for a whole study: {instead}.")


def _list(studies: list[Study]) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    for column in ("study", "question", "runs", "minutes"):
        table.add_column(column, justify="right" if column in ("runs", "minutes") else "left")
    for each in studies:
        table.add_row(each.name, each.question, str(len(each.trials())), "" if each.minutes is None else f"{each.minutes:g}")
    print_table(table)
    out.print("\nMinutes: about, on two cores. `ffebm study NAME --show` prints one, to start your own from.")


def _preview(study: Study, runs: int, seeds: int | None, given: list[str]) -> None:
    out.print(f"{study.title}\n{study.question}", markup=False, soft_wrap=True)
    for axis in study.axes:
        out.print(f"  {axis.label}: {', '.join(level.name for level in axis.levels)}", markup=False, soft_wrap=True)
    out.print(f"{runs} runs of {study.preset}, {len(study.seeds) if seeds is None else seeds} seeds each.", markup=False)
    if study.minutes is not None and not given:
        minutes = study.minutes * runs / len(study.trials())
        out.print(f"About {max(1, round(minutes))} minutes on two cores.", markup=False)
    else:
        out.print(f"How long a run takes: `ffebm train {study.preset} --dry-run` says it.", markup=False)
