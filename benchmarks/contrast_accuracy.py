"""What the contrast of equilibrium propagation keeps in float32: energies subtracted, against states subtracted first.

The same two nudged states, found in float32; the reference contrasts them in float64. Writes a Markdown file:

    python benchmarks/contrast_accuracy.py [--out results/contrast_accuracy.md]
"""

from __future__ import annotations

import argparse
import platform
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ffebm import (
    Convolution,
    Dense,
    Energy,
    EquilibriumPropagation,
    FixedPoint,
    Hopfield,
    MaxPool,
    Phase,
    Simulated,
    State,
    clamp,
    identity,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/contrast_accuracy.md"))
    args = parser.parse_args()
    torch.manual_seed(0)
    nets = {
        "dense, 256–128, batch 64": (Hopfield([Dense(256, 128)], [clamp(0.5), identity()]), (64, 256)),
        "16 channels, 16 × 16, batch 16": (conv(16), (16, 16, 16, 16)),
        "64 channels, 32 × 32, batch 8": (conv(64), (8, 64, 32, 32)),
        "64 channels, 32 × 32, max-pooled, batch 8": (conv(64, MaxPool()), (8, 64, 32, 32)),
    }
    lines = [
        "## What the contrast keeps in float32",
        "",
        "Made by `python benchmarks/contrast_accuracy.py`: relative error of the weights' gradient, by subtracting energies",
        "and by subtracting states before they are multiplied, against the contrast of the same states in float64.",
        f"torch {torch.__version__}, {platform.machine()}.",
        "",
        "| block | β | energies subtracted | states subtracted | ratio |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, (energy, shape) in nets.items():
        for beta in (0.2, 0.02):
            plain, ours = errors(energy, torch.randn(shape), beta)
            lines.append(f"| {name} | {beta:g} | {plain:.1e} | {ours:.1e} | {plain / ours:.0f} |")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def conv(channels: int, pool: MaxPool | None = None) -> Hopfield:
    return Hopfield([Convolution(channels, channels, padding=1, pool=pool)], [clamp(0.5), identity()])


def errors(energy: Energy, x: Tensor, beta: float) -> tuple[float, float]:
    """Of subtracting energies, and of subtracting states."""
    estimator = EquilibriumPropagation(FixedPoint(40, order="output-first"), beta=beta)
    system = Simulated(energy, FixedPoint(100))
    (free,) = system.settle(x, [Phase()])
    error = torch.randn_like(free.state[system.output_layer])
    high, low = replace(estimator, hold_pooling=False).trial_by_error(system, x, free.state, error).read()

    def weight_gradient(energy: Energy, x: Tensor, high: State, low: State, naive: bool) -> Tensor:
        contrast = Energy.contrast_gradient if naive else type(energy).contrast_gradient
        return contrast(energy, high, low, x, x.new_ones(len(x)))[1]["interactions.0.weight"].double()

    wide = tuple(s.double() for s in high), tuple(s.double() for s in low)
    truth = weight_gradient(deepcopy(energy).double(), x.double(), *wide, naive=False)
    plain, ours = (weight_gradient(energy, x, high, low, naive) for naive in (True, False))
    return tuple(((g - truth).norm() / truth.norm()).item() for g in (plain, ours))  # pyright: ignore[reportReturnType]


if __name__ == "__main__":
    main()
