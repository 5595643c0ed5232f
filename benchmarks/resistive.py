"""What a relaxation of a deep resistive network costs beside the matrix products that it cannot avoid.

Writes a Markdown file:

    python benchmarks/resistive.py [--out results/resistive.md]

Run it on an idle machine, on one thread: OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch

from ffebm import Conductance, EnergyBlock, EquilibriumPropagation, FixedPoint, Resistive
from ffebm.experiment.allocator import keep_freed_memory

SWEEPS, NUDGED = 6, 4  # of the preset
REPEATS = 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/resistive.md"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    keep_freed_memory()
    lines = [
        "## What a relaxation of a deep resistive network costs",
        "",
        "Made by `python benchmarks/resistive.py`: milliseconds on one thread, the fastest of "
        f"{REPEATS} times. A free phase of {SWEEPS} sweeps,",
        "beside its matrix products alone: one with the input, as it is and inverted at once, and two a sweep for every other",
        f"crossbar. A step is the free phase, two nudged phases of {NUDGED} sweeps, and the gradient; its products are the one",
        "with the input, twice, those of the sweeps, and one or two a crossbar for the gradient. No optimiser.",
        f"torch {torch.__version__}, {platform.machine()}.",
        "",
        "| net | batch | free phase | its products | ratio | step | its products | ratio |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for sizes in ((784, 1024, 10), (784, 1024, 1024, 10), (784, 1024, 1024, 1024, 10)):
        for batch in (32, 128, 512):
            lines.append(row(sizes, batch))
            print(lines[-1], flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("\n".join(lines) + "\n")
    print(f"Wrote {args.out}.")


def row(sizes: tuple[int, ...], batch: int) -> str:
    crossbars = [Conductance(below, above, doubled=number == 0) for number, (below, above) in enumerate(pairwise(sizes))]
    energy = Resistive(crossbars, input="voltage", input_gain=480.0)
    free = FixedPoint(SWEEPS)
    nudged = EquilibriumPropagation(FixedPoint(NUDGED, order="output-first"), beta=0.5)
    block = EnergyBlock(energy, free, nudged, unsettled="ignore")
    x, error = torch.rand(batch, sizes[0]), torch.randn(batch, sizes[-1])
    layers = [torch.rand(batch, size) for size in sizes]
    weights = [torch.rand(above, below) for below, above in pairwise(sizes)]

    def input_product() -> None:
        torch.mm(layers[0], weights[0].T)

    def sweep() -> None:
        for number, weight in enumerate(weights[1:], 1):
            torch.mm(layers[number], weight.T)
            torch.mm(layers[number + 1], weight)

    def gradient() -> None:
        torch.mm(layers[1].T, layers[0])
        for number in range(1, len(weights)):
            for _ in range(2):
                torch.mm(layers[number + 1].T, layers[number])

    def step() -> None:
        block.zero_grad()
        (block(x) * error).sum().backward()

    with torch.no_grad():
        one, two, three = fastest(input_product), fastest(sweep), fastest(gradient)
        relaxation = fastest(lambda: free(energy, x))
    alone, whole = one + SWEEPS * two, fastest(step)
    products = 2 * one + (SWEEPS + 2 * NUDGED) * two + three
    name = "–".join(map(str, sizes))
    return (
        f"| {name} | {batch} | {1e3 * relaxation:.2f} | {1e3 * alone:.2f} | {relaxation / alone:.2f} "
        f"| {1e3 * whole:.2f} | {1e3 * products:.2f} | {whole / products:.2f} |"
    )


def fastest(run: Callable[[], object]) -> float:
    """The processor's seconds of the fastest of several times."""
    run()
    times = []
    for _ in range(REPEATS):
        begun = time.process_time()
        run()
        times.append(time.process_time() - begun)
    return min(times)


if __name__ == "__main__":
    main()
