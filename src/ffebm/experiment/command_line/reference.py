"""`ffebm presets` and `ffebm settings`: what can be asked for."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from ffebm.checks import brief_name
from ffebm.experiment.command_line.console import JsonOption, examples, out, preset_completions, print_json, print_table
from ffebm.experiment.errors import UserError

if TYPE_CHECKING:
    from ffebm.experiment.settings import Model

__all__ = ["presets", "settings"]
__dir__ = __all__.copy


@examples("ffebm presets", "ffebm presets cifar10-l12-bs2 > my.toml", "ffebm train my.toml", "ffebm presets --json")
def presets(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="PRESET", help="Print this one, as a TOML file to start from.", autocompletion=preset_completions
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the presets: every row of the paper's tables, with the paper's result beside it."""
    from ffebm.experiment.preset import FOLDER, preset_names, read_preset

    if as_json:
        names = preset_names() if name is None else [name]
        print_json({each: read_preset(each).model_dump(mode="json") for each in names})
        return
    if name is not None:
        read_preset(name)
        sys.stdout.write((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
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
    print_table(table)
    out.print(
        "\nSweeps: free + nudged, at most where they are calibrated or settle. Paper: top-1 accuracy in per cent, top-5 below, "
        "the spread over three seeds; β is 0.2 in all of the paper's. All train by equilibrium propagation unless "
        "gradient.kind is id, recurrent-backprop or bptt. model.width=0.125 scales one down to a small machine, as in "
        "cifar10-small; `ffebm presets NAME` prints all settings."
    )


def _cut(model: Model) -> str:
    """The layers as a sum of blocks."""
    if isinstance(model.split, list):
        return f"{model.layers} = {' + '.join(map(str, model.split))}"
    whole, rest = divmod(model.layers, model.split)
    return f"{model.layers} = {whole} × {model.split}" + (f" + {rest}" if rest else "")


@examples("ffebm settings", "ffebm settings optimiser", "ffebm settings > my.toml")
def settings(
    section: Annotated[str, typer.Argument(metavar="PART", help="Only the settings whose name holds this.")] = "",
) -> None:
    """Explain every setting that a TOML file or KEY=VALUE can change: a TOML file of all defaults, with comments."""
    from ffebm.experiment.settings import documented

    text = documented(section)
    if not text.strip():
        raise UserError(f"No setting has `{brief_name(section)}` in its name; `ffebm settings` prints all.")
    sys.stdout.write(text)
