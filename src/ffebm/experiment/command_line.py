"""The command `ffebm`. Imports what takes long only inside the commands that need it."""

from __future__ import annotations

import io
import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ffebm.experiment.errors import UserError
from ffebm.experiment.processes import is_first, process_rank

if TYPE_CHECKING:
    from ffebm.experiment.run import Run
    from ffebm.experiment.settings import Model, Settings
    from ffebm.experiment.training import Learner

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train networks that are part digital, part analog: backprop through the digital parts, equilibrium propagation "
    "through the analog ones.",
)
data_app = typer.Typer(no_args_is_help=True, help="Look after data sets: say which are there, download what is not.")
app.add_typer(data_app, name="data")

notes = Console(stderr=True)  # progress and remarks
out = Console()  # results
LOADING = "Loading torch and Lightning …"

DataOption = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Folder of the data sets. Else the environment variable FFEBM_DATA names it."),
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, for example runs/digits-20270101-120000.")]


def _examples(*lines: str) -> str:
    """Help's last words; a blank line between them keeps them apart."""
    return "[bold]Examples[/]\n\n" + "\n\n".join(escape(line) for line in lines)


@app.command(
    epilog=_examples(
        "ffebm train                     # digits, in under a minute",
        "ffebm train gradient.kind=id    # by implicit differentiation",
        "ffebm train cifar10-small --data ~/data --output runs/mine",
        "ffebm train --resume runs/mine",
        "ffebm train my.toml seed=1 'model.split=[2, 2]'",
        "ffebm train cifar100-l15 --data ~/data trainer.devices=8",
    )
)
def train(
    source: Annotated[
        str | None, typer.Argument(metavar="PRESET|FILE.toml", help="What to train; `ffebm presets` lists what there is.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change; `ffebm settings` explains all.")
    ] = None,
    data: DataOption = None,
    output: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Folder for the results; a fresh one below runs/ by default.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Go on with a run that was interrupted.")] = None,
    deterministic: Annotated[
        bool,
        typer.Option(
            "--deterministic",
            help="Use only algorithms that give the same bits again: on the same machine and versions, with as many threads "
            "and processes. On one CPU thread that is so anyway. Across machines or thread counts nothing can promise it.",
        ),
    ] = False,
) -> None:
    """Train a model, and put all that comes of it into a folder."""
    given = list(overrides or [])
    if source is not None and "=" in source:  # no preset was named
        source, given = None, [source, *given]
    if resume is None and data is not None:
        given.append(f"data.root={json.dumps(str(data.expanduser().absolute()), ensure_ascii=False)}")  # TOML quotes alike
    if deterministic:
        given.append("trainer.deterministic=true")
    if resume is not None:
        if source is not None or given or output is not None:
            raise UserError(
                "A resumed run keeps its settings: give --resume alone, or with --data if that has moved. "
                "To change settings, start a new run from its settings.toml."
            )
        _resume(resume, data)
    else:
        from ffebm.experiment.preset import DEFAULT, read_preset_or_file

        settings = read_preset_or_file(source, given)
        if settings.data.root is None and settings.data.name != "digits" and (named := os.environ.get("FFEBM_DATA")):
            settings = settings.model_copy(update={"data": settings.data.at(Path(named))})  # so that the run can be made again
        _start(settings, output, Path(source).stem if source else DEFAULT)


def _start(settings: Settings, output: Path | None, name: str) -> None:
    with notes.status(LOADING):
        from ffebm.experiment.run import Run
        from ffebm.experiment.training import train

    first = is_first(settings.trainer.processes)
    run = Run.create(output, name) if first else Run(output or Path("runs"))  # only the first process writes
    _follow(run, first, lambda: train(settings, run, notes))


def _resume(folder: Path, data: Path | None) -> None:
    with notes.status(LOADING):
        from ffebm.experiment.run import Run
        from ffebm.experiment.training import resume

    run = Run.open(folder)
    _follow(run, is_first(run.settings().trainer.processes), lambda: resume(run, notes, data))


def _follow(run: Run, first: bool, training: Callable[[], Learner]) -> None:
    """Train, and say where the results go, how it went, and how to go on."""
    from ffebm.experiment.run import remake_command, resume_command
    from ffebm.experiment.training import Stopped

    if first:
        notes.print(f"Run folder: [bold]{escape(str(run.folder))}[/]", highlight=False)
    try:
        learner = training()
    except Stopped as stop:
        if first:
            notes.print(f"{stop} Go on with: [bold]{escape(resume_command(run))}[/]", highlight=False)
        raise typer.Exit(stop.exit_code if first else 0) from None
    except UserError:
        if first:
            run.discard_if_empty()
        raise
    if first:
        _summarise(learner, run)
        place = escape(shlex.quote(str(run.folder)))
        out.print(f"Run folder:     [bold]{place}[/]", highlight=False, soft_wrap=True)
        out.print(f"Look closer:    ffebm evaluate {place}", highlight=False, soft_wrap=True)
        out.print(f"Make it again:  {escape(remake_command(run))}", highlight=False, soft_wrap=True)


def _summarise(learner: Learner, run: Run) -> None:
    from ffebm.experiment.training.progress import clock

    rows, settings = learner.history, learner.settings
    last, best = rows[-1], max(rows, key=lambda row: row["test_accuracy"])
    table = Table(title=escape(run.folder.name), show_header=False, title_justify="left")
    blocks = f"{settings.model.blocks} block{'s' if settings.model.blocks > 1 else ''}"
    table.add_row("model", f"{settings.model.layers} layers in {blocks}, width {settings.model.width:g}")
    table.add_row("gradient", settings.gradient.kind)
    table.add_row("test accuracy", f"[bold]{_percent(last['test_accuracy'])}[/] (best {_percent(best['test_accuracy'])})")
    if len(learner.dataset.classes) > 10:
        table.add_row("top-5", _percent(last["test_top5"]))
    table.add_row("test loss", f"{last['test_loss']:.4f}")
    table.add_row("training accuracy", _percent(last["train_accuracy"]))
    table.add_row("residual", f"{last['residual']:.1e}")
    table.add_row("training time", f"{clock(last['seconds'])}, {last['images_per_second']:,.0f} images/s")
    if settings.paper is not None and settings.gradient.kind in ("ep", "id"):
        scores = settings.paper.ep if settings.gradient.kind == "ep" else settings.paper.id
        table.add_row(
            "the paper", f"{scores.top1} ± {scores.top1_spread} % (full width and epochs, {scores.hours} h on an A100)"
        )
    out.print(table)


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


@app.command(
    epilog=_examples("ffebm evaluate runs/digits-20270101-120000", "ffebm evaluate runs/mine --data ~/data"),
)
def evaluate(run: RunArgument, data: DataOption = None) -> None:
    """Measure a trained model on the whole test set: top-1, top-5, loss, every class, and a picture of the confusions."""
    with notes.status("Loading torch …"):
        from ffebm.experiment.evaluation import evaluate_run
        from ffebm.experiment.run import Run

    found = evaluate_run(Run.open(run), data, notes)
    table = Table(title=f"{found.name}: {found.images:,} test images", title_justify="left")
    table.add_column("")
    table.add_column("accuracy", justify="right")
    table.add_row("top-1", f"[bold]{_percent(found.top1)}[/]")
    table.add_row("top-5", _percent(found.top5))
    table.add_row("loss", f"{found.loss:.4f}", end_section=True)
    ranked = sorted(found.classes.items(), key=lambda item: item[1])
    shown = ranked if len(ranked) <= 20 else [*ranked[:10], ("…", float("nan")), *ranked[-10:]]
    for name, accuracy in shown:
        table.add_row(escape(name), "" if name == "…" else _percent(accuracy))
    out.print(table)
    files = f"All classes: {run / 'evaluation.json'}\nConfusions:  {run / 'confusion.png'}"
    out.print(escape(files), highlight=False, soft_wrap=True)


@app.command(
    epilog=_examples("ffebm predict runs/mine cat.png dog.jpg", "ffebm predict runs/digits-20270101-120000 scan/*.png"),
)
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


@app.command(epilog=_examples("ffebm presets", "ffebm presets cifar10-l12-bs2 > my.toml", "ffebm train my.toml"))
def presets(
    name: Annotated[str | None, typer.Argument(metavar="PRESET", help="Print this one, as a TOML file to start from.")] = None,
) -> None:
    """List the presets: every row of the paper's tables, with the paper's result beside it."""
    from ffebm.experiment.preset import FOLDER, preset_names, read_preset

    if name is not None:
        read_preset(name)
        sys.stdout.write((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for column in ("preset", "layers, blocks", "sweeps", "epochs", "rate", "paper, EP", "paper, ID"):
        table.add_column(column, no_wrap=True)
    for preset in preset_names():
        settings = read_preset(preset)
        model = settings.model
        scores = [settings.paper.ep, settings.paper.id] if settings.paper else []
        table.add_row(
            preset,
            _cut(model),
            f"{settings.relaxation.steps} + {settings.gradient.steps}",
            str(settings.trainer.epochs),
            f"{settings.optimiser.learning_rate:.0e}",
            *(f"{s.top1} ± {s.top1_spread}" + ("" if s.top5 is None else f"\n{s.top5} ± {s.top5_spread}") for s in scores),
        )
    out.print(table)
    out.print(
        "\nSweeps: free + nudged. Paper: top-1 accuracy in per cent, top-5 below, and the spread over three seeds; β is "
        "0.2 in all of these. All train by equilibrium propagation unless gradient.kind is id, recurrent-backprop or bptt. "
        "model.width=0.125 scales one down to a small machine, as in cifar10-small; `ffebm presets NAME` prints all settings.",
        highlight=False,
    )


def _cut(model: Model) -> str:
    """The layers as a sum of blocks."""
    if isinstance(model.split, list):
        return f"{model.layers} = {' + '.join(map(str, model.split))}"
    whole, rest = divmod(model.layers, model.split)
    return f"{model.layers} = {whole} × {model.split}" + (f" + {rest}" if rest else "")


@app.command(epilog=_examples("ffebm settings", "ffebm settings optimiser", "ffebm settings > my.toml"))
def settings(
    section: Annotated[str, typer.Argument(metavar="PART", help="Only the settings whose name holds this.")] = "",
) -> None:
    """Explain every setting that a TOML file or KEY=VALUE can change: a TOML file of all defaults, with comments."""
    from ffebm.experiment.settings import documented

    text = documented(section)
    if not text.strip():
        raise UserError(f"No setting has `{section}` in its name; `ffebm settings` prints all.")
    sys.stdout.write(text)


@app.command(
    epilog=_examples(
        "ffebm bench                                  # the 12-layer net at an eighth of its width, batch 128",
        "ffebm bench --trained 600 --data ~/data      # on weights that have learned something",
        "ffebm bench conv12:0.5:32 dense:1:256 --no-quality",
        "ffebm bench --all --output results/speed     # every net, width and batch (half an hour)",
        "ffebm bench --profile                        # where the time goes, by block and by operation",
    )
)
def bench(
    nets: Annotated[
        list[str] | None,
        typer.Argument(metavar="NET:WIDTH:BATCH", help="dense, conv6, conv12 or conv15, with width and batch behind it."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All nets, widths and batches.")] = False,
    trained: Annotated[
        int, typer.Option(metavar="STEPS", min=0, help="Train this long first, on CIFAR-10 or else on the bundled digits.")
    ] = 0,
    data: DataOption = None,
    quality: Annotated[bool, typer.Option(help="Compare every gradient with the fully converged one.")] = True,
    rounds: Annotated[int, typer.Option(min=1, help="Timings of each method, of which the shortest counts.")] = 5,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; all cores by default.")] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Also say where the time of a step goes.")] = False,
    output: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder for speed.json, speed.md and speed.png.")] = None,
) -> None:
    """Measure gradients: time beside plain backprop, speed beside the machine's peak, memory, and how true they are."""
    with notes.status("Loading torch …"):
        from ffebm.experiment.benchmark.command import run_benchmark

    run_benchmark(
        nets or [],
        everything=everything,
        trained=trained,
        data=data,
        quality=quality,
        rounds=rounds,
        threads=threads,
        profile=profile,
        output=output,
        out=out,
        notes=notes,
    )


@data_app.command("check", epilog=_examples("ffebm data check ~/data"))
def data_check(
    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="Folder of the data sets; else FFEBM_DATA names it.")
    ] = None,
) -> None:
    """Say which data sets a folder holds, whole, damaged or in part. Fails if one is damaged."""
    from ffebm.experiment.data import check, default_folder

    folder = folder or default_folder()
    if folder is None:
        raise UserError("Which folder? Name it, or set the environment variable FFEBM_DATA.")
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}.")
    with notes.status("Reading …"):
        report = check(folder)
    colours = {"complete": "green", "damaged": "red", "partial": "yellow", "absent": "dim"}
    table = Table("data set", "state", "")
    for name, sentence in report.items():
        state, _, rest = sentence.partition(": ")
        table.add_row(name, f"[{colours[state]}]{state}[/]", escape(rest))
    out.print(table)
    if any(sentence.startswith("damaged") for sentence in report.values()):
        raise typer.Exit(1)


@data_app.command(
    "fetch", epilog=_examples("ffebm data fetch cifar10 --data ~/data", "FFEBM_DATA=~/data ffebm data fetch mnist")
)
def data_fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="cifar10, cifar100, mnist, fashion-mnist or imagenet32.")],
    data: DataOption = None,
) -> None:
    """Download a data set from its official address: checked, resumable, and in place only when it is whole."""
    from ffebm.experiment.data import default_folder
    from ffebm.experiment.data.fetch import fetch

    root = data or default_folder()
    if root is None:
        raise UserError("Where to? Give --data DIR, or set the environment variable FFEBM_DATA.")
    out.print(f"{name} is in {escape(str(fetch(name, root.expanduser(), notes)))}", highlight=False, soft_wrap=True)


def main() -> None:
    """Run the command; turn mistakes that a person can mend into a message and exit code 1."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")  # ×, β and … belong to what is shown
    try:
        app()
    except UserError as error:
        _fail(str(error))
    except OSError as error:  # a full disk, a folder that may not be written
        _fail(f"The system refused: {error}.")


def _fail(message: str) -> None:
    where = f" in process {process_rank()}" if process_rank() else ""
    notes.print(f"[bold red]Error{where}:[/] {escape(message)}", highlight=False, soft_wrap=True)
    sys.exit(1)
