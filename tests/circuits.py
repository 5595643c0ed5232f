"""Small resistive networks that the tests of circuits and devices share."""

from __future__ import annotations

import torch
from torch import Tensor

from ffebm import Conductance, ConvConductance, FixedPoint, Ideal, Relaxed, Resistive, Scale
from ffebm.nudge import Stationary
from ffebm.state import State

INPUTS = ("voltage", "current")
GAINS = [(1.0, 1.0), (4.0, 1.0), (2.0, 2.0)]
SETTLE = FixedPoint(5000, tolerance=1e-13)


def network(kind: str, gain: tuple[float, float] = (1.0, 1.0), diode=Ideal(), *, seed: int = 0, scale=Scale(siemens=1e-3)):
    """6 inputs, layers of 8 and 5 with rails and 3 outputs; or an image of 2 × 4 × 4 and two layers above."""
    torch.manual_seed(seed)
    first = {
        "voltage": lambda: Conductance(6, 8, doubled=True),
        "current": lambda: Conductance(6, 8),
        "image": lambda: ConvConductance(2, 3, 3, stride=2, padding=1, doubled=True),
    }[kind]()
    rest = [Conductance(12, 4)] if kind == "image" else [Conductance(8, 5), Conductance(5, 3)]
    held = "current" if kind == "current" else "voltage"
    energy = Resistive([first, *rest], input=held, gain=gain, diode=diode, scale=scale).double()
    for crossbar in energy.crossbars:
        torch.nn.init.normal_(crossbar.bias, std=0.1)
    return energy


def input_of(samples: int, seed: int = 0) -> Tensor:
    return torch.randn(samples, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 1))


@torch.no_grad()
def converged(energy: Resistive, x: Tensor) -> State:
    return SETTLE(energy, x).state


@torch.no_grad()
def swept(energy: Resistive, x: Tensor, state: State, force: Tensor | None = None) -> Relaxed:
    """One sweep further, under a force on the output."""
    nudge = None if force is None else Stationary(1.0, (*(None for _ in state[1:]), force))
    return FixedPoint(1)(energy, x, start=state, nudge=nudge)
