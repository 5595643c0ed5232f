"""A test suite for your own energy: subclass `EnergyConformance` in a pytest file and say how to make one.

It needs no test framework itself, only plain asserts.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor

from ffebm.block import EnergyBlock
from ffebm.derivative import Gradients, differentiate
from ffebm.energy import Energy
from ffebm.gradient import EquilibriumPropagation, GradientEstimator, RecurrentBackprop, Unrolled
from ffebm.relaxation import FixedPoint, Relaxation
from ffebm.state import State

__all__ = ["EnergyConformance", "Slopes", "finite_differences"]
__dir__ = __all__.copy


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
        weights = torch.linspace(0.5, 2, len(x)).to(x)
        x.requires_grad_()
        expected = differentiate((weights * (energy(high, x) - energy(low, x))).sum(), x, energy)
        by_autograd = differentiate((weights * energy.contrast(high, low, x)).sum(), x, energy)
        torch.testing.assert_close(by_autograd, expected, rtol=1e-8, atol=1e-10)
        closed_form = Gradients(*energy.contrast_gradient(high, low, x.detach(), weights))
        torch.testing.assert_close(closed_form, expected, rtol=1e-8, atol=1e-10)

    def test_no_layer_moves_at_equilibrium(self) -> None:
        energy, x, state = self._settle()
        for layer, s in enumerate(state):
            torch.testing.assert_close(energy.minimise(layer, state, x), s, rtol=0, atol=100 * self.settled)

    def test_a_force_on_a_layer_tilts_the_energy(self) -> None:
        """Where a layer has come to rest under a force, it is at rest without it in the energy that is tilted by it."""
        energy, x, state = self._settle()
        for layer, (s, activation) in enumerate(zip(state, energy.activations, strict=True)):
            force = torch.linspace(-0.1, 0.1, s.numel()).to(s).view_as(s)
            moved = energy.minimise(layer, state, x, force)
            for _ in range(self.relax.steps):  # a step of gradient descent is not yet the minimum, for either
                there = (*state[:layer], moved, *state[layer + 1 :])
                moved, before = energy.minimise(layer, there, x, force), moved
                if (moved - before).abs().max() <= self.settled:
                    break
            there = (*state[:layer], moved, *state[layer + 1 :])
            expected = activation.sigma(Energy.drive(energy, there, x, layer) - force / energy.layer_weight(layer))
            torch.testing.assert_close(moved, expected, rtol=0, atol=1e-9)

    def test_the_session_is_the_energy(self) -> None:
        energy, x, state = self._settle()
        with torch.no_grad():
            session = energy.session(x, state)
            for colour in energy.colours():
                for layer in colour:
                    expected = energy.minimise(layer, state, x, omega=1.1)
                    torch.testing.assert_close(session.minimise(layer, state, x, omega=1.1), expected, rtol=1e-10, atol=1e-12)

    def test_layers_of_a_colour_do_not_act_on_each_other(self) -> None:
        energy, x, state = self._settle()
        state = _shaken(energy, state)
        assert sorted(layer for colour in energy.colours() for layer in colour) == list(range(len(state)))
        for colour in energy.colours():
            others = _shaken(energy, state, seed=1)
            for layer in colour:
                mixed = tuple(others[i] if i in colour and i != layer else s for i, s in enumerate(state))
                torch.testing.assert_close(energy.drive(mixed, x, layer), energy.drive(state, x, layer), rtol=1e-8, atol=1e-10)

    def test_relaxation_settles(self) -> None:
        energy, x = self._make()
        residual = self.relax(energy, x).residual.max().item()
        assert residual <= self.settled, f"after {self.relax.steps} sweeps units still move by {residual:.1e}"

    def test_gradients_match_finite_differences(self) -> None:
        energy, x = self._make()
        x.requires_grad_()
        weights = torch.randn_like(self.relax(energy, x).state[energy.output_layer])
        tensors = {"x": x, **dict(energy.named_parameters())}

        def loss(estimator: GradientEstimator) -> Tensor:
            output = EnergyBlock(energy, self.relax, estimator)(x)
            return (weights * output + output.square() / 2).sum()

        exact = RecurrentBackprop(self.relax)
        slopes = finite_differences(lambda: loss(exact), tensors)
        for estimator in (exact, EquilibriumPropagation(self.relax, beta=1e-4), Unrolled(FixedPoint(500, order="synchronous"))):
            found = torch.autograd.grad(loss(estimator), list(tensors.values()), allow_unused=True, materialize_grads=True)
            for (name, slope), gradient in zip(slopes.items(), found, strict=True):
                error = slope.error(gradient)
                assert error < self.accuracy, f"{type(estimator).__name__} is off by {error:.1e} for {name}"

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


@dataclass(frozen=True)
class Slopes:
    """The derivative of a loss along a few random directions of one tensor."""

    directions: Tensor  # (n, *shape)
    values: Tensor  # (n,)

    def error(self, gradient: Tensor) -> float:
        """How far a gradient is off along these directions, relative; absolute where the loss does not change."""
        off = (self.directions * gradient).flatten(1).sum(1) - self.values
        return (off.norm() / (self.values.norm() or 1)).item()


@torch.no_grad()
def finite_differences(
    loss: Callable[[], Tensor], tensors: Mapping[str, Tensor], directions: int = 3, step: float = 1e-5
) -> dict[str, Slopes]:
    """Central differences of `loss` for every tensor it depends on; they are changed in place and put back."""
    generator = torch.Generator().manual_seed(0)
    found: dict[str, Slopes] = {}
    for name, tensor in tensors.items():
        original = tensor.clone()
        lines = torch.randn(directions, *tensor.shape, generator=generator, dtype=torch.float64).to(tensor)
        values = []
        for line in lines:
            tensor.copy_(original + step * line)
            above = loss().item()
            tensor.copy_(original - step * line)
            values.append((above - loss().item()) / (2 * step))
        tensor.copy_(original)
        found[name] = Slopes(lines, torch.tensor(values).to(tensor))
    return found


def _shaken(energy: Energy, state: State, seed: int = 0) -> State:
    """A state off equilibrium, still in the range of the activations."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        activation.sigma(s + torch.randn(s.shape, generator=generator, dtype=torch.float64).to(s))
        for activation, s in zip(energy.activations, state, strict=True)
    )
