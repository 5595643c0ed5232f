"""A test suite for your own energy: subclass `EnergyConformance` in a pytest file and say how to make one.

It needs no test framework itself, only plain asserts.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor

from ffebm.block import EnergyBlock
from ffebm.energy import Energy, State
from ffebm.gradient import EquilibriumPropagation, GradientEstimator, RecurrentBackprop, Unrolled
from ffebm.gradient.estimator import differentiate
from ffebm.relaxation import FixedPoint, Relaxation


class EnergyConformance(ABC):
    """What every energy must do, checked in float64 against autograd and finite differences.

    ```python
    class TestMyEnergy(EnergyConformance):
        def make_energy(self):
            return MyEnergy(units=5)

        def make_input(self):
            return torch.randn(3, 5)
    ```
    """

    relax: Relaxation = FixedPoint(5000, tolerance=1e-13, order="synchronous")
    settled = 1e-12  # the residual that counts as an equilibrium
    accuracy = 1e-5  # of gradients against finite differences, relative

    @abstractmethod
    def make_energy(self) -> Energy: ...

    @abstractmethod
    def make_input(self) -> Tensor:
        """A batch of at least two samples."""

    def test_one_energy_per_sample(self) -> None:
        energy, x, state = self._settle()
        values = energy(state, x)
        assert values.shape == x.shape[:1], f"forward must return shape ({x.shape[0]},), got {tuple(values.shape)}"
        assert values.isfinite().all()

    def test_one_state_per_activation(self) -> None:
        energy, x = self._make()
        state = energy.init_state(x)
        assert len(state) == len(energy.activations)
        assert all(s.shape[0] == x.shape[0] for s in state), "every layer needs the batch first"

    def test_samples_do_not_interact(self) -> None:
        energy, x, state = self._settle()
        state = _shaken(energy, state)
        alone = [energy(tuple(s[i : i + 1] for s in state), x[i : i + 1]) for i in range(len(x))]
        torch.testing.assert_close(torch.cat(alone), energy(state, x), rtol=1e-10, atol=1e-12)

    def test_drive_is_the_derivative_of_the_energy(self) -> None:
        energy, x, state = self._settle()
        state = _shaken(energy, state)
        for layer in range(len(state)):
            expected = Energy.drive(energy, state, x, layer)
            torch.testing.assert_close(energy.drive(state, x, layer), expected, rtol=1e-8, atol=1e-10)

    def test_contrast_is_a_difference_of_energies(self) -> None:
        energy, x, state = self._settle()
        high, low = _shaken(energy, state, seed=1), _shaken(energy, state, seed=2)
        x.requires_grad_()
        ours = differentiate(energy.contrast(high, low, x).sum(), x, energy)
        expected = differentiate((energy(high, x) - energy(low, x)).sum(), x, energy)
        torch.testing.assert_close(ours, expected, rtol=1e-8, atol=1e-10)

    def test_relaxation_settles(self) -> None:
        energy, x = self._make()
        residual = self.relax(energy, x).residual.max().item()
        assert residual <= self.settled, f"after {self.relax.steps} sweeps units still move by {residual:.1e}"

    def test_gradients_match_finite_differences(self) -> None:
        estimators: list[tuple[GradientEstimator, float]] = [
            (EquilibriumPropagation(self.relax, beta=1e-4), self.accuracy),
            (RecurrentBackprop(self.relax), self.accuracy),
            (Unrolled(FixedPoint(500, order="synchronous")), self.accuracy),
        ]
        energy, x = self._make()
        for estimator, accuracy in estimators:
            error = gradient_error(EnergyBlock(energy, self.relax, estimator), x)
            assert error < accuracy, f"{type(estimator).__name__} is off by {error:.1e}"

    def test_survives_copying_and_saving(self) -> None:
        energy, x, state = self._settle()
        other = pickle.loads(pickle.dumps(deepcopy(energy)))
        other.load_state_dict(energy.state_dict())
        torch.testing.assert_close(other(state, x), energy(state, x), rtol=0, atol=0)

    def _make(self) -> tuple[Energy, Tensor]:
        torch.manual_seed(0)
        energy, x = self.make_energy().double(), self.make_input().double()
        assert x.shape[0] > 1, "make_input must return at least two samples"
        return energy, x

    def _settle(self) -> tuple[Energy, Tensor, State]:
        energy, x = self._make()
        with torch.no_grad():
            return energy, x, self.relax(energy, x).state


def gradient_error(block: EnergyBlock, x: Tensor, directions: int = 4, step: float = 1e-5) -> float:
    """The worst relative error of a block's gradients, over input and parameters, against central finite differences.

    The loss is a fixed random function of the output; each gradient is compared along a few random directions.
    """
    generator = torch.Generator().manual_seed(0)
    x = x.detach().clone().requires_grad_()
    inputs = [x, *block.parameters()]

    def draw(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)

    with torch.no_grad():
        weights = draw(block(x))

    def loss() -> Tensor:
        output = block(x)
        return (weights * output + output.square() / 2).sum()

    gradients = torch.autograd.grad(loss(), inputs, allow_unused=True, materialize_grads=True)
    worst = 0.0
    for tensor, gradient in zip(inputs, gradients, strict=True):
        ours, expected = [], []
        for _ in range(directions):
            direction = draw(tensor)
            ours.append((gradient * direction).sum().item())
            expected.append(_slope(loss, tensor, direction, step))
        off, size = torch.tensor(ours) - torch.tensor(expected), torch.tensor(expected).norm().item()
        worst = max(worst, off.norm().item() / max(size, 1e-8))
    return worst


@torch.no_grad()
def _slope(loss: Callable[[], Tensor], tensor: Tensor, direction: Tensor, step: float) -> float:
    """The derivative of `loss` along a direction of `tensor`, by central differences; leaves `tensor` as it was."""
    original = tensor.clone()
    values = []
    for sign in (1, -1):
        tensor.copy_(original + sign * step * direction)
        values.append(loss().item())
    tensor.copy_(original)
    return (values[0] - values[1]) / (2 * step)


def _shaken(energy: Energy, state: State, seed: int = 0) -> State:
    """A state off equilibrium, still in the range of the activations."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        activation.sigma(s + torch.randn(s.shape, generator=generator, dtype=torch.float64).to(s))
        for activation, s in zip(energy.activations, state, strict=True)
    )
