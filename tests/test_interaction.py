from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from ffebm import AveragePool, Convolution, Convolution1d, Dense, Interaction, MaxPool, SoftPool
from ffebm.derivative import differentiate
from ffebm.interaction import Shape
from nets import relative

EDGES: dict[str, tuple[Interaction, Shape]] = {
    "dense": (Dense(6, 4), (6,)),
    "dense on an image": (Dense(2 * 3 * 3, 4, bias=False), (2, 3, 3)),
    "convolution": (Convolution(2, 3, padding=1), (2, 6, 6)),
    "no bias": (Convolution(2, 3, padding=1, bias=False), (2, 6, 6)),
    "kernel 1": (Convolution(2, 3, 1), (2, 6, 6)),
    "stride 2": (Convolution(2, 3, 3, stride=2, padding=1), (2, 6, 6)),
    "stride 3, odd image": (Convolution(2, 3, 2, stride=3), (2, 7, 9)),
    "rectangular": (Convolution(2, 3, (3, 2), stride=(1, 2), padding=(1, 0)), (2, 6, 7)),
    "groups": (Convolution(4, 6, padding=1, groups=2), (4, 5, 5)),
    "dilated": (Convolution(2, 3, 3, stride=2, padding=(2, 1), dilation=(2, 1)), (2, 8, 7)),
    "sequence": (Convolution1d(2, 3, padding=1), (2, 6)),
    "strided sequence": (Convolution1d(4, 6, 4, stride=3, dilation=2, groups=2, bias=False), (4, 15)),
    "groups, pooled": (Convolution(4, 6, (3, 1), padding=(1, 0), groups=2, pool=AveragePool()), (4, 6, 6)),
    "max": (Convolution(2, 3, padding=1, pool=MaxPool()), (2, 6, 6)),
    "average": (Convolution(2, 3, padding=1, pool=AveragePool()), (2, 7, 7)),
    "soft": (Convolution(2, 3, padding=1, pool=SoftPool()), (2, 6, 6)),
    "overlapping max": (Convolution(2, 3, padding=1, pool=MaxPool(3, 2)), (2, 7, 7)),
}


class Squared(Interaction):
    """An edge that is neither linear nor given in closed form."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3))

    def up(self, pre: Tensor) -> Tensor:
        return self.weight * pre.square()

    def out_shape(self, shape: Shape) -> Shape:
        return shape


EDGES["custom"] = (Squared(), (3,))


@pytest.fixture(params=EDGES)
def ends(request: pytest.FixtureRequest) -> tuple[Interaction, Tensor, Tensor]:
    edge, shape = EDGES[request.param]
    pre = torch.randn(4, *shape, dtype=torch.float64)
    return edge.double(), pre, torch.randn(4, *edge.out_shape(shape), dtype=torch.float64)


def test_out_shape_is_the_shape_that_up_returns(ends: tuple[Interaction, Tensor, Tensor]) -> None:
    edge, pre, post = ends
    assert edge.up(pre).shape == post.shape


def test_down_is_the_transpose_of_up(ends: tuple[Interaction, Tensor, Tensor]) -> None:
    edge, pre, post = ends
    pre.requires_grad_()
    (expected,) = torch.autograd.grad((post * edge.up(pre)).sum(), pre)
    torch.testing.assert_close(edge.down(pre.detach(), post), expected)
    with torch.no_grad():
        torch.testing.assert_close(edge.down(pre, post), expected)


def test_energy_is_minus_the_product_of_post_and_up(ends: tuple[Interaction, Tensor, Tensor]) -> None:
    edge, pre, post = ends
    torch.testing.assert_close(edge(pre, post), -(post * edge.up(pre)).flatten(1).sum(1))


def test_contrast_has_the_derivative_of_a_difference_of_energies(ends: tuple[Interaction, Tensor, Tensor]) -> None:
    edge, pre, post = ends
    high, low = (pre, post), (pre + torch.randn_like(pre), post + torch.randn_like(post))
    weights = torch.randn(4, dtype=torch.float64)
    x = torch.zeros(1, requires_grad=True)
    expected = differentiate((weights * (edge(*high) - edge(*low))).sum(), x, edge).parameters
    with torch.no_grad():
        torch.testing.assert_close(edge.contrast_gradient(high, low, weights), expected)


def test_contrast_gradient_leaves_out_what_wants_none(ends: tuple[Interaction, Tensor, Tensor]) -> None:
    edge, pre, post = ends
    edge = copy.deepcopy(edge)
    high, low, weights = (pre, post), (2 * pre, post / 2), torch.randn(4, dtype=torch.float64)
    expected = edge.contrast_gradient(high, low, weights)
    assert expected.keys() == {name for name, _ in edge.named_parameters()}
    edge.weight.requires_grad_(False)
    found = edge.contrast_gradient(high, low, weights)
    assert "weight" not in found
    torch.testing.assert_close(found, {name: gradient for name, gradient in expected.items() if name != "weight"})


@pytest.mark.parametrize(
    ("edge", "shape"),
    [(Convolution(16, 16, padding=1), (16, 16, 16)), (Dense(300, 200), (300,))],
    ids=["convolution", "dense"],
)
def test_contrast_gradient_keeps_the_float32_digits_that_subtracting_energies_loses(edge: Interaction, shape: Shape) -> None:
    """For a nudge that moves units by 1e-4: at least twenty times more accurate."""
    pre, post = torch.rand(4, *shape), torch.rand(4, *edge.out_shape(shape))
    low = pre + 1e-4 * torch.randn_like(pre), post + 1e-4 * torch.randn_like(post)
    weights, x = torch.ones(4), torch.zeros(1, requires_grad=True)
    wide = copy.deepcopy(edge).double()
    differences = wide(pre.double(), post.double()) - wide(low[0].double(), low[1].double())
    exact = differentiate(differences.sum(), x, wide).parameters["weight"]
    ours = relative(edge.contrast_gradient((pre, post), low, weights)["weight"].double(), exact)
    plain = relative(differentiate((edge(pre, post) - edge(*low)).sum(), x, edge).parameters["weight"].double(), exact)
    assert ours < 1e-5
    assert plain > 20 * ours


def test_macs_count_the_multiply_accumulates_of_up() -> None:
    assert Dense(6, 4).macs((6,)) == 24
    assert Convolution(2, 3, 3, padding=1, pool=MaxPool()).macs((2, 6, 6)) == 2 * 3 * 9 * 36
    assert Convolution(2, 3, 3, stride=2, padding=1).macs((2, 6, 6)) == 2 * 3 * 9 * 9
    assert Squared().macs((3,)) is None


@pytest.mark.parametrize(
    ("edge", "shape", "message"),
    [
        (Dense(6, 4), (7,), "expects 6 inputs, got 7"),
        (Convolution(2, 3), (4, 8, 8), r"expects a layer of shape \(2, height, width\), got \(4, 8, 8\)"),
        (Convolution(2, 3), (8,), "expects a layer of shape"),
        (Convolution(2, 3, pool=MaxPool(4)), (2, 4, 4), "leaves nothing"),
    ],
)
def test_refuses_layers_that_do_not_fit(edge: Interaction, shape: Shape, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        edge.out_shape(shape)


@pytest.mark.parametrize("sizes", [{"in_channels": 0}, {"out_channels": -1}, {"kernel": 0}, {"stride": 0}, {"padding": -1}])
def test_refuses_impossible_convolutions(sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(sizes))):
        Convolution(**({"in_channels": 2, "out_channels": 3} | sizes))


def test_refuses_impossible_dense_layers() -> None:
    with pytest.raises(ValueError, match="out_features"):
        Dense(3, 0)
