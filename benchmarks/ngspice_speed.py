"""How long ngspice takes for the circuits of blocks, by how samples are dealt out, into results/circuits/speed.md.

python benchmarks/ngspice_speed.py [--samples 64] [--rounds 3]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from ffebm import Conductance, Exponential, Resistive, Scale
from ffebm.hardware import NgspiceDriver, solve
from ffebm.hardware.physical.parameters import parameters_of

NETS = ((2, 16, 2), (16, 16, 10), (64, 32, 10), (64, 128, 10))
Way = Callable[[Resistive, Tensor], object]


def dealt_to(processes: int) -> Way:
    def settle(energy: Resistive, x: Tensor) -> None:
        with NgspiceDriver(energy, processes=processes) as driver:
            driver.program(parameters_of(energy))
            driver.set_input(x)
            driver.apply_nudge([])
            driver.settle()

    return settle


def one_by_one(energy: Resistive, x: Tensor) -> None:
    circuit = energy.circuit(tuple(x.shape[1:]))
    for row in x.tolist():
        solve(circuit, [circuit.values(row)])


WAYS: dict[str, Way] = {"a process for each": one_by_one, "one process": dealt_to(1), "two at once": dealt_to(2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3, help="of which the fastest counts")
    parser.add_argument("--output", type=Path, default=Path("results/circuits/speed.md"))
    args = parser.parse_args()
    lines = [
        "# Operating points by ngspice",
        "",
        f"Milliseconds for each of {args.samples} samples: silicon diodes, A = 4, B = 1, two cores, best of {args.rounds}.",
        "",
        f"| nodes | resistors | {' | '.join(WAYS)} |",
        f"| --- | ---: | {' | '.join('---:' for _ in WAYS)} |",
    ]
    for net in NETS:
        energy = network(net)
        x = torch.randn(args.samples, net[0], dtype=torch.float64)
        times = [min(timed(way, energy, x) for _ in range(args.rounds)) for way in WAYS.values()]
        resistors = sum(link.crossbar.weight.numel() for link in energy.links)
        cells = " | ".join(f"{1e3 * seconds / args.samples:.2f}" for seconds in times)
        lines.append(f"| {' – '.join(map(str, net))} | {resistors:,} | {cells} |")
        print(lines[-1], flush=True)
    lines += ["", "Made by `python benchmarks/ngspice_speed.py`.", ""]
    args.output.write_text("\n".join(lines))


def network(net: Sequence[int]) -> Resistive:
    torch.manual_seed(0)
    crossbars = [Conductance(a, b, doubled=layer == 0) for layer, (a, b) in enumerate(pairwise(net))]
    return Resistive(crossbars, input="voltage", gain=(4.0, 1.0), diode=Exponential(), scale=Scale(siemens=1e-3)).double()


def timed(way: Way, energy: Resistive, x: Tensor) -> float:
    began = time.perf_counter()
    way(energy, x)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
