"""Blocks without an energy: corrected nudges give the gradient of any map's fixed point, and uncorrected ones do not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from ffebm import (
    DivergenceError,
    EquilibriumPropagation,
    FixedPoint,
    NonReciprocal,
    Phase,
    RecurrentBackprop,
    State,
    Stencil,
    SystemBlock,
)
from ffebm.nudge import Stationary
from ffebm.testing import finite_differences

NUDGED = FixedPoint(3000, tolerance=1e-12)


class Crossbars(nn.Module):
    """Two layers, whose way up and way down go through arrays of their own: a pair that should match, and does not."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.up = nn.Parameter(scale * torch.randn(4, 5))
        self.down = nn.Parameter(scale * torch.randn(5, 4))
        self.within = nn.Parameter(scale * torch.randn(5, 5))

    def forward(self, state: State, x: Tensor) -> State:
        low, high = state
        return torch.tanh(x + low @ self.within.T + high @ self.down.T), torch.tanh(low @ self.up.T)


class Attention(nn.Module):
    """Tokens that look at each other, each for reasons of its own."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(features, features, bias=False) for _ in range(3))

    def forward(self, state: State, x: Tensor) -> State:
        (s,) = state
        weights = (self.query(s) @ self.key(s).mT).softmax(-1)
        return (x + 0.5 * torch.tanh(weights @ self.value(s)),)


def two_layers(x: Tensor) -> State:
    return torch.zeros_like(x), x.new_zeros(len(x), 4)


def block(update: nn.Module, start=None, *, corrected: bool = True, stencil: Stencil | None = None) -> SystemBlock:
    system = NonReciprocal(update, start, steps=3000, tolerance=1e-15, corrected=corrected)
    return SystemBlock(system, EquilibriumPropagation(NUDGED, beta=1e-3, stencil=stencil))


def errors(update: nn.Module, x: Tensor, start=None, **options) -> dict[str, float]:
    """How far the gradient of every parameter, and of the input, is off the slope of the loss."""
    x.requires_grad_()
    tensors = {"x": x, **dict(update.named_parameters())}

    def loss() -> Tensor:
        output = block(update, start, **options)(x)
        return (output.square() / 2 + output).sum()

    slopes = finite_differences(loss, tensors)
    found = torch.autograd.grad(loss(), list(tensors.values()))
    return {name: slopes[name].error(gradient) for name, gradient in zip(tensors, found, strict=True)}


@settings(max_examples=10)
@given(scale=st.floats(0.05, 0.15), seed=st.integers(0, 1000))
def test_corrected_nudges_match_finite_differences(scale: float, seed: int) -> None:
    torch.manual_seed(seed)
    update = Crossbars(scale).double()
    assert max(errors(update, torch.randn(3, 5, dtype=torch.float64), two_layers).values()) < 1e-5


def test_uncorrected_nudges_are_wrong_where_the_map_is_not_symmetric() -> None:
    torch.manual_seed(0)
    update = Crossbars(0.15).double()
    x = torch.randn(3, 5, dtype=torch.float64)
    assert min(errors(update, x, two_layers, corrected=False).values()) > 0.05
    with torch.no_grad():  # and right where it is: an energy describes that one
        update.down.copy_(update.up.T)
        update.within.copy_((update.within + update.within.T) / 2)
    # In terms of s the Jacobian D·W is symmetric only where the slopes D are equal: at the origin.
    assert max(errors(update, torch.zeros(3, 5, dtype=torch.float64), two_layers, corrected=False).values()) < 1e-5


def test_attention_has_a_gradient() -> None:
    torch.manual_seed(0)
    update = Attention(4).double()
    assert max(errors(update, torch.randn(2, 3, 4, dtype=torch.float64)).values()) < 1e-5


@pytest.mark.parametrize("stencil", [Stencil.one_sided(), Stencil.random_sign()], ids=["one-sided", "random sign"])
def test_other_stencils_have_their_own_accuracy(stencil: Stencil) -> None:
    torch.manual_seed(0)
    update = Crossbars(0.15).double()
    assert max(errors(update, torch.randn(3, 5, dtype=torch.float64), two_layers, stencil=stencil).values()) < 1e-2


def test_a_map_that_ignores_a_layer_has_no_gradient_from_it() -> None:
    class Ignoring(Crossbars):
        def forward(self, state: State, x: Tensor) -> State:
            low, _ = state
            return torch.tanh(x + low @ self.within.T), torch.tanh(x[:, :4] @ self.up[:, :4].T)

    torch.manual_seed(0)
    update = Ignoring(0.15).double()
    x = torch.randn(3, 5, dtype=torch.float64)
    update.down.requires_grad_(False)
    block(update, two_layers)(x).sum().backward()
    assert update.up.grad is not None
    assert not update.within.grad.any()


def test_a_map_that_does_not_contract_is_refused() -> None:
    class Doubling(nn.Module):
        def forward(self, state: State, x: Tensor) -> State:
            return (3 * state[0] + x,)

    with pytest.raises(DivergenceError, match=r"The relaxation of chip 7 diverged.* The map does not contract"):
        SystemBlock(NonReciprocal(Doubling(), steps=5000), name="chip 7")(torch.ones(2, 3))


def test_only_nudges_can_differentiate_it() -> None:
    torch.manual_seed(0)
    system = NonReciprocal(Attention(4))
    with pytest.raises(TypeError, match=r"RecurrentBackprop differentiates the sweeps of a simulation.* use `Equilibrium"):
        SystemBlock(system, RecurrentBackprop())(torch.randn(2, 3, 4))


def test_bad_requests_are_refused() -> None:
    system, x = NonReciprocal(Attention(4)), torch.randn(2, 3, 4)
    nudge = Stationary(torch.ones(2), (torch.ones(2, 3, 4),))
    with pytest.raises(ValueError, match="needs `start`, its free equilibrium"):
        system.settle(x, [Phase(nudge, 0.1)])
    with pytest.raises(ValueError, match="`tolerance` must be positive"):
        NonReciprocal(Attention(4), tolerance=-1)


def test_its_phases_can_be_watched() -> None:
    torch.manual_seed(0)
    system, x = NonReciprocal(Attention(4).double()), torch.randn(2, 3, 4, dtype=torch.float64)
    seen: list[int] = []
    (free,) = system.settle(x, [Phase()], observer=lambda done, _: seen.append(done))
    assert seen == list(range(int(free.sweeps.max()) + 1))
