"""Inputs with several dimensions of samples, and blocks that begin where they are told to."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ffebm import (
    FFEBM,
    BackpropThroughTime,
    Convolution,
    Convolution1d,
    Dense,
    EnergyBlock,
    EquilibriumPropagation,
    FixedPoint,
    GradientEstimator,
    Hopfield,
    Simulated,
    SystemBlock,
    Unrolled,
    clamp,
    identity,
)
from ffebm.diagnostics import smallest_cosine

SETTLING = FixedPoint(200, tolerance=1e-12)


def dense() -> Hopfield:
    torch.manual_seed(0)
    return Hopfield([Dense(6, 4)], [clamp(0.5), identity()]).double()


def test_dense_blocks_take_as_many_dimensions_of_samples_as_linear_layers() -> None:
    block, x = EnergyBlock(dense(), SETTLING), torch.rand(3, 5, 2, 6, dtype=torch.float64, requires_grad=True)
    out = block(x)
    assert out.shape == nn.Linear(6, 4).double()(x).shape
    out.square().sum().backward()
    flat = x.detach().reshape(30, 6).requires_grad_()
    expected = block(flat)
    torch.testing.assert_close(out.reshape(30, 4), expected)
    expected.square().sum().backward()
    torch.testing.assert_close(x.grad.reshape(30, 6), flat.grad)


@pytest.mark.parametrize("shape", [(2, 1, 6), (1, 1, 1, 6), (1, 6), (3, 2, 6)])
def test_all_ways_to_ask_a_block_agree_with_linear_layers_on_shapes(shape: tuple[int, ...]) -> None:
    block, x = EnergyBlock(dense(), SETTLING), torch.rand(shape, dtype=torch.float64)
    out = block(x)
    assert out.shape == nn.Linear(6, 4).double()(x).shape
    for relaxed in (block.equilibrium(x), block.settle(x)):
        assert [s.shape for s in relaxed.state] == [shape, (*shape[:-1], 4)]
        assert relaxed.residual.shape == relaxed.sweeps.shape == shape[:-1]
        torch.testing.assert_close(relaxed.state[-1], out)
    torch.testing.assert_close(block.eval().inference(x), out)
    torch.testing.assert_close(block(x, block.settle(x).state), out)
    torch.testing.assert_close(block(x, tuple(s.flatten(0, -2) for s in block.settle(x).state)), out)


def test_a_model_refuses_several_dimensions_of_samples() -> None:
    net = FFEBM([nn.Linear(6, 8)], [EnergyBlock(Hopfield([Dense(8, 5)]))], nn.Linear(5, 3)).eval()
    x, y = torch.rand(2, 4, 6), torch.arange(8).view(2, 4) % 3
    words = r"block 1 of 1 got an input of shape \(\d, 4, 8\), several dimensions of samples, \(B, T, D\)"
    for ask in (lambda: net(x), lambda: net(x, y), lambda: net.summary((4, 6)), lambda: net.inference(x)):
        with pytest.raises(ValueError, match=words):
            ask()
    assert net(x.flatten(0, 1), y.flatten()).losses.shape == (8,)
    assert net(x[:, :1]).logits.shape == (2, 1, 3), "one sample each is no harm"


def test_what_is_flattened_into_a_dense_layer_stays_one_sample() -> None:
    block = EnergyBlock(Hopfield([Dense(2 * 3 * 6, 4)]))
    assert block(torch.rand(5, 2, 3, 6)).shape == (5, 4)
    with pytest.raises(ValueError, match="does not fit"):
        block(torch.rand(5, 2, 3, 7))


def test_images_have_one_dimension_of_samples() -> None:
    block = EnergyBlock(Hopfield([Convolution(2, 3, padding=1)]))
    with pytest.raises(ValueError, match="does not fit"):
        block(torch.rand(4, 5, 2, 6, 6))


def test_sequences_settle_and_learn() -> None:
    block = EnergyBlock(Hopfield([Convolution1d(2, 3, padding=1), Dense(3 * 8, 4)]), max_contraction=0.4)
    out = block(torch.rand(5, 2, 8))
    assert out.shape == (5, 4)
    assert block.limit.certificate.contraction <= 0.4 + 1e-9
    out.sum().backward()
    assert all(p.grad.abs().max() > 0 for p in block.energy.parameters())


@pytest.mark.parametrize("estimator", [EquilibriumPropagation(beta=1e-4), Unrolled(FixedPoint(40)), BackpropThroughTime()])
def test_a_warm_start_settles_sooner_in_the_same_equilibrium_with_the_same_gradient(estimator: GradientEstimator) -> None:
    x = torch.rand(8, 6, dtype=torch.float64)
    found = []
    for start in (None, "warm"):
        block = EnergyBlock(dense(), SETTLING, estimator)
        if start == "warm":
            start = block.settle(x + 1e-3).state
        block(x, start).square().sum().backward()
        found.append((block.sweeps.float().mean().item(), {name: p.grad for name, p in block.named_parameters()}))
    (cold, expected), (warm, gradients) = found
    assert warm < cold
    if not isinstance(estimator, BackpropThroughTime):  # which differentiates the way that was taken
        assert smallest_cosine(gradients, expected)[0] > 1 - 1e-6


def test_a_start_of_another_shape_is_refused() -> None:
    block, x = EnergyBlock(dense()), torch.rand(8, 6, dtype=torch.float64)
    with pytest.raises(ValueError, match="must be a tuple of 2 tensors, one per activation, each with the batch of 8 first"):
        block(x, (x,))


def test_systems_begin_where_they_begin() -> None:
    system = Simulated(dense(), SETTLING)
    block, x = SystemBlock(system), torch.rand(8, 6, dtype=torch.float64)
    with pytest.raises(TypeError, match="begins where its system begins"):
        block(x, system.start(x))
