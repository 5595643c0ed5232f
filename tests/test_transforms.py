"""`torch.func` on blocks and models: derivatives, per-sample gradients and ensembles where that can be, refusals where not."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vjp, vmap
from torch.nn.utils import prune

from ffebm import (
    FFEBM,
    BackpropThroughTime,
    Convolution,
    Dense,
    DenseLayer,
    EnergyBlock,
    EquilibriumPropagation,
    FixedPoint,
    GradientEstimator,
    Hopfield,
    MaxPool,
    RecurrentBackprop,
    Unrolled,
    build,
    sigmoid,
)
from ffebm.pooling import Pool

SWEEPS = FixedPoint(25)
ESTIMATORS: dict[str, GradientEstimator] = {
    "small signals": EquilibriumPropagation(SWEEPS, variant="small-signal"),
    "centered": EquilibriumPropagation(SWEEPS, beta=0.01),
    "recurrent backprop": RecurrentBackprop(SWEEPS),
    "unrolled": Unrolled(SWEEPS),
    "through time": BackpropThroughTime(),
}

every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)


def model(estimator: GradientEstimator, limit: float | None = None) -> FFEBM:
    net = build((6,), [DenseLayer(5)] * 4, 2, 3, max_contraction=limit).double().eval()
    return net.use(estimator, SWEEPS)


def data() -> tuple[Tensor, Tensor]:
    return torch.rand(4, 6, dtype=torch.float64), torch.arange(4) % 3


def loss_of(net: FFEBM) -> Callable[[dict[str, Tensor], Tensor, Tensor], Tensor]:
    buffers = dict(net.named_buffers())
    return lambda parameters, x, y: functional_call(net, (parameters, buffers), (x, y)).losses.sum()


def detached(net: FFEBM) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in net.named_parameters()}


@every_estimator
@pytest.mark.parametrize("limit", [None, 0.5])
def test_grad_is_the_gradient_and_that_of_every_sample_sums_to_it(estimator: GradientEstimator, limit: float | None) -> None:
    net, (x, y) = model(estimator, limit), data()
    net(x, y).losses.sum().backward()
    expected = {name: p.grad for name, p in net.named_parameters()}
    loss = loss_of(net)
    torch.testing.assert_close(grad(loss)(detached(net), x, y), expected)
    alone = vmap(grad(lambda p, x, y: loss(p, x[None], y[None])), in_dims=(None, 0, 0))(detached(net), x, y)
    assert all(found.shape == (4, *p.shape) for found, p in zip(alone.values(), net.parameters(), strict=True))
    torch.testing.assert_close({name: found.sum(0) for name, found in alone.items()}, expected)


@every_estimator
def test_jacrev_is_one_gradient_per_output(estimator: GradientEstimator) -> None:
    net, (x, _) = model(estimator), data()
    x = x[:1]
    found = jacrev(lambda x: net(x).logits[0])(x)
    x.requires_grad_()
    rows = [torch.autograd.grad(net(x).logits[0, number], x)[0] for number in range(3)]
    torch.testing.assert_close(found, torch.stack(rows))


@every_estimator
def test_an_ensemble_answers_as_its_members(estimator: GradientEstimator) -> None:
    nets, (x, _) = [model(estimator, 0.5) for _ in range(3)], data()
    for net in nets:
        net(x)  # a limit remembers what it has seen
    stacked = stack_module_state(nets)
    base = copy.deepcopy(nets[0]).to("meta")
    found = vmap(lambda p, b, x: functional_call(base, (p, b), (x,)).logits, (0, 0, None))(*stacked, x)
    torch.testing.assert_close(found, torch.stack([net(x).logits for net in nets]))


def test_vjp_is_backward() -> None:
    block = EnergyBlock(Hopfield([Dense(6, 5)]), SWEEPS).double()
    x, error = torch.rand(2, 6, dtype=torch.float64, requires_grad=True), torch.rand(2, 5, dtype=torch.float64)
    block(x).backward(error)
    _, pull = vjp(block, x.detach())
    torch.testing.assert_close(pull(error)[0], x.grad)


def test_a_parameter_that_plays_no_part_has_a_gradient_of_zero() -> None:
    net, (x, _) = model(EquilibriumPropagation()), data()
    buffers = dict(net.named_buffers())
    found = grad(lambda p: functional_call(net, (p, buffers), (x,)).logits.sum() * 0)(detached(net))
    assert not any(g.any() for g in found.values())


@pytest.mark.parametrize("estimator", [Unrolled(SWEEPS), BackpropThroughTime()], ids=["unrolled", "through time"])
@pytest.mark.parametrize("pool", [None, MaxPool(2)])
def test_recorded_sweeps_have_forward_mode_and_second_derivatives(estimator: GradientEstimator, pool: Pool | None) -> None:
    energy = Hopfield([Convolution(2, 3, padding=1, pool=pool)], sigmoid())
    block = EnergyBlock(energy, SWEEPS, estimator, unsettled="ignore").double()
    x, v = torch.rand(2, 1, 2, 4, 4, dtype=torch.float64)
    weight = block.energy.edges[0].weight.detach()

    def loss(x: Tensor, weight: Tensor) -> Tensor:
        return functional_call(block, {"energy.interactions.0.weight": weight}, (x,)).square().sum()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, of what it loads for it
        for number in (0, 1):
            torch.testing.assert_close(jacfwd(loss, number)(x, weight), jacrev(loss, number)(x, weight))
        there = jvp(lambda x: grad(loss)(x, weight), (x,), (v,))[1]
    near = [grad(loss)(x + sign * 1e-6 * v, weight) for sign in (1, -1)]
    torch.testing.assert_close(there, (near[0] - near[1]) / 2e-6, rtol=1e-4, atol=1e-6)


@every_estimator
def test_pruned_models_have_the_gradients_of_what_is_masked(estimator: GradientEstimator) -> None:
    net, (x, y) = model(estimator), data()
    for stage, block in net.chain:
        prune.l1_unstructured(stage.connection, "weight", 0.5)
        prune.l1_unstructured(block.energy.edges[0], "weight", 0.5)
    found = grad(loss_of(net))(detached(net), x, y)
    assert type(net.blocks[0].energy.edges[0].weight) is Tensor, "nothing of a transform is left in the model"
    net(x, y).losses.sum().backward()
    torch.testing.assert_close(found, {name: p.grad for name, p in net.named_parameters()})


class TestRefusals:
    @pytest.mark.parametrize("transform", [jacfwd, hessian])
    def test_forward_mode(self, transform: Callable[..., Callable[[Tensor], Tensor]]) -> None:
        net, (x, _) = model(EquilibriumPropagation()), data()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, of what it loads for it
            with pytest.raises(RuntimeError, match=r"Forward-mode derivatives.*`jacrev`"):
                transform(lambda x: net(x).logits.sum())(x[:1])

    def test_second_derivatives_by_nested_transforms(self) -> None:
        net, (x, _) = model(EquilibriumPropagation()), data()
        with pytest.raises(RuntimeError, match=r"Second derivatives.*a transform within another.*`Unrolled`"):
            jacrev(grad(lambda x: net(x).logits.sum()))(x[:1])

    def test_tolerances_where_every_sample_is_on_its_own(self) -> None:
        block = EnergyBlock(Hopfield([Dense(6, 5)]), FixedPoint(50, tolerance=1e-6), Unrolled(SWEEPS)).double()
        with pytest.raises(TypeError, match=r"fixed number of sweeps, `FixedPoint\(50\)`"):
            vmap(lambda x: block(x[None])[0])(torch.rand(3, 6, dtype=torch.float64))
