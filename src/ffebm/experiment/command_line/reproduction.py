"""`ffebm reproduce`: section 4 of the paper, one command for each figure and table."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape

from ffebm.checks import brief_name
from ffebm.experiment.command_line.console import MOST, DataOption, examples, named, notes, out
from ffebm.experiment.errors import UserError

if TYPE_CHECKING:
    from ffebm.experiment.queue import Launcher

__all__ = [
    "DevicesOption",
    "GradientsOption",
    "JobsOption",
    "KeepOption",
    "OutputOption",
    "OverridesArgument",
    "PrintOption",
    "RayOption",
    "RowsOption",
    "ScaleName",
    "ScaleOption",
    "SeedsOption",
    "StaticScaleOption",
    "launcher",
    "scaling",
    "split",
    "static",
]
__dir__ = __all__.copy

ScaleName = Literal["paper", "converged", "tiny"]
ScaleOption = Annotated[
    ScaleName,
    typer.Option(help="paper: the full recipe. converged: an eighth of the width, a day. tiny: minutes, generated images."),
]
StaticScaleOption = Annotated[
    ScaleName,
    typer.Option(help="paper: full width. converged: an eighth of it. tiny: a thirty-second, a path through everything."),
]
OverridesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]…", help="Settings of every run besides the scale's own.")
]
SeedsOption = Annotated[int | None, typer.Option(min=1, max=1000, help="Runs of each kind; the scale's own number by default.")]
RowsOption = Annotated[list[str] | None, typer.Option("--row", metavar="PRESET", help="Only this row; may be repeated.")]
GradientsOption = Annotated[
    list[str] | None,
    typer.Option("--gradient", metavar="ep|id|bp", help="Only by this gradient; may be repeated. bp: plain backprop."),
]
JobsOption = Annotated[int | None, typer.Option(min=1, max=4096, help="Runs at once; by default one a device, or one a core.")]
DevicesOption = Annotated[str | None, typer.Option(metavar="0,1,…", help="CUDA devices to share out among runs; else all.")]
RayOption = Annotated[
    str | None, typer.Option("--ray", metavar="ADDRESS", help="Use this Ray cluster; auto for ours, local to make one here.")
]
PrintOption = Annotated[bool, typer.Option("--print", help="Only print one command for each run, for any scheduler.")]
KeepOption = Annotated[
    Path | None,
    typer.Option(
        "--keep",
        metavar="DIR",
        callback=named,
        help="Keep every finished run here, too, small enough for a repository; runs that are here already need not be made.",
    ),
]
OutputOption = Annotated[Path | None, typer.Option(metavar="DIR", callback=named, help="Folder for runs and report.")]


@examples(
    "ffebm reproduce static --small                     # in under a minute",
    "ffebm reproduce static --data ~/data               # at full width",
    "ffebm reproduce static --run runs/mine             # on trained weights",
)
def static(
    run: Annotated[
        Path | None, typer.Option(metavar="RUN", callback=named, help="A trained run, instead of the paper's net.")
    ] = None,
    scale: StaticScaleOption = "paper",
    small: Annotated[bool, typer.Option("--small", help="The same as --scale converged: an eighth of the width.")] = False,
    data: DataOption = None,
    seed: Annotated[int, typer.Option(min=0, max=MOST, help="Of weights, images, and the weights shown.")] = 0,
    output: OutputOption = None,
) -> None:
    """Compare EP with ID step by step, in every layer (Figs. 3 and 4): PNG, SVG, JSON and a report."""
    chosen = "converged" if small else scale
    if run is not None and chosen != "paper":
        raise UserError("A run has its own width: leave out either --run, or --scale and --small.")
    if run is None and chosen == "tiny" and data is not None:
        raise UserError("The tiny scale makes images of its own, and reads none from --data: leave it out, or take --small.")
    with notes.status("Loading torch …"):
        from ffebm.experiment.report import write_report
        from ffebm.experiment.reproduction.static import analyse_initial, analyse_run, save_static
        from ffebm.experiment.run import Run

    folder = output or Path("runs") / ("static" if run is None else f"static-{run.name}")
    with notes.status("Relaxing, nudging, and recording …"):
        found = analyse_initial(chosen, data, seed) if run is None else analyse_run(Run.open(run), data, seed)
    save_static(found, folder)
    write_report(folder, f"Static analysis: {found.title}", static=[found])
    out.print(
        f"{escape(found.title)}; {escape(found.samples)}\n"
        f"smallest cosine:             [bold]{found.worst.cosine:.5f}[/] ({found.worst.name})\n"
        f"largest relative deviation:  [bold]{found.deviation:.2e}[/] at any step of any layer\n"
        f"figures, numbers, report:    {escape(str(folder))}",
        soft_wrap=True,
    )


def _table(name: str, words: str) -> Callable[..., None]:
    """The command that re-makes a table of the paper."""

    def command(
        overrides: OverridesArgument = None,
        scale: ScaleOption = "paper",
        seeds: SeedsOption = None,
        row: RowsOption = None,
        gradient: GradientsOption = None,
        data: DataOption = None,
        jobs: JobsOption = None,
        devices: DevicesOption = None,
        ray: RayOption = None,
        printed: PrintOption = False,
        keep: KeepOption = None,
        output: OutputOption = None,
    ) -> None:
        from ffebm.experiment.reproduction.experiments import EXPERIMENTS, SCALES, prepare_data

        experiment, folder = EXPERIMENTS[name], output or Path("runs") / f"{name}-{scale}"
        try:
            cells = experiment.cells(scale, seeds, row or [], given := _checked(overrides or []), gradient or [])
        except ValueError as error:
            raise UserError(str(error)) from None
        for cell in cells:
            cell.check(folder)  # before anything is begun
        data = prepare_data(scale, cells, folder, data)
        if printed:
            for cell in cells:
                sys.stdout.write(cell.command(folder.absolute(), None if data is None else data.absolute()) + "\n")
            return
        with notes.status("Loading torch …"):
            from ffebm.experiment.queue import Queue, Store
            from ffebm.experiment.report.reproduced import report_experiment

        store = None if keep is None else Store(keep)
        queue = Queue(cells, folder, launcher(jobs, devices, ray), data, store=store, checked=SCALES[scale].checked)
        whole = queue.run(notes)
        text = report_experiment(
            experiment,
            scale,
            cells,
            folder,
            overrides=given,
            data=data,
            failures=queue.failures,
            look_closer=whole,
            notes=notes,
        )
        out.print(text, markup=False, soft_wrap=True)
        out.print(f"Report: {folder / 'report.html'}", soft_wrap=True, markup=False)
        if not whole:
            notes.print("Interrupted; the same command goes on from here.", highlight=False)
            raise typer.Exit(130)
        if queue.failures:
            raise UserError(f"{len(queue.failures)} of {len(cells)} runs failed; the same command tries them again.")

    command.__name__, command.__doc__ = name, words
    return command


split = examples(
    "ffebm reproduce split --scale tiny                 # a path through everything, in minutes",
    "ffebm reproduce split --scale converged --data ~/data",
    "ffebm reproduce split --scale converged --data ~/data --row cifar10-l12-bs2 --gradient ep --seeds 3",
    "ffebm reproduce split --scale converged --data ~/data --jobs 2 --keep results/reproduce/split/runs",
    "ffebm reproduce split --scale converged --data ~/data trainer.epochs=2 --output runs/shorter",
    "ffebm reproduce split --data ~/data --devices 0,1,2,3",
    "ffebm reproduce split --print --data ~/data        # one command for each run",
)(_table("split", "Train the same layers in blocks of different sizes, by EP and by ID (Table 1)."))

scaling = examples(
    "ffebm reproduce scaling --scale tiny               # a path through everything, in minutes",
    "ffebm reproduce scaling --scale converged --data ~/data",
    "ffebm reproduce scaling --data /shared/data --ray auto --output /shared/scaling",
)(_table("scaling", "Train 12 and 15 layers on CIFAR-100 and ImageNet32, by EP and by ID (Table 2)."))


def _checked(overrides: list[str]) -> list[str]:
    """Settings that may be the same in every run."""
    columns = "they are the table's columns, and --gradient chooses some"
    instead = {"seed": "--seeds says how many", "gradient.kind": columns, "data.root": "give --data"}
    for override in overrides:
        key = override.partition("=")[0].strip()
        if key in instead:
            raise UserError(f"`{brief_name(override)}` cannot be set for a whole table: {instead[key]}.")
    return overrides


def launcher(jobs: int | None, devices: str | None, ray: str | None) -> Launcher:
    from ffebm.experiment.queue import LocalProcesses, RayCluster

    if ray is not None:
        if jobs is not None or devices is not None:
            raise UserError("With --ray the cluster itself decides how many runs go at once: leave --jobs and --devices out.")
        return RayCluster(ray)
    return LocalProcesses(jobs, [device.strip() for device in devices.split(",")] if devices else _devices())


def _devices() -> list[str]:
    """All CUDA devices, by the names that this process knows them by."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    count = torch.cuda.device_count()
    return [device.strip() for device in named.split(",")][:count] if named else [str(i) for i in range(count)]
