"""A circuit learns two moons, and a circuit simulator settles it: training end to end through ngspice.

The same net learns three times, from the same start: in torch, in a simulated device that another process works, and in
ngspice. All of them make the same gradients, so the three curves are one. Run it with

    python examples/physical_training.py [--epochs 12] [--samples 256] [--hidden 16] [--output moons.png]

ngspice is a program of its own: `apt install ngspice`. `--quick` takes seconds; `--without-ngspice` leaves it out.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import torch
from rich.console import Console
from rich.progress import track
from sklearn.datasets import make_moons
from torch import Tensor, nn

from ffebm import (
    FFEBM,
    AnalogBlock,
    Conductance,
    EnergyBlock,
    EquilibriumPropagation,
    Exponential,
    FixedPoint,
    Resistive,
    Scale,
    SystemBlock,
)
from ffebm.hardware import NgspiceDriver, Physical, ProcessDriver, SimulatedDriver, serve

SETTLE = FixedPoint(2000, tolerance=1e-7)
LEARN = EquilibriumPropagation(SETTLE, beta=0.05)
console = Console()


def circuit(hidden: int) -> Resistive:
    """2 inputs, held as ±x · 16 V; a layer of Schottky diodes, BAT42; amplifiers behind it; 2 outputs."""
    torch.manual_seed(0)
    crossbars = [Conductance(2, hidden, doubled=True), Conductance(hidden, 2)]
    diode, scale = Exponential(saturation=1e-7, ideality=1.1), Scale(siemens=1e-3, volts=4.0)
    return Resistive(crossbars, input="voltage", input_gain=4.0, gain=(4.0, 1.0), diode=diode, scale=scale)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--samples", type=int, default=256, help="to learn from; as many others test")
    parser.add_argument("--hidden", type=int, default=16, help="nodes with a diode")
    parser.add_argument("--output", type=Path, help="a picture of what was learnt")
    parser.add_argument("--quick", action="store_true", help="1 epoch of 32 samples with 4 hidden nodes")
    parser.add_argument("--without-ngspice", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.quick:
        args.epochs, args.samples, args.hidden = 1, 32, 4
    if args.serve:  # this is the other process
        torch.set_num_threads(1)
        serve(SimulatedDriver(circuit(args.hidden).double(), SETTLE))
        return

    losses: dict[str, list[float]] = {}
    last = "in another process" if args.without_ngspice else "in ngspice"
    for name, block in blocks(args.hidden, not args.without_ngspice):
        x, y = moons(args.samples, seed=0)
        model = FFEBM([nn.Identity()], [block], nn.Linear(2, 2), nudge="stationary").double()
        began = time.perf_counter()
        losses[name] = train(model, x, y, args.epochs, name)
        seconds = time.perf_counter() - began
        right = accuracy(model, *moons(args.samples, seed=1))
        console.print(f"{name:24} loss {losses[name][-1]:.4f}, test accuracy {right:.1%}, {seconds:.0f} s")
        if args.output is not None and name == last:  # while the device is there
            draw(losses, model, moons(args.samples, seed=1), args.output)
    first = losses["in torch"]
    apart = max(abs(a - b) for each in losses.values() for a, b in zip(each, first, strict=True))
    console.print(f"The losses of all steps differ by {apart:.1e} at most.")


def blocks(hidden: int, with_ngspice: bool) -> Iterator[tuple[str, AnalogBlock]]:
    """The same circuit, settled by different means; devices are let go of when the next one comes."""
    yield "in torch", EnergyBlock(circuit(hidden).double(), SETTLE, LEARN)
    energy = circuit(hidden).double()
    with ProcessDriver([sys.executable, __file__, "--serve", "--hidden", str(hidden)]) as driver:
        yield "in another process", SystemBlock(Physical(driver, energy), LEARN)
    if with_ngspice:
        energy = circuit(hidden).double()
        with NgspiceDriver(energy) as driver:
            yield "in ngspice", SystemBlock(Physical(driver, energy), LEARN)


def moons(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    x, y = make_moons(samples, noise=0.1, random_state=seed)
    return torch.from_numpy(x) - torch.tensor([0.5, 0.25]), torch.from_numpy(y).long()


def train(model: FFEBM, x: Tensor, y: Tensor, epochs: int, name: str) -> list[float]:
    """The loss of every step."""
    generator = torch.Generator().manual_seed(0)
    optimiser = torch.optim.Adam(model.parameters(), 0.05)
    batches = [batch for _ in range(epochs) for batch in torch.randperm(len(x), generator=generator).split(32)]
    losses = []
    for batch in track(batches, f"{name:24}", console=console, transient=True, disable=not console.is_terminal):
        loss = model(x[batch], y[batch]).losses.mean()
        optimiser.zero_grad()
        loss.backward()  # two nudged phases in the device, for every sample of the batch
        optimiser.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def accuracy(model: FFEBM, x: Tensor, y: Tensor) -> float:
    return (model(x).logits.argmax(1) == y).double().mean().item()


@torch.no_grad()
def draw(losses: dict[str, list[float]], model: FFEBM, test: tuple[Tensor, Tensor], path: Path) -> None:
    """Curves of the losses, and where the device draws the line."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    with mpl.rc_context({"svg.hashsalt": "ffebm", "axes.spines.top": False, "axes.spines.right": False, "font.size": 10}):
        figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), width_ratios=(1, 1.1), layout="constrained")
        for (name, values), (width, color) in zip(
            losses.items(), ((7, "#c6dbef"), (3.5, "#6baed6"), (1, "#08306b")), strict=False
        ):
            left.plot(range(1, 1 + len(values)), values, lw=width, color=color, label=name)
        left.set(xlabel="step", ylabel="loss of the batch", ylim=(0, None), title="One net, settled by three means")
        left.legend(frameon=False)
        x, y = test
        columns, rows = torch.linspace(-2.2, 2.2, 45), torch.linspace(-1.4, 1.4, 29)
        grid = torch.cartesian_prod(rows, columns).flip(1).double()
        chances = model(grid).logits.softmax(1)[:, 1].view(len(rows), len(columns))
        shown = right.contourf(columns, rows, chances, levels=20, cmap="RdBu", vmin=-0.5, vmax=1.5)
        right.contour(columns, rows, chances, levels=[0.5], colors="black", linewidths=1)
        right.scatter(*x.T, c=y, cmap="RdBu", edgecolors="white", linewidths=0.6, s=22)
        right.set(title=f"Learnt {list(losses)[-1]}, with test samples", xlabel="first input", ylabel="second input")
        figure.colorbar(shown, label="chance of the lower moon", ticks=[0, 0.5, 1])
        figure.savefig(path, dpi=110)
    console.print(f"Picture: {path}")


if __name__ == "__main__":
    main()
