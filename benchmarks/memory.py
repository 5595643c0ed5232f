"""What a training gradient keeps in memory, by EP and by the others, as sweeps get more.

Counts the bytes of all tensors alive at the worst moment, for the 12-layer net at an eighth of its width and batch 128, beside
what inference and the gradients themselves need. Writes results/memory.md.

    python benchmarks/memory.py
"""

from __future__ import annotations

from pathlib import Path

from rich.progress import track

from ffebm.experiment.benchmark import Net, Schedule, inference_memory
from ffebm.experiment.benchmark.speed import memory
from ffebm.experiment.environment import describe_environment
from ffebm.relaxation import relaxation

RESULT = Path(__file__).parent.parent / "results" / "memory.md"
NET = Net("conv12", 0.125, 128)
NAMES = {
    "ep": "equilibrium propagation",
    "id": "implicit differentiation",
    "recurrent-backprop": "recurrent backprop",
    "bptt": "backprop through time",
}
ROWS = (
    ("ep", 20, 5),
    ("ep", 20, 20),
    ("ep", 80, 80),
    ("recurrent-backprop", 20, 20),
    ("id", 20, 5),
    ("id", 20, 20),
    ("bptt", 20, 0),
)


def main() -> None:
    relaxation.STANDSTILL = -1  # all sweeps, also those that change nothing
    place = describe_environment(seed=0)
    least = inference_memory(NET)
    lines = [
        "## What a gradient keeps in memory",
        "",
        f"Made by `make bench-memory` at {place['commit'][:10]}, {place['time'][:10]}, torch {place['packages']['torch']}:",
        f"{NET.label}; all tensors alive at the worst moment.",
        f"Inference, with weights and as many bytes for their gradients, needs {least / 2**20:.0f} MiB.",
        "`recompute` runs digital stages twice instead of remembering them.",
        "",
        "| gradient | free sweeps | nudged, recorded or adjoint ones | MiB | × inference | with recompute | × inference |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, free, after in track(ROWS, "Counting", transient=True):
        (method,) = Schedule(free, after or 1).methods("", [kind])
        sizes = [memory(NET, method, recompute=recompute) for recompute in (False, True)]
        shown = " | ".join(f"{size / 2**20:.0f} | {size / least:.2f}" for size in sizes)
        lines.append(f"| {NAMES[kind]} | {free} | {after or '–'} | {shown} |")
    RESULT.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
