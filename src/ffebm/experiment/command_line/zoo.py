"""`ffebm zoo`: trained models that come with the package."""

from __future__ import annotations

from dataclasses import asdict

from rich import box
from rich.markup import escape
from rich.table import Table

from ffebm.experiment.command_line.console import JsonOption, examples, out, percent, print_json, print_table

__all__ = ["zoo"]
__dir__ = __all__.copy


@examples("ffebm zoo", "ffebm zoo --json | jq '.[].accuracy'", "ffebm predict digits-l4-bs2 scan.png")
def zoo(as_json: JsonOption = False) -> None:
    """List the trained models that come with the package. Their names stand wherever a run's folder does."""
    from ffebm.experiment.zoo import entries

    found = entries()
    if as_json:
        print_json([{**asdict(each), "mean": each.mean, "error": each.error, "bytes": each.bytes} for each in found])
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    for column in ("model", "test images", "accuracy", "mean of seeds", "KiB"):
        table.add_column(column, no_wrap=True, justify="left" if column == "model" else "right")
    for each in found:
        spread = "" if each.error is None else f" ± {100 * each.error:.2f}"
        mean = f"{100 * each.mean:.2f}{spread} ({len(each.seeds)})"
        images = f"{each.images:,} of {each.data}"
        table.add_row(escape(each.name), escape(images), percent(each.accuracy), mean, f"{each.bytes / 1024:,.0f}")
    print_table(table)
    out.print(
        "\nAccuracies are of whole test sets: of the weights at hand, and the mean of all seeds, ± its standard error. "
        "They were made by:",
        soft_wrap=True,
    )
    for each in found:
        out.print(f"  {escape(each.name)}: {escape(each.command)}", soft_wrap=True)
