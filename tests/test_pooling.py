from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ffebm import AveragePool, MaxPool, SoftPool
from ffebm.pooling import Pool

WINDOWS = [(2, None), (3, 2), (2, 1), (3, 3)]  # (3, 2) and (2, 1) overlap, and 7 pixels do not divide


@pytest.mark.parametrize("kind", [MaxPool, AveragePool, SoftPool])
@pytest.mark.parametrize(("window", "stride"), WINDOWS)
def test_transpose_is_the_derivative(kind: type[Pool], window: int, stride: int | None) -> None:
    pool = kind(window, stride)
    u = torch.randn(2, 3, 7, 7, dtype=torch.float64, requires_grad=True)
    pooled = pool(u)
    g = torch.randn_like(pooled)
    (expected,) = torch.autograd.grad(pooled, u, g)
    torch.testing.assert_close(pool.transpose(u.detach(), g), expected)


@pytest.mark.parametrize("kind", [MaxPool, AveragePool, SoftPool])
def test_transpose_is_differentiable(kind: type[Pool]) -> None:
    """Recorded sweeps differentiate the top-down current once more."""
    pool = kind()
    u = torch.randn(1, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    g = torch.randn(1, 2, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(pool.transpose, (u, g))


@pytest.mark.parametrize("kind", [MaxPool, AveragePool, SoftPool])
@pytest.mark.parametrize(("window", "stride"), WINDOWS)
def test_out_size_is_the_size_of_what_pooling_returns(kind: type[Pool], window: int, stride: int | None) -> None:
    pool = kind(window, stride)
    assert pool(torch.zeros(1, 1, 7, 7)).shape[-1] == pool.out_size(7)


def test_soft_pooling_against_its_definition() -> None:
    u = torch.randn(1, 1, 2, 2, dtype=torch.float64)
    weights = u.exp() / u.exp().sum()
    torch.testing.assert_close(SoftPool()(u).squeeze(), (weights * u).sum())


def test_soft_pooling_does_not_overflow() -> None:
    u = torch.tensor([[[[1e4, -1e4], [0.0, 1.0]]]])
    assert SoftPool()(u).item() == pytest.approx(1e4)


def test_max_and_average_are_those_of_torch() -> None:
    u = torch.randn(2, 3, 8, 8)
    assert torch.equal(MaxPool()(u), F.max_pool2d(u, 2))
    assert torch.equal(AveragePool()(u), F.avg_pool2d(u, 2))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("window", "stride"), WINDOWS)
def test_latched_positions_make_a_linear_map_that_agrees_where_they_were_taken(
    window: int, stride: int | None, layout: torch.memory_format
) -> None:
    pool = MaxPool(window, stride)
    u, v, w = (torch.randn(4, 3, 7, 7, dtype=torch.float64).to(memory_format=layout) for _ in range(3))
    latched = pool.latched(u)
    assert torch.equal(latched(u), pool(u))
    g = torch.randn_like(pool(u))
    assert torch.equal(latched.transpose(u, g), pool.transpose(u, g))
    torch.testing.assert_close(latched(2 * v + w), 2 * latched(v) + latched(w))
    torch.testing.assert_close((g * latched(v)).sum(), (latched.transpose(v, g) * v).sum())
    assert not torch.equal(latched(v), pool(v))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_latched_positions_are_handed_on_with_what_they_pool(layout: torch.memory_format) -> None:
    u, v = (torch.randn(4, 3, 6, 6, dtype=torch.float64).to(memory_format=layout) for _ in range(2))
    latched, g = MaxPool().latched(u), torch.randn(4, 3, 3, 3, dtype=torch.float64)
    pooled, positions = latched.pooled(v)
    assert torch.equal(pooled, latched(v))
    assert torch.equal(latched.transpose(v, g, positions), latched.transpose(v, g))


@pytest.mark.parametrize("images", [1, 2, 8])
def test_latched_positions_refuse_another_number_of_images(images: int) -> None:
    """A smaller batch, a part of it, and the batch twice."""
    latched = MaxPool().latched(torch.randn(4, 3, 6, 6))
    u, g = torch.randn(images, 3, 6, 6), torch.randn(images, 3, 3, 3)
    refused = f"latched for 4 images, got {images}: latch them for these"
    with pytest.raises(ValueError, match=refused):
        latched(u)
    with pytest.raises(ValueError, match=refused):
        latched.pooled(u)
    with pytest.raises(ValueError, match=refused):
        latched.transpose(u, g)


@pytest.mark.parametrize("kind", [AveragePool, SoftPool])
def test_smooth_pooling_has_nothing_to_latch(kind: type[Pool]) -> None:
    pool = kind()
    assert pool.latched(torch.randn(1, 1, 4, 4)) is pool


@pytest.mark.parametrize(("window", "stride"), [(0, None), (2, 0), (-1, 1)])
def test_refuses_windows_without_pixels(window: int, stride: int | None) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        MaxPool(window, stride)
