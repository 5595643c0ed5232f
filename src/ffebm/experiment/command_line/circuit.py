"""`ffebm circuit export` and `check`: blocks as electrical circuits."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from ffebm.experiment.command_line.console import (
    MOST,
    DataOption,
    JsonOption,
    ModelArgument,
    examples,
    named,
    notes,
    out,
    print_json,
    print_table,
)
from ffebm.experiment.errors import UserError
from ffebm.experiment.places import SETTINGS, check_is_run, find_data

__all__ = ["check", "export"]
__dir__ = __all__.copy

IdealityOption = Annotated[
    float,
    typer.Option(
        "--ideality",
        min=1e-6,
        max=100,
        help="Of the diodes that stand in for ideal ones: voltages differ in proportion to it. A silicon diode has about 1.",
    ),
]


@examples(
    "ffebm circuit export runs/mine --block 1",
    "ffebm circuit export runs/mine --block 2 --sample 7 --output seven.cir && ngspice -b seven.cir",
    "ffebm circuit export runs/mine --block 1 --ideality 1",
)
def export(
    run: ModelArgument,
    block: Annotated[int, typer.Option(min=1, max=MOST, help="Which block, from 1.")],
    sample: Annotated[int, typer.Option(min=0, max=MOST, help="Test image at the input of the model, from 0.")] = 0,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", callback=named, help="The netlist; by default block-K.cir, here."),
    ] = None,
    ideality: IdealityOption = 1e-4,
    data: DataOption = None,
) -> None:
    """Write a block as a netlist for SPICE, with what one test image puts at its input.

    It has resistors, diodes, current sources for biases and nudges, and controlled sources for amplifiers. Comments say what
    everything is for. `ngspice -b FILE` prints the voltages of all nodes, which are the states of the block.
    """
    _check_there(run, data)
    with notes.status("Loading torch …"):
        from ffebm.experiment.circuits import export_circuit
        from ffebm.experiment.run import Run

    path = Path(f"block-{block}.cir") if output is None else output
    circuit = export_circuit(Run.open(run), block, sample, path, ideality, data)
    nodes, parts = sum(1 for _ in circuit.nodes), sum(1 for _ in circuit.parts)
    solve = f"ngspice -b {shlex.quote(str(path))}"
    out.print(escape(f"{path}: {nodes:,} nodes, {parts:,} parts. Solve it by `{solve}`."), soft_wrap=True)


@examples(
    "ffebm circuit check runs/mine",
    "ffebm circuit check runs/mine --samples 20 --tolerance 0.001",
    "ffebm circuit check runs/mine --ideality 1",
    "ffebm circuit check runs/mine --json | jq '.blocks[].agreement.cosine'",
)
def check(
    run: ModelArgument,
    samples: Annotated[int, typer.Option(min=1, max=10_000, help="How many test images to solve for.")] = 5,
    tolerance: Annotated[
        float, typer.Option(min=0, max=1, help="By how large a part of the largest voltage of a block any may differ.")
    ] = 0.01,
    cosine: Annotated[
        float, typer.Option(min=-1, max=1, help="What the cosine of a parameter's gradient may be at least.")
    ] = 0.999,
    ideality: IdealityOption = 1e-4,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let ngspice judge the blocks of a run: solve their circuits free and nudged, and compare voltages and gradients.

    The gradient is that of equilibrium propagation in ngspice, by the difference of nudged voltages; it is held against the one
    that the block computes in training. Blocks without a circuit are passed over. Exits with 1 where a block and its circuit
    differ by more than `--tolerance` and `--cosine` allow.
    """
    _check_there(run, data)
    with notes.status("Loading torch …"):
        from ffebm.experiment.circuits import check_circuits
        from ffebm.experiment.run import Run

    with notes.status("Solving …") as status:
        found = check_circuits(
            Run.open(run),
            samples,
            ideality,
            data,
            lambda done, blocks: status.update(f"Solving block {done + 1} of {blocks} …"),
        )
    if all(each.agreement is None for each in found):
        raise UserError(f"No block of {run} has a circuit that could be solved. Block 1: {found[0].reason}")
    good = [
        each.agreement is None or (each.agreement.relative <= tolerance and each.agreement.cosine >= cosine) for each in found
    ]
    if as_json:
        blocks = [
            {**asdict(each), "agrees": None if each.agreement is None else fine} for each, fine in zip(found, good, strict=True)
        ]
        print_json({"run": str(run), "samples": samples, "ideality": ideality, "agrees": all(good), "blocks": blocks})
    else:
        table = Table("block", "energy", title=f"{escape(run.name)}: {samples} test images, diodes of ideality {ideality:g}")
        for column in ("parts", "volts", "free", "nudged", "cosine", ""):
            table.add_column(column, justify="right")
        for each, fine in zip(found, good, strict=True):
            head, agreed = (str(each.block), each.energy), each.agreement
            if agreed is None:
                table.add_row(*head, "–", "–", "–", "–", "–", "not solved")
                continue
            volts = [f"{each.volts * state:.3g}" for state in (agreed.size, agreed.free, agreed.nudged)]
            verdict = "[green]agrees[/]" if fine else "[red]differs[/]"
            table.add_row(*head, f"{each.parts:,}", *volts, f"{agreed.cosine:.6f}", verdict)
        print_table(table)
        for each in found:
            if each.reason:
                out.print(f"Block {each.block}: {escape(each.reason)}", soft_wrap=True)
        out.print("volts: the largest in the block; free, nudged: by how much any differs in ngspice", soft_wrap=True)
        out.print("cosine: of the gradient by ngspice to the block's, of the parameter with the smallest", soft_wrap=True)
    if not all(good):
        bad = ", ".join(str(each.block) for each, fine in zip(found, good, strict=True) if not fine)
        raise UserError(
            f"Block {bad} and its circuit differ by more than {100 * tolerance:g} % of the largest voltage, or have a cosine "
            f"below {cosine:g}. An ideality nearer to 0 makes diodes more ideal; more sweeps (`relaxation.steps`) settle "
            "the block."
        )


def _check_there(run: Path, data: Path | None) -> None:
    """Before torch is loaded, which takes seconds."""
    from ffebm.experiment.settings import read_settings

    check_is_run(run)
    known = read_settings(run / SETTINGS).data
    find_data(known.name, data or known.root)
