"""The command `ffebm`. Imports what takes long only inside the commands that need it."""

from __future__ import annotations

import io
import sys
import warnings
from importlib.metadata import version
from typing import Annotated, TextIO

import typer
from rich.markup import escape

from ffebm.checks import brief_name, one_line
from ffebm.errors import UnsettledWarning
from ffebm.experiment.command_line import circuit, data, reproduction
from ffebm.experiment.command_line.console import EPILOGS, notes, out
from ffebm.experiment.command_line.cost import cost
from ffebm.experiment.command_line.group import Group
from ffebm.experiment.command_line.reference import presets, settings
from ffebm.experiment.command_line.results import check, evaluate, export, predict, report
from ffebm.experiment.command_line.speed import bench
from ffebm.experiment.command_line.study import study
from ffebm.experiment.command_line.training import train
from ffebm.experiment.command_line.zoo import zoo
from ffebm.experiment.errors import Remark, UserError
from ffebm.experiment.processes import process_rank

__all__ = ["about", "app", "main"]
__dir__ = __all__.copy

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(no_args_is_help=True, help="Look after data sets: say which are there, download what is not.")
app.add_typer(data_app, name="data")
reproduce_app = typer.Typer(no_args_is_help=True, help="Make the paper's figures and tables again, beside the printed ones.")
app.add_typer(reproduce_app, name="reproduce")
circuit_app = typer.Typer(no_args_is_help=True, help="Blocks as electrical circuits: write netlists, and let ngspice judge.")
app.add_typer(circuit_app, name="circuit")
PLACES = (
    (app, (train, evaluate, predict, export, check, report, zoo, presets, settings, bench, cost, study)),
    (data_app, (data.check, data.fetch)),
    (circuit_app, (circuit.export, circuit.check)),
    (reproduce_app, (reproduction.static, reproduction.split, reproduction.scaling)),
)
for place, commands in PLACES:
    for command in commands:
        place.command(epilog=EPILOGS[command])(command)


def _show_version(wanted: bool) -> None:
    if wanted:
        out.print(f"ffebm {version('ffebm')}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Say which version this is, and stop.")
    ] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="Run code of your own that settings name under \\[parts]; goes with every command.")
    ] = False,
) -> None:
    """Train networks that are part digital, part analog: backprop through the digital parts, EP through the analog ones.

    EP is equilibrium propagation. `ffebm --install-completion` has your shell complete commands and options.
    """


def main() -> None:
    """Run the command; turn mistakes that a person can mend into a message and exit code 1."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # ×, β and … belong to what is shown; names of files need not be text at all.
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            app()
        except UserError as error:
            _fail(str(error))
        except OSError as error:  # a full disk, a folder that may not be written
            _fail(_refusal(error))
        except RecursionError:
            _fail("Something in the files or settings given is nested too deep to be read.")
        except (MemoryError, RuntimeError) as error:
            if not _out_of_memory(error):
                raise
            _fail(
                "The memory of this machine does not suffice: take a smaller model.width, trainer.batch or "
                "trainer.test_batch, or a larger trainer.accumulate."
            )


def _fail(message: str) -> None:
    where = f" in process {process_rank()}" if process_rank() else ""
    message = "\n".join(one_line(line) for line in message.splitlines())  # names may hold what a terminal obeys
    notes.print(f"[bold red]Error{where}:[/] {escape(message)}", highlight=False, soft_wrap=True)
    sys.exit(1)


def _refusal(error: OSError) -> str:
    reason = brief_name(error.strerror or str(error), 200)
    named = "" if error.filename is None else f": {brief_name(str(error.filename), 200)}"
    return f"The system refused: {reason}{named}."


def _out_of_memory(error: MemoryError | RuntimeError) -> bool:
    """Whether memory was lacking: torch raises a RuntimeError then, whose words differ between CPU and GPU."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in ("allocate memory", "out of memory"))


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Ours is about the run, not about a line of the program."""
    if issubclass(category, UnsettledWarning | Remark):
        notes.print(f"[yellow]Warning:[/] {escape(str(message))}", highlight=False, soft_wrap=True)
    else:
        (file or sys.stderr).write(warnings.formatwarning(message, category, filename, lineno, line))
