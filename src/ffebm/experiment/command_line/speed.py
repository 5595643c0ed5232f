"""`ffebm bench`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ffebm.experiment.command_line.console import MOST, DataOption, JsonOption, examples, named, notes, out, print_json
from ffebm.experiment.errors import UserError

__all__ = ["bench"]
__dir__ = __all__.copy


@examples(
    "ffebm bench                   # 12 layers, an eighth of the width, batch 128",
    "ffebm bench --trained 600     # on weights that have learned something",
    "ffebm bench model.max_contraction=0.5 model.start=0.5",
    "ffebm bench --run runs/mine   # the net of a run, as it was trained",
    "ffebm bench conv12:0.5:32 dense:1:256 --no-quality",
    "ffebm bench --profile         # where the time goes, by block and operation",
    "ffebm bench --all --output speed",
)
def bench(
    nets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NET:WIDTH:BATCH|KEY=VALUE",
            help="dense, conv6, conv12, conv12-bs3, conv12-bs4 or conv15, with width and batch behind it; settings to change.",
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All nets, widths and batches.")] = False,
    trained: Annotated[
        int,
        typer.Option(
            metavar="STEPS", min=0, max=MOST, help="Train this long first, on CIFAR-10, or on the digits, soon learnt by heart."
        ),
    ] = 0,
    runs: Annotated[
        list[Path] | None,
        typer.Option("--run", metavar="RUN", callback=named, help="The net of a run instead, as it was trained."),
    ] = None,
    data: DataOption = None,
    quality: Annotated[bool, typer.Option(help="Compare every gradient with the fully converged one.")] = True,
    rounds: Annotated[int, typer.Option(min=1, max=MOST, help="Timings of each method, of which the shortest counts.")] = 5,
    threads: Annotated[int | None, typer.Option(min=1, max=4096, help="Threads; all cores by default.")] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Also say where the time of a step goes.")] = False,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", callback=named, help="Folder for speed.json, speed.md and speed.png.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure gradients: time beside plain backprop, speed beside the machine's peak, memory, and how true they are."""
    if profile and as_json:
        raise UserError("--profile shows tables, which --json has no room for: leave out one of them.")
    with notes.status("Loading torch …"):
        from ffebm.experiment.benchmark.command import run_benchmark

    rows = run_benchmark(
        nets or [],
        everything=everything,
        trained=trained,
        runs=runs or [],
        data=data,
        quality=quality,
        rounds=rounds,
        threads=threads,
        profile=profile,
        output=output,
        out=notes if as_json else out,
        notes=notes,
    )
    if as_json:
        print_json([asdict(row) for row in rows])
