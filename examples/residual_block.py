"""A residual block that is analog: a skip connection in the energy, so that it acts both ways like every other tie.

First the block alone, made by hand: its gradient by equilibrium propagation against recurrent backprop. Then a net of two,
made by `build`, that learns scikit-learn's 8 × 8 digits. Run it with

    python examples/residual_block.py [--epochs 4] [--seed 0]
"""

from __future__ import annotations

import argparse

import torch
from rich.progress import track
from torch import Tensor
from torch.nn.functional import cosine_similarity

from ffebm import (
    FFEBM,
    ConvLayer,
    Convolution,
    Edge,
    EnergyBlock,
    EquilibriumPropagation,
    FixedPoint,
    GradientEstimator,
    Hopfield,
    RecurrentBackprop,
    build,
)
from ffebm.experiment.data import digits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4, help="training epochs (default: 4)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the order of the data (default: 0)")
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    energy = Hopfield(
        [
            Convolution(16, 16, padding=1),
            Convolution(16, 32, stride=2, padding=1),
            Edge(0, 2, Convolution(16, 32, 1, stride=2, bias=False)),  # around both, from the first layer to the last
        ]
    )
    block = EnergyBlock(energy, FixedPoint(300, tolerance=1e-6))
    x, error = torch.randn(8, 16, 8, 8), torch.randn(8, 32, 4, 4)
    nudged = FixedPoint(60, order="output-first")
    ep, exact = (
        gradient(block, estimator, x, error) for estimator in (EquilibriumPropagation(nudged), RecurrentBackprop(nudged))
    )
    print("Cosine between the gradients by equilibrium propagation and by recurrent backprop:")
    for (name, _), ours, expected in zip(energy.named_parameters(), ep, exact, strict=True):
        print(f"  {name:22} {cosine_similarity(ours.flatten(), expected.flatten(), dim=0):.4f}")

    data = digits()
    (x, y), (x_test, y_test) = ((data.normalise(part.x), part.y) for part in (data.train, data.test))
    layers = [
        *(ConvLayer(16), ConvLayer(16), ConvLayer(32, stride=2, skip=2)),
        *(ConvLayer(32), ConvLayer(32), ConvLayer(64, stride=2, skip=2)),
    ]
    model = build((1, 8, 8), layers, split=3, classes=10, relax=FixedPoint(30, tolerance=1e-3))
    print(f"\n{model.summary()}\n")
    train(model, x, y, args.epochs)
    print(f"test accuracy {accuracy(model, x_test, y_test):.1%}")


def gradient(block: EnergyBlock, estimator: GradientEstimator, x: Tensor, error: Tensor) -> tuple[Tensor, ...]:
    """Of all parameters, for an error at the output."""
    block.estimator = estimator
    return torch.autograd.grad(block(x), list(block.parameters()), error)


def train(model: FFEBM, x: Tensor, y: Tensor, epochs: int) -> None:
    optimiser = torch.optim.Adam(model.parameters(), 2e-3)
    steps = [batch for _ in range(epochs) for batch in torch.randperm(len(x)).split(64)]
    for batch in track(steps, "two residual blocks", transient=True):
        losses = model(x[batch], y[batch]).losses
        optimiser.zero_grad()
        losses.mean().backward()  # equilibrium propagation through both blocks, skip connections included
        optimiser.step()


@torch.no_grad()
def accuracy(model: FFEBM, x: Tensor, y: Tensor) -> float:
    model.eval()
    return (model(x).logits.argmax(1) == y).float().mean().item()


if __name__ == "__main__":
    main()
