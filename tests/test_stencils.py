"""At which strengths EP nudges, what it contrasts, and how its error falls with the strength."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from ffebm import (
    AveragePool,
    Convolution,
    Dense,
    Edge,
    Energy,
    EnergyBlock,
    EquilibriumPropagation,
    FixedPoint,
    Hopfield,
    MaxPool,
    RecurrentBackprop,
    State,
    Stencil,
    clamp,
    identity,
    sigmoid,
    tanh,
)
from ffebm.diagnostics import converged_gradients, gradients
from nets import CONVERGED, batch, make, worst

NUDGED = FixedPoint(3000, order="output-first", tolerance=1e-15)
SMOOTH = [sigmoid(), tanh(), sigmoid(), tanh()]
HARD = [clamp(0.5), clamp(0.5), clamp(1.0), identity()]
BETAS = [0.4, 0.2, 0.1, 0.05]


def skipping(activations, feedback: float = 1.0) -> tuple[Hopfield, Tensor]:
    torch.manual_seed(1)
    edges = [Dense(6, 5), Dense(5, 4), Dense(4, 3), Edge(0, 2, Dense(6, 4, bias=False))]
    return Hopfield(edges, activations, feedback=feedback).double(), torch.randn(3, 6, dtype=torch.float64)


def gradient(energy: Energy, x: Tensor, estimator) -> Tensor:
    """Of a loss that is not linear in the output, for the input and all parameters in one vector."""
    x = x.clone().requires_grad_()
    output = EnergyBlock(energy, CONVERGED, estimator)(x)
    loss = (output.square() / 2 + output).sum()
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, [x, *energy.parameters()])])


def errors(energy: Energy, x: Tensor, stencil: Stencil, betas=BETAS) -> list[float]:
    """Relative to the converged adjoint, for each strength."""
    exact = gradient(energy, x, RecurrentBackprop(CONVERGED))
    found = [gradient(energy, x, EquilibriumPropagation(NUDGED, beta=beta, stencil=stencil)) for beta in betas]
    return [((g - exact).norm() / exact.norm()).item() for g in found]


def slope(found: list[float]) -> float:
    """Of the error against the strength, both as logarithms: the order of the error."""
    rises = [math.log(a / b) / math.log(2) for a, b in pairwise(found)]
    return sum(rises) / len(rises)


@pytest.mark.parametrize("feedback", [1.0, 0.3])
@pytest.mark.parametrize(
    ("stencil", "order"),
    [(Stencil.centered(), 2)] + [(Stencil.roots(n), n) for n in (3, 4, 5, 6)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_order_of_the_error_on_smooth_energies(stencil: Stencil, order: int, feedback: float) -> None:
    assert slope(errors(*skipping(SMOOTH, feedback), stencil)) == pytest.approx(order, abs=0.1)


@pytest.mark.parametrize("stencil", [Stencil.one_sided(), Stencil.one_sided(-1), Stencil.centered()], ids=lambda s: s.name)
def test_straight_activations_leave_no_error_between_kinks(stencil: Stencil) -> None:
    """States are then straight lines in β, and a linearised contrast has no term of second order."""
    energy, x = skipping(HARD, 0.3)
    betas = [0.1, 0.05, 0.025]  # which take no unit across one
    assert max(errors(energy, x, stencil, betas)) < 1e-12
    assert min(errors(energy, x, Stencil.one_sided(linearised=False), betas)) > 1e-3, "the plain contrast has one"


def test_a_curved_activation_leaves_one_sided_nudges_an_error_of_first_order() -> None:
    """One layer, s = σ(x − βδ): half of βδ²σ'' is missing, whatever is contrasted, because nothing else was read."""
    energy, x = Hopfield([], sigmoid()), torch.linspace(-2, 2, 5, dtype=torch.float64).unsqueeze(0)
    beta, stencil = 1e-4, Stencil.one_sided()
    delta = torch.ones_like(x) / math.sqrt(5)
    s, weights = sigmoid().sigma(x), torch.full((1,), math.sqrt(5), dtype=torch.float64)
    estimator = EquilibriumPropagation(NUDGED, beta=beta, stencil=stencil)
    found = estimator.gradient(energy, x, (s,), (delta * weights,)).x
    first, second = s * (1 - s), s * (1 - s) * (1 - 2 * s)
    torch.testing.assert_close(found, first - beta / 2 * second * delta, rtol=0, atol=1e-8)
    for linearised in (True, False):
        assert slope(errors(*skipping(SMOOTH), Stencil.one_sided(linearised=linearised))) == pytest.approx(1, abs=0.2)


def test_a_kink_on_one_side_does_not_disturb_a_nudge_to_the_other() -> None:
    """Where −β crosses a kink and β does not, the linearised one-sided contrast is exact and the centered one is not."""
    energy = Hopfield([], clamp(1.0)).double()
    x = torch.full((1, 4), 1e-3, dtype=torch.float64)  # close above the floor: a nudge by δ > 0 pushes it there
    positive, negative, centered = (
        errors(energy, x, stencil, [0.1])[0] for stencil in (Stencil.one_sided(1), Stencil.one_sided(-1), Stencil.centered())
    )
    assert negative < 1e-12
    assert min(positive, centered) > 0.1


def test_random_signs_are_seeded_and_differ_between_samples() -> None:
    energy, x = skipping(SMOOTH)
    x = x.repeat(8, 1)
    estimator = EquilibriumPropagation(NUDGED, beta=0.2, stencil=Stencil.random_sign(linearised=False))
    torch.manual_seed(0)
    first = gradient(energy, x, estimator)
    assert not torch.equal(gradient(energy, x, estimator), first)
    torch.manual_seed(0)
    assert torch.equal(gradient(energy, x, estimator), first)
    of_input = [
        gradient(energy, x, EquilibriumPropagation(NUDGED, beta=0.2, variant=variant))[: x.numel()].view_as(x)
        for variant in ("positive", "negative")
    ]
    drawn = first[: x.numel()].view_as(x)
    matches = torch.stack([(drawn - one).abs().amax(1) < 1e-12 for one in of_input])
    assert (matches.sum(0) == 1).all(), "every sample has the gradient of one sign"
    assert matches.any(1).all(), "both signs occur"


def test_the_mean_of_both_signs_is_the_centered_gradient() -> None:
    energy, x = skipping(SMOOTH)
    positive, negative, centered = (
        gradient(energy, x, EquilibriumPropagation(NUDGED, beta=0.2, variant=v)) for v in ("positive", "negative", "centered")
    )
    torch.testing.assert_close((positive + negative) / 2, centered, rtol=0, atol=1e-12)


@pytest.mark.parametrize("stencil", [Stencil.one_sided(), Stencil.random_sign()], ids=lambda s: s.name)
@pytest.mark.parametrize("nudge", ["elastic", "stationary"])
@pytest.mark.parametrize("kind", ["dense", "average"])
def test_one_nudge_trains_a_chain_of_blocks(kind: str, nudge: str, stencil: Stencil) -> None:
    model = make(kind, [2, 3, 1], EquilibriumPropagation(NUDGED, beta=1e-3, stencil=stencil), nudge=nudge)
    x, y = batch(model)
    assert worst(gradients(model, x, y), converged_gradients(model, x, y)) < 1e-8


def test_complex_nudges_go_through_convolutions_and_average_pooling() -> None:
    torch.manual_seed(0)
    edges = [Convolution(2, 3, padding=1, pool=AveragePool()), Convolution(3, 3, stride=2, padding=1), Dense(12, 4)]
    energy = Hopfield(edges, [tanh(), sigmoid(), tanh(), identity()]).double()
    x = torch.rand(3, 2, 8, 8, dtype=torch.float64)
    assert slope(errors(energy, x, Stencil.roots(5), [0.1, 0.05, 0.025])) == pytest.approx(5, abs=0.1)
    assert errors(energy.float(), x.float(), Stencil.roots(4), [0.05])[0] < 1e-4


def test_complex_nudges_refuse_kinks_by_name() -> None:
    x = torch.rand(2, 4)
    estimator = EquilibriumPropagation(stencil=Stencil.roots(4))

    def refused(energy: Energy, x: Tensor) -> None:
        EnergyBlock(energy, estimator=estimator, name="block 2 of 3")(x.requires_grad_()).sum().backward()

    with pytest.raises(ValueError, match=r"clamp\(slope=0\.5\) of block 2 of 3 is no holomorphic function.*one_sided"):
        refused(Hopfield([Dense(4, 3)], [sigmoid(), clamp(0.5)]), x)
    with pytest.raises(ValueError, match=r"Convolution\((.|\n)* is no holomorphic function"):
        refused(Hopfield([Convolution(1, 1, pool=MaxPool())], sigmoid()), torch.rand(2, 1, 8, 8))

    class Bowl(Energy):
        def forward(self, state: State, x: Tensor) -> Tensor:
            return (state[0] - x).square().sum(1) / 2

    with pytest.raises(TypeError, match="Bowl has no complex version"):
        refused(Bowl(), x)


def test_variants_are_short_names_of_stencils() -> None:
    for variant, stencil in {
        "centered": Stencil.centered(),
        "positive": Stencil.one_sided(linearised=False),
        "negative": Stencil.one_sided(-1, linearised=False),
        "one-sided": Stencil.one_sided(),
    }.items():
        energy, x = skipping(HARD)
        ours = gradient(energy, x, EquilibriumPropagation(NUDGED, variant=variant))
        assert torch.equal(ours, gradient(energy, x, EquilibriumPropagation(NUDGED, stencil=stencil)))


def test_bad_stencils_are_refused() -> None:
    with pytest.raises(ValueError, match="A variant is a stencil: got variant='positive'"):
        EquilibriumPropagation(variant="positive", stencil=Stencil.centered())
    with pytest.raises(TypeError, match="`stencil` must be a Stencil such as"):
        EquilibriumPropagation(stencil="centered")
    with pytest.raises(ValueError, match="`sign` must be 1 or -1, got 2"):
        Stencil.one_sided(2)
    with pytest.raises(ValueError, match="A stencil needs Σ c·p = 1"):
        Stencil("wrong", (1, -1), (3, 4))
    with pytest.raises(ValueError, match="at most two points unless it is linearised"):
        Stencil("five", (2, 1, -1, -2), (-1 / 12, 8 / 12, -8 / 12, 1 / 12))
    with pytest.raises(ValueError, match="`n` must be a whole number of at least 3, got 2"):
        Stencil.roots(2)


@pytest.mark.parametrize("stencil", [Stencil.centered(), Stencil.one_sided(-1), Stencil.random_sign(), Stencil.roots(7)])
def test_coefficients_make_a_derivative(stencil: Stencil) -> None:
    """Of a line its slope, whatever the strength. A point off the real axis stands for its conjugate as well."""
    products = [c * p for c, p in zip(stencil.coefficients, stencil.points, strict=True)]
    assert sum(products).real == pytest.approx(1)
