"""`ffebm cost`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from ffebm.checks import brief_name
from ffebm.experiment.command_line.console import JsonOption, examples, named, notes, out, preset_completions, print_json
from ffebm.experiment.errors import UserError
from ffebm.experiment.tables import titled

if TYPE_CHECKING:
    from ffebm.experiment.costing import Costing
    from ffebm.hardware.cost import Bill, Estimate

__all__ = ["cost"]
__dir__ = __all__.copy

BAR = 30  # characters of the longest bar
PICTURES = (".png", ".svg", ".pdf")


@examples(
    "ffebm cost digits                              # a preset, by the constants that come with it",
    "ffebm cost cifar10-l12-bs2 model.split=4       # other blocks, less digital work between them",
    "ffebm cost digits design.adc_bits=6 design.update=outer-product",
    "ffebm cost digits design.settle=converted      # each product of a sweep through converters",
    "ffebm cost runs/mine my-chip.toml              # a run, with sweeps as it counted them, on a chip of yours",
    "ffebm cost --constants > my-chip.toml          # the table to start from, with sources",
    "ffebm cost digits --figure cost.png --json",
)
def cost(
    source: Annotated[
        str | None,
        typer.Argument(metavar="PRESET|FILE.toml|RUN", help="What is to be estimated.", autocompletion=preset_completions),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[HARDWARE.toml] [KEY=VALUE]…",
            help="Constants of your own; settings to change, and choices of the design, as design.rows=256.",
        ),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, max=2**20, help="Samples of a step; by default as many as are trained on at once.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", callback=named, help="Also draw it: .png, .svg or .pdf.")
    ] = None,
    constants: Annotated[
        bool, typer.Option("--constants", help="Only print the table of constants, each with its source: a file to start from.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Estimate energy and time on analog hardware: an inference, a training step by nudges, and both all digital.

    Blocks settle on crossbars between converters. The digital net of the same layers stands beside, on the same node.
    """
    from ffebm.experiment.technology_files import DEFAULT

    if constants:
        out.print(DEFAULT.read_text(encoding="utf-8"), markup=False, soft_wrap=True, end="")
        return
    if source is None:
        raise UserError("What is to be estimated? Name a preset, a run, or a TOML file: `ffebm cost digits`.")
    if figure is not None and figure.suffix not in PICTURES:
        raise UserError(f"`{brief_name(str(figure))}` names no picture: end it in {', '.join(PICTURES)}.")
    files = [change for change in changes or [] if change.endswith(".toml") and "=" not in change]
    if len(files) > 1:
        raise UserError(f"One table of constants at a time, got {' and '.join(map(brief_name, files))}.")
    if stray := [change for change in changes or [] if "=" not in change and change not in files]:
        raise UserError(f"`{brief_name(stray[0])}` is neither a table of constants, FILE.toml, nor KEY=VALUE.")
    given = [change for change in changes or [] if "=" in change]
    choices = [change.removeprefix("design.") for change in given if change.startswith("design.")]
    with notes.status("Loading torch …"):
        from ffebm.experiment.costing import costing_of, numbers
        from ffebm.experiment.technology_files import read_technology

    technology = read_technology(Path(files[0]) if files else None, choices)
    found = costing_of(source, technology, [change for change in given if not change.startswith("design.")], batch)
    if figure is not None:
        _draw(found, figure)
    if as_json:
        print_json(numbers(found))
        return
    _print(found)
    if figure is not None:
        out.print(f"Figure: {escape(str(figure))}", soft_wrap=True)


def _draw(found: Costing, path: Path) -> None:
    from ffebm.experiment.cost_figure import cost_figure
    from ffebm.experiment.figures import picture
    from ffebm.experiment.files import write_atomically

    write_atomically(path, picture(cost_figure(found.name, found.estimate), path.suffix[1:]))


def _print(found: Costing) -> None:
    from ffebm.hardware.cost import KINDS, PHASES

    estimate = found.estimate
    bills = [(name, bill) for name, bill in estimate.bills.items() if bill is not None]
    table = _frame(bills)
    for unit, value in (("J", "energy"), ("s", "time")):
        for kind in KINDS:
            cells = [_amount(getattr(bill, f"{value}_of")(kind=kind) / bill.batch, unit) for _, bill in bills]
            table.add_row(f"{value}: {kind}", *cells) if any(cells) else None
        totals = [_amount(getattr(bill, value) / bill.batch, unit) for _, bill in bills]
        table.add_row(f"[bold]{value}, all[/]", *(f"[bold]{total}[/]" for total in totals), end_section=True)
    out.print(titled(f"{found.name}, for a sample of a batch of {estimate.inference.batch}", table, _sweeps(found)))
    if estimate.training is not None:
        for unit, value in (("J", "energy"), ("s", "time")):
            out.print(f"\nWhere the {value} of a training step goes, for a sample:")
            _bars(
                [
                    (f"{phase}, {which}", getattr(bill, f"{value}_of")(phase) / bill.batch)
                    for phase in PHASES
                    for which, bill in (("analog", estimate.training), ("digital", estimate.digital_training))
                ],
                unit,
            )
    out.print()
    out.print(_tiles(estimate), soft_wrap=True)
    out.print(_converters(estimate), soft_wrap=True)
    out.print(f"Constants: {estimate.technology.description}; `ffebm cost --constants` has their sources.", soft_wrap=True)
    out.print("Not in it: control, clocks, leakage, wires between tiles, off-chip memory; see docs/cost.md.", soft_wrap=True)


def _frame(bills: list[tuple[str, Bill]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("")
    for name, _ in bills:
        table.add_column(
            name.replace(", ", ",\n").replace(" step", "\nstep", int("," not in name)), justify="right", no_wrap=True
        )
    return table


def _amount(value: float, unit: str) -> str:
    from ffebm.hardware.cost.quantity import in_units

    return in_units(value, unit) if value else ""


def _sweeps(found: Costing) -> str:
    free = [block.free_sweeps for block in found.estimate.workload.blocks]
    nudged = [block.nudged_sweeps for block in found.estimate.workload.blocks if block.nudged_sweeps is not None]
    if not nudged:
        return (
            f"Blocks make {max(free):g} free sweeps. gradient.kind={found.settings.gradient.kind} needs more than a chip can "
            "tell, so training has no cost here: take gradient.kind=ep."
        )
    made = f"{sum(free) / len(free):.3g} free and {sum(nudged) / len(nudged):.3g} nudged sweeps"
    if found.sweeps is not None:
        return f"Blocks made {made} on average in the last epoch."
    most = "at most; a run counts how many it takes, and `ffebm cost RUN` uses those" if found.settings.calibrates else ""
    return f"Blocks make {made}{' ' if most else ''}{most}."


def _bars(rows: list[tuple[str, float]], unit: str) -> None:
    longest = max(value for _, value in rows) or 1.0
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        bar = "█" * max(round(BAR * value / longest), int(value > 0))
        out.print(f"  {name:{width}}  {bar:{BAR}}  {_amount(value, unit) or '0'}", soft_wrap=True)


def _tiles(estimate: Estimate) -> str:
    design, tiles = estimate.technology.design, sum(each.tiles for each in estimate.tiles)
    if not tiles:
        return "No block has weights inside: there are no crossbars."
    cells = sum(each.cells for each in estimate.tiles)
    use = cells / (tiles * design.rows * design.columns)
    return f"Crossbars: {tiles:,} of {design.rows} × {design.columns}, {100 * use:.0f} % of their cells in use ({cells:,})."


def _converters(estimate: Estimate) -> str:
    design, equipment = estimate.technology.design, estimate.workload.blocks[0].equipment
    dac, adc = equipment.dac_bits or design.dac_bits, equipment.adc_bits or design.adc_bits
    whose = "" if equipment.dac_bits and equipment.adc_bits else ", where no settings say otherwise by the design"
    repeats = f", {equipment.repeats} times for each read-out" if equipment.repeats > 1 else ""
    return f"Converters: {dac} bits in, {adc} bits out{repeats}{whose}."
