"""What all commands share: where they print, options of the same meaning, and examples in their help."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ffebm.checks import brief_name
from ffebm.experiment.errors import UserError

__all__ = [
    "EPILOGS",
    "MOST",
    "Command",
    "DataOption",
    "JsonOption",
    "ModelArgument",
    "examples",
    "model_completions",
    "model_named",
    "named",
    "notes",
    "out",
    "percent",
    "preset_completions",
    "print_json",
    "print_table",
]
__dir__ = __all__.copy

Command = TypeVar("Command", bound=Callable[..., None])

notes = Console(stderr=True)  # progress and remarks
out = Console(highlight=False)  # results

WIDEST = 1000  # columns of a table that goes to a file
MOST = 2**31 - 1  # of anything that is counted by an option


def named(value: Any) -> Any:
    """Folders as typed, with ~ resolved, or text: refused where the files that come of them could not name them."""
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return [named(part) for part in value]
    from ffebm.experiment.settings.paths import check_writable, expanded

    try:
        if isinstance(value, Path):
            return expanded(value)
        check_writable(value)
    except ValueError as error:
        raise UserError(f"`{brief_name(str(value))}` cannot be used: {error}.") from None
    return value


DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        callback=named,
        help="Folder of the data sets. Else the environment variable FFEBM_DATA names it.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs to read.")]


def model_completions(incomplete: str) -> list[str]:
    """Names of models of the zoo that a shell may complete this to."""
    from ffebm.experiment.zoo import zoo_names

    return [name for name in zoo_names() if name.startswith(incomplete)]


def model_named(value: Path) -> Path:
    """The folder of a run, as typed, or of the model of the zoo that is named."""
    from ffebm.experiment.zoo import located

    return located(named(value))


ModelArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        callback=model_named,
        help="Folder of a run, for example runs/digits-20270101-120000, or a model that `ffebm zoo` lists.",
        autocompletion=model_completions,
    ),
]


def preset_completions(incomplete: str) -> list[str]:
    """Names of presets that a shell may complete this to."""
    from ffebm.experiment.preset import preset_names

    return [name for name in preset_names() if name.startswith(incomplete)]


EPILOGS: dict[Callable[..., None], str] = {}  # help's last words, by command


def examples(*lines: str) -> Callable[[Command], Command]:
    """Have the help of a command end with these; a blank line between them keeps them apart."""

    def keep(command: Command) -> Command:
        EPILOGS[command] = "[bold]Examples[/]\n\n" + "\n\n".join(escape(line) for line in lines)
        return command

    return keep


def print_json(value: Any) -> None:
    """As JSON, for programs: nothing else goes to the same place. JSON has no word for what is no finite number but null."""
    sys.stdout.write(json.dumps(_finite(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_table(table: Table) -> None:
    """With nothing cut off where no terminal is too narrow for it."""
    console = out if out.is_terminal else Console(file=out.file, width=WIDEST, highlight=False)
    console.print(table)


def percent(share: float) -> str:
    return f"{100 * share:.2f} %"
