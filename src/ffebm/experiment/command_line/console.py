"""What all commands share: where they print, options of the same meaning, and examples in their help."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.markup import escape

Command = TypeVar("Command", bound=Callable[..., None])

notes = Console(stderr=True)  # progress and remarks
out = Console()  # results

DataOption = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Folder of the data sets. Else the environment variable FFEBM_DATA names it."),
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, for example runs/digits-20270101-120000.")]

EPILOGS: dict[Callable[..., None], str] = {}  # help's last words, by command


def examples(*lines: str) -> Callable[[Command], Command]:
    """Have the help of a command end with these; a blank line between them keeps them apart."""

    def keep(command: Command) -> Command:
        EPILOGS[command] = "[bold]Examples[/]\n\n" + "\n\n".join(escape(line) for line in lines)
        return command

    return keep


def percent(share: float) -> str:
    return f"{100 * share:.2f} %"
