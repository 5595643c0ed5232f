"""β must not notice how a loss is scaled, reduced or accumulated."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ffebm import FFEBM, ConvLayer, DenseLayer, EnergyBlock, EquilibriumPropagation, FixedPoint, RecurrentBackprop, build
from nets import relative

SAMPLES = 16


def model(estimator: EquilibriumPropagation, nudge: str) -> FFEBM:
    torch.manual_seed(0)
    layers = [ConvLayer(6), ConvLayer(6), ConvLayer(8), DenseLayer(12)]
    return build((3, 6, 6), layers, 2, 5, batch_norm=False, estimator=estimator, nudge=nudge)


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(SAMPLES, 3, 6, 6, generator=generator), torch.arange(SAMPLES) % 5


def losses(net: FFEBM, x: Tensor, y: Tensor) -> Tensor:
    found = net(x, y).losses
    assert found is not None
    return found


def collect(net: nn.Module) -> Tensor:
    grads = [p.grad.flatten() for p in net.parameters() if p.grad is not None]
    net.zero_grad()
    return torch.cat(grads)


@pytest.mark.parametrize("nudge", ["elastic", "stationary"])
@pytest.mark.parametrize("variant", ["centered", "positive", "negative"])
def test_scale_reduction_and_accumulation(nudge: str, variant: str) -> None:
    net = model(EquilibriumPropagation(variant=variant), nudge)
    x, y = data()
    losses(net, x, y).mean().backward()
    expected = collect(net)

    for factor in (1024.0, 1 / 1024):
        (factor * losses(net, x, y).mean()).backward()
        assert relative(collect(net) / factor, expected) < 1e-5

    losses(net, x, y).sum().backward()
    assert relative(collect(net) / SAMPLES, expected) < 1e-5

    for xs, ys in zip(x.chunk(4), y.chunk(4), strict=True):
        (losses(net, xs, ys).mean() / 4).backward()
    assert relative(collect(net), expected) < 1e-5


def test_the_same_inside_a_plain_sequential() -> None:
    net = model(EquilibriumPropagation(), "elastic")
    parts = [part for pair in net.chain for part in pair]
    plain = nn.Sequential(*parts, net.readout)
    x, y = data()
    F.cross_entropy(plain(x), y).backward()
    expected = collect(plain)
    (1024 * F.cross_entropy(plain(x), y, reduction="sum")).backward()
    assert relative(collect(plain) / (1024 * SAMPLES), expected) < 1e-5


def test_the_papers_scale_changes_with_the_loss() -> None:
    """What the default avoids: β is then a number with a unit."""
    net = model(EquilibriumPropagation(scale="paper"), "stationary")
    x, y = data()
    losses(net, x, y).mean().backward()
    expected = collect(net)
    (1024 * losses(net, x, y).mean()).backward()
    assert relative(collect(net) / 1024, expected) > 0.1


@pytest.mark.parametrize("estimator", [EquilibriumPropagation(), RecurrentBackprop()])
def test_samples_without_error_get_none(estimator: EquilibriumPropagation | RecurrentBackprop) -> None:
    net = model(EquilibriumPropagation(), "stationary")
    _, block = net.chain[0]
    block.estimator = estimator
    x = torch.randn(4, 6, 6, 6, requires_grad=True)
    mask = torch.tensor([1.0, 0.0, 1.0, 0.0]).view(-1, 1, 1, 1)
    (mask * block(x)).sum().backward()
    assert x.grad is not None
    assert x.grad[::2].abs().sum() > 0
    assert x.grad[1::2].abs().sum() == 0
    block(x).mul(0).sum().backward()  # no error at all


@pytest.mark.parametrize("estimator", [EquilibriumPropagation(), EquilibriumPropagation(scale="paper"), RecurrentBackprop()])
def test_overflow_reaches_the_loss_scaler_as_nan(estimator: EquilibriumPropagation | RecurrentBackprop) -> None:
    """A gradient scaler looks for non-finite gradients and skips the step; a relaxation error would stop the run."""
    block = EnergyBlock(model(EquilibriumPropagation(), "elastic").chain[0][1].energy, FixedPoint(5), estimator)
    x = torch.randn(2, 6, 6, 6, requires_grad=True)
    block(x).sum().mul(torch.inf).backward()
    assert x.grad is not None
    assert x.grad.isnan().any()
