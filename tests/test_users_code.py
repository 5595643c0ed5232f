"""What users may do with blocks, energies and estimators of their own, and expect to work."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from ffebm import (
    FFEBM,
    Convolution,
    Dense,
    Energy,
    EnergyBlock,
    EquilibriumPropagation,
    FixedPoint,
    Hopfield,
    ImplicitEstimator,
    Interaction,
    MaxPool,
    RecurrentBackprop,
    Simulated,
    SystemBlock,
    identity,
    portions,
)
from ffebm.diagnostics import converged_gradients, gradients
from nets import CONVERGED, worst


class Sum(nn.Module):
    def forward(self, a, b):
        return a + b

    def right_inverse(self, w):
        return w / 2, w / 2


def test_portions_of_a_weight_that_is_a_sum(monkeypatch) -> None:
    found = []
    for cache in (8 * 2**20, 300):
        monkeypatch.setattr(portions, "CACHE", cache)
        torch.manual_seed(0)
        edge = Dense(5, 4).double()
        parametrize.register_parametrization(edge, "weight", Sum())
        block = EnergyBlock(Hopfield([edge]), FixedPoint(50))
        block(torch.randn(12, 5, dtype=torch.float64)).square().sum().backward()
        found.append(edge.parametrizations.weight.original0.grad)
    torch.testing.assert_close(*found)


def _model(readout, **kind):
    return FFEBM([nn.Linear(7, 6)], [EnergyBlock(Hopfield([Dense(6, 3)]), **kind)], readout)


class Expanded(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Parameter(torch.ones(3))

    def forward(self, s):
        return s * self.q.sum()


def test_portions_of_an_expanded_gradient(monkeypatch) -> None:
    torch.manual_seed(0)
    model = _model(Expanded(), estimator=EquilibriumPropagation(variant="positive")).double()
    x, y = torch.randn(12, 7, dtype=torch.float64), torch.randint(3, (12,))
    whole = gradients(model, x, y)
    monkeypatch.setattr(portions, "CACHE", 300)
    assert worst(gradients(model, x, y), whole) < 1e-12


@pytest.mark.parametrize("readout", [nn.Identity(), nn.Linear(3, 3).requires_grad_(False)])
def test_elastic_nudge_where_the_readout_learns_nothing(readout) -> None:
    torch.manual_seed(0)
    model = _model(readout, relax=CONVERGED, estimator=EquilibriumPropagation(CONVERGED, beta=1e-3)).double()
    x, y = torch.randn(4, 7, dtype=torch.float64), torch.randint(3, (4,))
    assert worst(gradients(model, x, y), converged_gradients(model, x, y)) < 1e-4


def test_losses_may_be_changed_in_place() -> None:
    torch.manual_seed(0)
    model, x, y = _model(nn.Linear(3, 3)), torch.randn(4, 7), torch.randint(3, (4,))
    expected = torch.autograd.grad((2 * model(x, y).losses).sum(), list(model.parameters()))
    losses = model(x, y).losses
    losses *= 2
    torch.testing.assert_close(torch.autograd.grad(losses.sum(), list(model.parameters())), expected)


def test_outputs_may_be_detached_in_place() -> None:
    output = EnergyBlock(Hopfield([Dense(5, 4)]))(torch.rand(2, 5))
    assert output.requires_grad
    assert not output.detach_().requires_grad


def test_a_parametrised_convolution_with_max_pooling() -> None:
    torch.manual_seed(0)
    edge = parametrizations.weight_norm(Convolution(1, 3, pool=MaxPool())).double()
    energy, x = Hopfield([edge]), torch.rand(3, 1, 6, 6, dtype=torch.float64)
    found = [
        torch.autograd.grad(EnergyBlock(energy, CONVERGED, estimator)(x).square().sum(), list(energy.parameters()))
        for estimator in (EquilibriumPropagation(CONVERGED, beta=1e-4), RecurrentBackprop(CONVERGED))
    ]
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-8)


def test_a_subclass_of_ep_may_change_its_gradient() -> None:
    class Nothing(EquilibriumPropagation):
        def gradient(self, energy, x, state, deltas):
            found = super().gradient(energy, x, state, deltas)
            return found._replace(parameters={name: g * 0 for name, g in found.parameters.items()})

    block = EnergyBlock(Hopfield([Dense(5, 4)]), estimator=Nothing())
    block(torch.rand(2, 5)).sum().backward()
    assert not block.energy.interactions[0].weight.grad.any()


def test_an_estimator_of_somebody_elses_may_have_sweeps() -> None:
    class Mine(ImplicitEstimator):
        def __init__(self):
            self.sweeps = 3

        def gradient(self, energy, x, state, deltas):
            return EquilibriumPropagation().gradient(energy, x, state, deltas)

    block = EnergyBlock(Hopfield([Dense(5, 4)]), estimator=Mine())
    block(torch.rand(2, 5)).sum().backward()
    assert block.estimator.sweeps == 3
    assert block.energy.interactions[0].weight.grad.any()


def test_an_energy_of_somebody_elses_may_have_a_part_called_output() -> None:
    class Mine(Energy):
        def __init__(self):
            super().__init__([identity(0.5)])
            self.output = nn.Linear(5, 5)

        def forward(self, state, x):
            return state[0].square().sum(1) / 2 + self.output(state[0]).square().sum(1) / 4 - (state[0] * x).sum(1)

    energy = Mine()
    EnergyBlock(energy)(torch.rand(2, 5)).sum().backward()
    assert energy.output.weight.grad.any()


def test_a_system_block_refuses_weights_that_a_hook_renews() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the old weight norm is deprecated
        edge = nn.utils.weight_norm(Dense(5, 4))
    with pytest.raises(RuntimeError, match="hook"):
        SystemBlock(Simulated(Hopfield([edge]), FixedPoint(3)))(torch.rand(2, 5))


def test_a_mixin_with_a_sweep_of_its_own_gets_the_input_of_every_phase() -> None:
    class Drives:
        def sweep(self, energy, state, x, nudge=None):
            forces = [None if nudge is None else nudge.force(state, layer) for layer in range(2)]
            drawn = [energy.drive(state, x, layer) for layer in range(2)]
            moved = [v if f is None else v - f for v, f in zip(drawn, forces, strict=True)]
            return tuple(a.sigma(v) for a, v in zip(energy.activations, moved, strict=True))

    class Mixed(Drives, FixedPoint):
        pass

    torch.manual_seed(0)
    energy, x = Hopfield([Dense(5, 4)]).double(), torch.rand(3, 5, dtype=torch.float64)
    found = [
        torch.autograd.grad(EnergyBlock(energy, relax, EquilibriumPropagation(relax))(x).sum(), list(energy.parameters()))
        for relax in (Mixed(100), FixedPoint(100, order="synchronous"))
    ]
    torch.testing.assert_close(*found)


def test_overrides_by_names_of_before_are_refused() -> None:
    with pytest.raises(TypeError, match=r"`Old\.held` would never be called: that method is called `latched` now"):
        type("Old", (Energy,), {"held": lambda *_: None})
    with pytest.raises(TypeError, match="that method is called `contrast_gradient` now"):
        type("Old", (Interaction,), {"contrast": lambda *_: None})
    with pytest.raises(TypeError, match="that method is called `latched` now"):
        type("Old", (MaxPool,), {"held": lambda *_: None})


def test_feedback_that_rounding_hides_is_refused() -> None:
    def backward(feedback: float, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        energy = Hopfield([Dense(4, 4) for _ in range(6)], feedback=feedback)
        EnergyBlock(energy, FixedPoint(50), name="deep").to(dtype)(torch.rand(2, 4, dtype=dtype)).sum().backward()

    backward(0.3, torch.float32)
    backward(0.1, torch.float64)
    with pytest.raises(ValueError, match=r"A nudge of 0\.05 reaches a layer of deep as 5e-08, because of its `feedback`"):
        backward(0.1, torch.float32)


@pytest.mark.parametrize("wrong", [nn.Linear(4, 3), Hopfield([Dense(4, 3)])])
def test_what_is_no_block_or_no_interaction_is_refused(wrong: nn.Module) -> None:
    with pytest.raises(TypeError, match="`blocks` must be a AnalogBlock such as EnergyBlock"):
        FFEBM([nn.Identity()], [wrong], nn.Identity())
    with pytest.raises(TypeError, match="`interactions` must be a Interaction such as Dense"):
        Hopfield([wrong])
