"""`ffebm data check` and `ffebm data fetch`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from ffebm.checks import brief_name
from ffebm.experiment.command_line.console import DataOption, JsonOption, examples, named, notes, out, print_json
from ffebm.experiment.errors import UserError
from ffebm.experiment.settings.paths import folder_in_environment

if TYPE_CHECKING:
    from ffebm.experiment.data.condition import Condition

__all__ = ["check", "fetch"]
__dir__ = __all__.copy


@examples("ffebm data check ~/data", "ffebm data check ~/my-pictures")
def check(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", callback=named, help="Folder of data sets, or of your images; else FFEBM_DATA names it."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say which data sets a folder holds, whole, damaged or in part; or whether your own images can be read.

    Fails if one is damaged.
    """
    folder = folder or folder_in_environment()
    if folder is None:
        raise UserError("Which folder? Name it, or set the environment variable FFEBM_DATA.")
    if not folder.is_dir() and not (folder.suffix == ".npz" and folder.is_file()):
        raise UserError(f"There is no folder {brief_name(str(folder), 200)}.")
    with notes.status("Reading …"):
        from ffebm.experiment import data  # which loads torch

        report = data.check(folder)
    if as_json:
        print_json({name: {"state": str(found.state), "details": found.details} for name, found in report.items()})
    else:
        _show(report)
    if any(found.state is data.Presence.DAMAGED for found in report.values()):
        raise typer.Exit(1)


def _show(report: Mapping[str, Condition]) -> None:
    colours = {"complete": "green", "damaged": "red", "partial": "yellow", "absent": "dim"}
    table = Table("data set", "state", "")
    for name, found in report.items():
        table.add_row(name, f"[{colours[found.state]}]{found.state}[/]", escape(found.details))
    out.print(table)


@examples("ffebm data fetch cifar10 --data ~/data", "FFEBM_DATA=~/data ffebm data fetch mnist")
def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="cifar10, cifar100, mnist, fashion-mnist or imagenet32.")],
    data: DataOption = None,
) -> None:
    """Download a data set from its official address: checked, resumable, and in place only when it is whole."""
    from ffebm.experiment.data import default_folder
    from ffebm.experiment.data.fetch import fetch

    root = data or default_folder()
    if root is None:
        raise UserError("Where to? Give --data DIR, or set the environment variable FFEBM_DATA.")
    out.print(f"{name} is in {escape(str(fetch(name, root, notes)))}", soft_wrap=True)
