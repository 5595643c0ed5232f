"""One problem, every gradient estimator, numbers and times side by side.

A two-block convolutional ff-EBM learns scikit-learn's 8 × 8 digits. Run it with

    python examples/three_estimators.py [--epochs 3] [--seed 0]
"""

from __future__ import annotations

import argparse
import time
from copy import deepcopy

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from ffebm import (
    FFEBM,
    BackpropThroughTime,
    ConvLayer,
    DenseLayer,
    EquilibriumPropagation,
    FixedPoint,
    GradientEstimator,
    MaxPool,
    RecurrentBackprop,
    Unrolled,
    build,
)
from ffebm.diagnostics import converged_gradients, cosines, gradients
from ffebm.experiment.data import digits

ESTIMATORS: dict[str, GradientEstimator] = {
    "EP, centered": EquilibriumPropagation(),
    "EP, positive": EquilibriumPropagation(variant="positive"),
    "ID": Unrolled(),
    "recurrent backprop": RecurrentBackprop(),
    "BPTT": BackpropThroughTime(),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3, help="training epochs for each estimator (default: 3)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the order of the data (default: 0)")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    data = digits()
    (x, y), (x_test, y_test) = ((data.normalise(part.x), part.y) for part in (data.train, data.test))
    layers = [ConvLayer(16), ConvLayer(16), ConvLayer(32, pool=MaxPool()), DenseLayer(64)]
    model = build((1, 8, 8), layers, split=2, classes=10, relax=FixedPoint(100, tolerance=1e-5))
    console = Console()
    console.print(f"{len(x)} digits to learn, {len(x_test)} to test\n\n{model.summary()}\n")

    truth = converged_gradients(model, x[:64], y[:64])
    table = Table("estimator", "cosine", "ms a gradient", "test accuracy", "s to train")
    for name, estimator in ESTIMATORS.items():
        learner = deepcopy(model).use(estimator)
        cosine = min(cosines(gradients(deepcopy(learner), x[:64], y[:64]), truth).values())
        milliseconds = 1e3 * gradient_time(deepcopy(learner), x[:64], y[:64])
        start = time.perf_counter()
        train(learner, x, y, args.epochs, args.seed, label=name)
        seconds = time.perf_counter() - start
        table.add_row(
            name, f"{cosine:.5f}", f"{milliseconds:.0f}", f"{accuracy(learner, x_test, y_test):.1%}", f"{seconds:.1f}"
        )
    console.print(table)
    console.print("ID: autograd through recorded sweeps at equilibrium. BPTT: through the whole relaxation.")
    console.print("Cosine: the smallest over all parameters, at the initial weights, to the converged adjoint in float64.")


def gradient_time(model: FFEBM, x: Tensor, y: Tensor, repeats: int = 5) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        gradients(model, x, y)
        times.append(time.perf_counter() - start)
    return min(times)


def train(model: FFEBM, x: Tensor, y: Tensor, epochs: int, seed: int, label: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    steps = [batch for _ in range(epochs) for batch in torch.randperm(len(x), generator=generator).split(64)]
    for batch in track(steps, f"{label:20}", transient=True):
        losses = model(x[batch], y[batch]).losses
        optimiser.zero_grad()
        losses.mean().backward()
        optimiser.step()


@torch.no_grad()
def accuracy(model: FFEBM, x: Tensor, y: Tensor) -> float:
    model.eval()
    return (model(x).logits.argmax(1) == y).float().mean().item()


if __name__ == "__main__":
    main()
