"""The claim of the library: every estimator gives the gradient of the loss at equilibrium."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, strategies as st
from torch import Tensor, nn

from ffebm import (
    FFEBM,
    BackpropThroughTime,
    Dense,
    DenseLayer,
    EnergyBlock,
    EquilibriumPropagation,
    FixedPoint,
    GradientEstimator,
    Hopfield,
    RecurrentBackprop,
    Unrolled,
    build,
    clamp,
    identity,
    sigmoid,
)
from ffebm.diagnostics import gradients, transients
from ffebm.testing import finite_differences
from nets import CONVERGED, batch, make, relative, worst

EXACT: dict[str, GradientEstimator] = {
    "ID": Unrolled(FixedPoint(150, order="output-last")),
    "recurrent backprop": RecurrentBackprop(FixedPoint(2000, order="output-last", tolerance=1e-14)),
    "BPTT": BackpropThroughTime(),
    "EP": EquilibriumPropagation(FixedPoint(2000, order="output-first", tolerance=1e-14), beta=1e-4),
}
NETS = [("dense", [3, 3]), ("dense", [2, 2, 2]), ("average", [2, 4]), ("average", 2), ("max", [2, 4]), ("max", [2, 2, 2])]


@pytest.mark.parametrize(("kind", "split"), NETS)
def test_every_estimator_gives_the_gradient_of_finite_differences(kind: str, split: int | list[int]) -> None:
    """Of the loss through the whole relaxation, with batch-norm, for every parameter and every estimator."""
    model = make(kind, split, BackpropThroughTime())
    x, y = batch(model)
    slopes = finite_differences(lambda: model(x, y).losses.mean(), dict(model.named_parameters()))
    assert all(block.residual.max() < 1e-12 for block in model.blocks)
    for name, estimator in EXACT.items():
        for parameter, g in gradients(model.use(estimator), x, y).items():
            assert slopes[parameter].error(g) < 1e-5, f"{name}, {parameter}"


@pytest.mark.parametrize("kind", ["dense", "max", "average", "soft"])
@pytest.mark.parametrize("order", ["synchronous", "odd-even", "even-odd", "downward"])
def test_ep_equals_id_at_every_step(kind: str, order: str) -> None:
    """EP(t) = ID(t) for every parameter of a model of three blocks, pooling, batch-norm and a dense tail included."""
    model = make(kind, [2, 3, 1], EquilibriumPropagation())
    x, y = batch(model)
    found = transients(model, x, y, FixedPoint(8, order=order), beta=1e-4)
    assert {t.name for t in found} == {name for name, _ in model.named_parameters()}
    for transient in found:
        assert transient.ep.shape[0] == 9
        assert transient.id[-1].norm() > 0
        assert transient.deviation.max() < 1e-6, transient.name


def test_ep_equals_id_only_if_its_order_is_the_reverse() -> None:
    """Why the order is reversed: nudged sweeps in the order of the recorded ones are far off at the start."""
    model = make("dense", [2, 4], EquilibriumPropagation())
    x, y = batch(model)
    relax = FixedPoint(2, order="odd-even")

    def after_two_sweeps(estimator: GradientEstimator) -> Tensor:
        return gradients(model.use(estimator), x, y)["blocks.1.energy.interactions.1.weight"]

    expected = after_two_sweeps(Unrolled(relax))
    assert relative(after_two_sweeps(EquilibriumPropagation(relax.transposed, beta=1e-4)), expected) < 1e-6
    assert relative(after_two_sweeps(EquilibriumPropagation(relax, beta=1e-4)), expected) > 0.1


@pytest.mark.parametrize("order", ["synchronous", "odd-even", "even-odd"])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_recurrent_backprop_equals_id_with_as_many_sweeps(order: str, steps: int) -> None:
    relax = FixedPoint(steps, order=order)
    model = make("max", [3, 3], Unrolled(relax))
    x, y = batch(model)
    expected = gradients(model, x, y)
    assert worst(gradients(model.use(RecurrentBackprop(relax)), x, y), expected) < 1e-9


def smooth_model(estimator: GradientEstimator, nudge: str) -> FFEBM:
    torch.manual_seed(0)
    layers = [DenseLayer(8), DenseLayer(7), DenseLayer(6), DenseLayer(5)]
    return build(
        (6,),
        layers,
        2,
        4,
        activation=sigmoid(),
        output_activation=sigmoid(),
        relax=CONVERGED,
        estimator=estimator,
        nudge=nudge,
        weights=None,
    ).double()


@pytest.mark.parametrize("nudge", ["elastic", "stationary"])
@pytest.mark.parametrize(("variant", "order"), [("centered", 2), ("positive", 1), ("negative", 1)])
def test_the_error_of_ep_shrinks_with_beta_at_the_order_of_its_variant(variant: str, order: int, nudge: str) -> None:
    model = smooth_model(EXACT["recurrent backprop"], nudge)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2)  # bends the sigmoids, so that there is an error to measure
    x, y = batch(model)
    y = y % 4
    expected = gradients(model, x, y)
    betas = [0.4 / 2**k for k in range(5)]
    errors = []
    for beta in betas:
        relax = FixedPoint(2000, order="output-first", tolerance=1e-14)
        estimator = EquilibriumPropagation(relax, beta=beta, variant=variant)
        found = gradients(model.use(estimator), x, y)
        off = torch.cat([(found[name] - expected[name]).flatten() for name in expected])
        errors.append(off.norm().item())
    slope = _fitted_slope([math.log(b) for b in betas], [math.log(e) for e in errors])
    assert slope == pytest.approx(order, abs=0.2)


def _fitted_slope(x: list[float], y: list[float]) -> float:
    a = torch.tensor([[v, 1.0] for v in x], dtype=torch.float64)
    return torch.linalg.lstsq(a, torch.tensor(y, dtype=torch.float64).unsqueeze(1)).solution[0].item()


@given(
    widths=st.lists(st.integers(1, 8), min_size=1, max_size=4),
    slope=st.sampled_from([0.5, 1.0, 2.0]),
    smooth=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_ep_without_interactions_equals_backprop(widths: list[int], slope: float, smooth: bool, seed: int) -> None:
    """U = 0: the same network as a plain feedforward one, and the same gradients."""
    torch.manual_seed(seed)
    activation = sigmoid() if smooth else clamp(slope)
    sizes = [5, *widths]
    linears = [nn.Linear(a, b).double() for a, b in zip(sizes, widths, strict=False)]
    readout = nn.Linear(widths[-1], 3).double()
    x, y = torch.randn(4, 5, dtype=torch.float64), torch.tensor([0, 1, 2, 0])
    blocks = [
        EnergyBlock(Hopfield([], activation), FixedPoint(1), EquilibriumPropagation(FixedPoint(2), beta=1e-6)) for _ in widths
    ]
    model = FFEBM(linears, blocks, readout)
    out = model(x, y)
    h = x
    for linear in linears:
        h = activation.sigma(linear(h))
    plain = F.cross_entropy(readout(h), y)
    assert out.losses is not None
    torch.testing.assert_close(out.losses.mean(), plain)
    parameters = list(model.parameters())
    ours = torch.cat([g.flatten() for g in torch.autograd.grad(out.losses.mean(), parameters)])
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(plain, parameters)])
    assert (ours - expected).norm() <= 1e-6 * expected.norm()


class TestLinearNets:
    """Unclamped layers: equilibrium and gradients are solutions of linear systems."""

    def setup_method(self) -> None:
        torch.manual_seed(0)
        self.energy = Hopfield([Dense(5, 4), Dense(4, 3)], identity(0.7)).double()
        self.x = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
        self.weights = torch.randn(2, 3, dtype=torch.float64)

    def solve(self) -> Tensor:
        """All layers side by side: (1/a − θ) s = (x, b₂, b₃) with the symmetric block matrix θ."""
        first, second = (edge.weight for edge in self.energy.edges)
        theta = torch.zeros(12, 12, dtype=torch.float64)
        theta[5:9, :5], theta[9:, 5:9] = first, second
        matrix = torch.eye(12, dtype=torch.float64) / 0.7 - theta - theta.T
        biases = [edge.bias.expand(2, -1) for edge in self.energy.edges]
        return torch.linalg.solve(matrix, torch.cat([self.x, *biases], 1).T).T

    def test_the_equilibrium_solves_the_linear_system(self) -> None:
        found = torch.cat(FixedPoint(500)(self.energy, self.x).state, 1)
        torch.testing.assert_close(found, self.solve(), rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("name", EXACT)
    @pytest.mark.parametrize("beta", [1e-4, 1.0])
    def test_gradients_of_the_output_are_those_of_the_linear_system(self, name: str, beta: float) -> None:
        """In a linear net EP is exact at any β, up to rounding."""
        estimator = EXACT[name] if name != "EP" else EquilibriumPropagation(CONVERGED, beta=beta)
        inputs = [self.x, *self.energy.parameters()]
        output = EnergyBlock(self.energy, CONVERGED, estimator)(self.x)
        found = torch.autograd.grad((self.weights * output).sum(), inputs)
        expected = torch.autograd.grad((self.weights * self.solve()[:, 9:]).sum(), inputs)
        for g, e in zip(found, expected, strict=True):
            torch.testing.assert_close(g, e, rtol=1e-8, atol=1e-9)

    @pytest.mark.parametrize("name", EXACT)
    def test_gradients_of_hidden_layers_are_those_of_the_linear_system(self, name: str) -> None:
        """Every layer of the equilibrium is differentiable, not only the output."""
        inputs = [self.x, *self.energy.parameters()]
        relaxed = EnergyBlock(self.energy, CONVERGED, EXACT[name]).equilibrium(self.x)
        weights = torch.randn(2, 12, dtype=torch.float64)
        found = torch.autograd.grad((weights * torch.cat(relaxed.state, 1)).sum(), inputs)
        expected = torch.autograd.grad((weights * self.solve()).sum(), inputs)
        for g, e in zip(found, expected, strict=True):
            torch.testing.assert_close(g, e, rtol=1e-8, atol=1e-9)


def test_second_derivatives_through_recorded_sweeps_are_right() -> None:
    energy = Hopfield([Dense(4, 3)], [sigmoid(), sigmoid()]).double()
    for estimator in (Unrolled(FixedPoint(60)), BackpropThroughTime()):
        x = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradgradcheck(EnergyBlock(energy, FixedPoint(60), estimator), x)


@pytest.mark.parametrize("scale", ["unit", "paper"])
def test_both_scales_of_beta_tend_to_the_gradient(scale: str) -> None:
    model = make("dense", 3, EXACT["recurrent backprop"], nudge="stationary")
    x, y = batch(model)
    expected = gradients(model, x, y)
    relax = FixedPoint(2000, order="output-first", tolerance=1e-14)
    estimator = EquilibriumPropagation(relax, beta=1e-3, scale=scale)
    assert worst(gradients(model.use(estimator), x, y), expected) < 1e-5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 0.0}, r"`beta` must be non-zero, got 0\.0: .*RecurrentBackprop"),
        ({"beta": -0.1}, 'variant="negative"'),
        ({"beta": math.nan}, "`beta` must be positive"),
        ({"beta": 1e-17}, r"`beta` must lie between 4\.4e-16 and 1000"),
        ({"variant": "centred"}, "Unknown variant 'centred'; choose one of 'centered'"),
        ({"scale": "batch"}, "Unknown scale 'batch'"),
    ],
)
def test_refuses_a_beta_variant_or_scale_that_it_does_not_know(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EquilibriumPropagation(**options)


def test_a_tolerance_of_the_nudged_phase_is_relative_to_beta() -> None:
    """An absolute one would call a small nudge settled before it has reached the input."""
    torch.manual_seed(0)
    energy = Hopfield([Dense(64, 64) for _ in range(4)], clamp(0.5)).double()
    x = torch.rand(4, 64, dtype=torch.float64, requires_grad=True)

    def slope(relax: FixedPoint) -> Tensor:
        block = EnergyBlock(energy, CONVERGED, EquilibriumPropagation(relax, beta=1e-3))
        return torch.autograd.grad(block(x).square().sum(), x)[0]

    settled = slope(FixedPoint(200, order="output-first"))
    assert relative(slope(FixedPoint(200, order="output-first", tolerance=1e-5)), settled) < 0.01
    assert relative(slope(FixedPoint(200, order="output-first", tolerance=1e-5 / 1e-3)), settled) > 0.1  # were it absolute


def test_tiny_and_huge_errors_keep_their_gradient() -> None:
    """The square of 1e-30 is zero in float32, its gradient is not."""
    energy = Hopfield([Dense(6, 4)])
    for estimator in (EquilibriumPropagation(), RecurrentBackprop()):
        x = torch.rand(3, 6, requires_grad=True)
        block = EnergyBlock(energy, estimator=estimator)
        (expected,) = torch.autograd.grad(block(x).sum(), x)
        for factor in (1e-30, 1e25):
            (found,) = torch.autograd.grad(factor * block(x).sum(), x)
            assert relative(found.double() / factor, expected.double()) < 1e-5
