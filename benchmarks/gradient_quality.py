"""How close equilibrium propagation comes to the true gradient: against β, its scale, and the pooling.

Two nets learn scikit-learn's digits for an epoch; at the weights they reach, the gradient by EP in float32 is compared with
the fully converged adjoint in float64. Every number is the smallest cosine over all parameters. Writes a Markdown file:

    python benchmarks/gradient_quality.py [--out results/gradient_quality.md]
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import torch
from rich.progress import track
from torch import Tensor

from ffebm import (
    FFEBM,
    AveragePool,
    ConvLayer,
    DenseLayer,
    EquilibriumPropagation,
    FixedPoint,
    MaxPool,
    RecurrentBackprop,
    SoftPool,
    build,
    identity,
)
from ffebm.builder import Layer
from ffebm.diagnostics import converged_gradients, cosines, gradients
from ffebm.errors import UnsettledError
from ffebm.experiment.data import digits
from ffebm.gradient.equilibrium_propagation import Scale
from ffebm.pooling import Pool

BETAS = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 1e-3, 1e-4, 1e-5)
SAMPLES = 128
SETTLE = FixedPoint(300, tolerance=1e-6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/gradient_quality.md"))
    args = parser.parse_args()
    torch.set_num_threads(1)  # these nets are too small for threads to pay
    lines = [
        "## How close equilibrium propagation comes to the true gradient",
        "",
        "Made by `python benchmarks/gradient_quality.py`: the smallest cosine over all parameters between the gradient of EP",
        "(float32, centered, free sweeps until no unit moves by 1e-6 or 300 of them, 60 nudged sweeps) and the fully converged",
        f"adjoint (float64), on nets that learned digits for one epoch. torch {torch.__version__}, {platform.machine()}.",
        "",
        *scales(),
        "",
        *poolings(),
        "",
        *stopping(),
    ]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def scales() -> list[str]:
    """Both scales of β under a loss that is averaged, and one that is multiplied or divided by 1024."""
    model, x, y = trained([ConvLayer(16), ConvLayer(16), ConvLayer(32, pool=MaxPool()), ConvLayer(32)])
    truth = converged_gradients(model, x, y)
    cells: list[tuple[Scale, float]] = [(scale, factor) for scale in ("unit", "paper") for factor in (1.0, 1024.0, 1 / 1024)]
    header = [
        f"{scale}, loss {'×' if factor > 1 else '÷'} 1024" if factor != 1 else f"{scale}, mean loss" for scale, factor in cells
    ]
    rows = [
        [f"{beta:g}", *(f"{quality(model, x, y, truth, beta, scale, factor):.4f}" for scale, factor in cells)]
        for beta in track(BETAS, "scales of β", transient=True)
    ]
    return [
        "### The two scales of β",
        "",
        "Two blocks of two layers, pooling in the stage between them, stationary nudges in both blocks. `unit` brings each",
        "sample's error to norm 1; `paper` takes β times the gradient of the per-sample loss, and so depends on the factor.",
        "",
        *markdown(["β", *header], rows),
    ]


def poolings() -> list[str]:
    """Pooling in a stage against pooling inside a block."""
    places: dict[str, Callable[[], list[Layer]]] = {
        "max, in the stage": lambda: pooled(None, MaxPool()),
        "max, in the block": lambda: pooled(MaxPool(), None),
        "average, in the block": lambda: pooled(AveragePool(), None),
        "soft, in the block": lambda: pooled(SoftPool(), None),
    }
    rows = []
    for name, layers in track(list(places.items()), "poolings", transient=True):
        model, x, y = trained(layers())
        model(x)
        residual = max(block.residual.max().item() for _, block in model.chain if block.residual is not None)
        betas = (0.2, 0.05, 0.01)
        try:
            truth = converged_gradients(model, x, y)
            cells = [f"{quality(model, x, y, truth, beta):.4f}" for beta in betas]
        except UnsettledError:
            cells = ["–"] * len(betas)
        rows.append([name, f"{residual:.0e}", *cells])
    return [
        "### Where to pool",
        "",
        "Two blocks of two layers with one pooling, scale `unit`. The residual is the largest change of any unit in the last",
        "free sweep. With max-pooling inside a block some samples never settle, but flip between pooling positions: there is",
        "no equilibrium then, and no true gradient to compare with.",
        "",
        *markdown(["pooling", "residual", "β = 0.2", "β = 0.05", "β = 0.01"], rows),
    ]


def stopping() -> list[str]:
    """A number of nudged sweeps against a tolerance, from a free phase that has settled and from one that has not."""
    model, x, y = trained([ConvLayer(16), ConvLayer(16), ConvLayer(32, pool=MaxPool()), ConvLayer(32)])
    truth = converged_gradients(model, x, y)
    frees = {"5 sweeps": FixedPoint(5, omega=1.1), "settled": SETTLE}
    rules = {
        "2 sweeps": FixedPoint(2, order="output-first", omega=1.1),
        "3 sweeps": FixedPoint(3, order="output-first", omega=1.1),
        "5 sweeps": FixedPoint(5, order="output-first", omega=1.1),
        **{
            f"tolerance {tolerance:g} β": FixedPoint(60, order="output-first", omega=1.1, tolerance=tolerance)
            for tolerance in (0.1, 0.03, 0.01, 0.001)
        },
    }
    rows = []
    for name, relax in track(list(rules.items()), "stopping", transient=True):
        cells = []
        for free in frees.values():
            net = deepcopy(model).use(EquilibriumPropagation(relax, beta=0.02), free)
            cells.append(f"{min(cosines(gradients(net, x, y), truth).values()):.4f}")
        rows.append([name, *cells])
    return [
        "### When to stop the nudged phase",
        "",
        "The net of the first table, β = 0.02, ω = 1.1. A tolerance is the largest change of any unit in a sweep, over β.",
        "",
        *markdown(["nudged phase", *(f"free phase: {name}" for name in frees)], rows),
    ]


def pooled(inside: Pool | None, stage: Pool | None) -> list[Layer]:
    return [ConvLayer(16), ConvLayer(16, pool=inside), ConvLayer(32, pool=stage), DenseLayer(64)]


def trained(layers: list[Layer]) -> tuple[FFEBM, Tensor, Tensor]:
    torch.manual_seed(0)
    data = digits()
    x, y = data.normalise(data.train.x), data.train.y
    model = build(
        (1, 8, 8),
        layers,
        2,
        10,
        output_activation=identity(),  # above max-pooling, too, where it flips
        relax=SETTLE,
        estimator=RecurrentBackprop(),
        nudge="stationary",
    )
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    for batch in torch.randperm(len(x)).split(64):
        losses = model(x[batch], y[batch]).losses
        optimiser.zero_grad()
        losses.mean().backward()
        optimiser.step()
    return model, x[:SAMPLES], y[:SAMPLES]


def quality(
    model: FFEBM,
    x: Tensor,
    y: Tensor,
    truth: dict[str, Tensor],
    beta: float,
    scale: Scale = "unit",
    factor: float = 1.0,
) -> float:
    net = deepcopy(model).use(EquilibriumPropagation(FixedPoint(60, order="output-first"), beta=beta, scale=scale))
    losses = net(x, y).losses
    assert losses is not None
    found = torch.autograd.grad(factor * losses.mean(), list(net.parameters()))
    return min(cosines(dict(zip(truth, found, strict=True)), truth).values())


def markdown(header: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows)]


if __name__ == "__main__":
    main()
