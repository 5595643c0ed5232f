"""The package's own conformance suite, run on its energies and on one that a user might write."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ffebm import (
    AveragePool,
    Convolution,
    Dense,
    Edge,
    Energy,
    Hopfield,
    MaxPool,
    SoftPool,
    State,
    clamp,
    identity,
    sigmoid,
    tanh,
)
from ffebm.pooling import Pool
from ffebm.testing import EnergyConformance


class TestSingleLayer(EnergyConformance):
    def make_energy(self) -> Energy:
        return Hopfield([], sigmoid())

    def make_input(self) -> Tensor:
        return torch.randn(3, 5)


class TestDense(EnergyConformance):
    def make_energy(self) -> Energy:
        return Hopfield([Dense(6, 5), Dense(5, 4), Dense(4, 3)], [clamp(0.5), clamp(0.5), clamp(1), identity()])

    def make_input(self) -> Tensor:
        return torch.rand(3, 6)


class TestSmooth(EnergyConformance):
    def make_energy(self) -> Energy:
        return Hopfield([Dense(6, 5), Dense(5, 4)], [sigmoid(), tanh(), sigmoid()])

    def make_input(self) -> Tensor:
        return torch.randn(3, 6)


class TestSkipsAndFeedback(EnergyConformance):
    def make_energy(self) -> Energy:
        edges = [Dense(6, 5), Dense(5, 4), Edge(0, -1, Dense(6, 4)), Edge(0, 1, Dense(6, 5))]
        return Hopfield(edges, [clamp(0.5), clamp(0.5), identity(0.5)], feedback=0.3)

    def make_input(self) -> Tensor:
        return torch.rand(3, 6)


class ConvolutionalConformance(EnergyConformance):
    pool: type[Pool]

    def make_energy(self) -> Energy:
        edges = [Convolution(2, 3, padding=1, pool=self.pool()), Convolution(3, 3, stride=2, padding=1), Dense(12, 4)]
        return Hopfield(edges, [clamp(0.5)] * 3 + [identity()])

    def make_input(self) -> Tensor:
        return torch.rand(3, 2, 8, 8)


class TestMaxPool(ConvolutionalConformance):
    pool = MaxPool


class TestAveragePool(ConvolutionalConformance):
    pool = AveragePool


class TestSoftPool(ConvolutionalConformance):
    pool = SoftPool


class Memory(Energy):
    """A user's energy with `forward` alone: a softmax memory, as in modern Hopfield networks."""

    def __init__(self, units: int, memories: int) -> None:
        super().__init__([identity(0.5)])
        self.patterns = nn.Parameter(0.5 * torch.randn(memories, units))

    def forward(self, state: State, x: Tensor) -> Tensor:
        (s,) = state
        return s.square().sum(1) / 2 - torch.logsumexp(s @ self.patterns.T, 1) - (s * x).sum(1)


class TestMemory(EnergyConformance):
    def make_energy(self) -> Energy:
        return Memory(5, 4)

    def make_input(self) -> Tensor:
        return torch.randn(3, 5)


class TwoLayers(Energy):
    """A user's energy over two layers, coupled by a term that is not bilinear, and not linear in its input."""

    def __init__(self) -> None:
        super().__init__([clamp(0.3, -2, 2), identity(0.3)])
        self.coupling = nn.Parameter(torch.randn(3, 4) / 3)

    def init_state(self, x: Tensor) -> State:
        return torch.zeros_like(x), x.new_zeros(len(x), 3)

    def forward(self, state: State, x: Tensor) -> Tensor:
        s, r = state
        return (s - x).square().sum(1) / 2 + (r - torch.tanh(s @ self.coupling.T)).square().sum(1) + r.pow(4).sum(1) / 8


class TestTwoLayers(EnergyConformance):
    def make_energy(self) -> Energy:
        return TwoLayers()

    def make_input(self) -> Tensor:
        return torch.randn(3, 4)


class Interacting(Memory):
    def forward(self, state: State, x: Tensor) -> Tensor:
        return super().forward(state, x - x.mean(0))


class WrongDrive(Memory):
    def drive(self, state: State, x: Tensor, layer: int) -> Tensor:
        return 1.01 * super().drive(state, x, layer)


class Reduced(Memory):
    def forward(self, state: State, x: Tensor) -> Tensor:
        return super().forward(state, x).mean()


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (Interacting, "test_samples_do_not_interact"),
        (WrongDrive, "test_drive_is_the_derivative_of_the_energy"),
        (WrongDrive, "test_gradients_match_finite_differences"),
        (Reduced, "test_one_energy_per_sample"),
    ],
)
def test_the_suite_finds_faults(broken: type[Memory], check: str) -> None:
    class Suite(TestMemory):
        def make_energy(self) -> Energy:
            return broken(5, 4)

    with pytest.raises((AssertionError, ValueError)):
        getattr(Suite(), check)()


def test_several_layers_need_their_own_initial_state() -> None:
    class Two(Memory):
        def __init__(self) -> None:
            super().__init__(5, 4)
            self.activations = (identity(), identity())

    with pytest.raises(NotImplementedError, match="override `init_state`"):
        Two().init_state(torch.zeros(2, 5))


def test_an_energy_needs_a_layer() -> None:
    class Empty(Memory):
        def __init__(self) -> None:
            Energy.__init__(self, [])

    with pytest.raises(ValueError, match="at least one layer"):
        Empty()
