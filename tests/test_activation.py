from __future__ import annotations

import math
import pickle

import pytest
import torch
from hypothesis import given, strategies as st

from ffebm import Activation, clamp, identity, sigmoid, tanh

# Each with a range of v on which it does not saturate.
ACTIVATIONS = [
    (sigmoid(), -9, 9),
    (tanh(), -3, 3),
    (identity(), -5, 5),
    (identity(0.3), -5, 5),
    (clamp(0.5), 0, 2),
    (clamp(1.0), 0, 1),
    (clamp(2.0, -1, 3), -0.5, 1.5),
]
NAMES = [repr(activation) for activation, *_ in ACTIVATIONS]


@pytest.mark.parametrize(("activation", "low", "high"), ACTIVATIONS, ids=NAMES)
def test_potential_inverts_sigma(activation: Activation, low: float, high: float) -> None:
    """G'(σ(v)) = v wherever σ does not saturate."""
    v = torch.linspace(low, high, 51, dtype=torch.float64)
    s = activation.sigma(v).clone().requires_grad_()
    (slope,) = torch.autograd.grad(activation.potential(s).sum(), s)
    torch.testing.assert_close(slope, v, rtol=1e-8, atol=1e-12)


@given(slope=st.floats(0.1, 4), v=st.floats(-5, 5))
def test_clamp_minimises_its_energy_on_the_box(slope: float, v: float) -> None:
    activation = clamp(slope)
    grid = torch.linspace(0, 1, 2001, dtype=torch.float64)
    energies = activation.potential(grid) - grid * v
    s = activation.sigma(torch.tensor(v, dtype=torch.float64))
    assert activation.potential(s) - s * v <= energies.min() + 1e-12


@pytest.mark.parametrize("activation", [sigmoid(), tanh()], ids=repr)
def test_potentials_are_finite_where_the_activation_saturates(activation: Activation) -> None:
    s = activation.sigma(torch.tensor([-1e3, 1e3], dtype=torch.float64))
    assert activation.potential(s).isfinite().all()


@pytest.mark.parametrize("activation", [activation for activation, *_ in ACTIVATIONS], ids=NAMES)
def test_pickles(activation: Activation) -> None:
    copy = pickle.loads(pickle.dumps(activation))
    v = torch.randn(5)
    assert repr(copy) == repr(activation)
    assert torch.equal(copy.sigma(v), activation.sigma(v))


def test_paper_activations() -> None:
    v = torch.tensor([-1.0, 0.5, 1.5, 3.0])
    assert clamp(1).sigma(v).tolist() == [0, 0.5, 1, 1]
    assert clamp(0.5).sigma(v).tolist() == [0, 0.25, 0.75, 1]
    assert identity().sigma(v).tolist() == v.tolist()


@pytest.mark.parametrize("slope", [0.0, -1.0, math.nan, math.inf])
def test_refuses_a_slope_without_potential(slope: float) -> None:
    with pytest.raises(ValueError, match="slope"):
        clamp(slope)


def test_refuses_an_empty_box() -> None:
    with pytest.raises(ValueError, match="low"):
        clamp(1, 1.0, 1.0)
