"""A limit on contraction: blocks that settle whatever they learn, and what becomes of their weights."""

from __future__ import annotations

import copy
import io
import math
import pickle
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from ffebm import (
    FFEBM,
    Activation,
    AveragePool,
    ConvLayer,
    Convolution,
    Dense,
    Edge,
    Energy,
    EnergyBlock,
    EquilibriumPropagation,
    FixedPoint,
    Hopfield,
    Interaction,
    MaxPool,
    SoftPool,
    State,
    build,
    clamp,
    identity,
    sigmoid,
    tanh,
)
from ffebm.experiment.training.health import several
from ffebm.experiment.training.progress import _promised
from ffebm.limit import SHORT, EdgeGains, Limit, shares

LIMIT = 0.3


def dense(feedback: float = 1.0) -> Hopfield:
    return Hopfield([Dense(8, 7), Dense(7, 6)], [clamp(0.5), clamp(1.0), identity()], feedback=feedback)


def skipping() -> Hopfield:
    return Hopfield([Dense(8, 7), Dense(7, 6), Edge(0, 2, Dense(8, 6))], [tanh(), sigmoid(), identity()], feedback=0.4)


def images(pool: type[AveragePool | MaxPool]) -> Hopfield:
    return Hopfield([Convolution(2, 3, padding=1, pool=pool()), Dense(12, 6)], [clamp(0.5), clamp(0.5), identity()])


NETS: dict[str, tuple[Callable[[], Hopfield], tuple[int, ...]]] = {
    "dense": (dense, (8,)),
    "feedback": (lambda: dense(0.2), (8,)),
    "skipping": (skipping, (8,)),
    "average": (lambda: images(AveragePool), (2, 4, 4)),
    "max": (lambda: images(MaxPool), (2, 4, 4)),
}


def block_of(net: str = "dense", limit: float | None = LIMIT, seed: int = 0) -> EnergyBlock:
    torch.manual_seed(seed)
    energy = NETS[net][0]().double()
    return EnergyBlock(energy, FixedPoint(20), unsettled="ignore", max_contraction=limit)


def data_of(net: str = "dense", samples: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(samples, *NETS[net][1], generator=generator, dtype=torch.float64)
    return x, 3 * torch.randn(samples, 6, generator=generator, dtype=torch.float64)


def contraction(block: EnergyBlock, net: str = "dense") -> float:
    certificate = block.certify(NETS[net][1])
    assert certificate is not None
    return certificate.contraction


def train(
    block: EnergyBlock, optimiser: torch.optim.Optimizer, x: Tensor, y: Tensor, steps: int, parts: int = 1
) -> list[dict[str, Tensor]]:
    """Weights as they were in the forward pass of every step."""
    used = []
    for _ in range(steps):
        optimiser.zero_grad()
        for some_x, some_y in zip(x.chunk(parts), y.chunk(parts), strict=True):
            (block(some_x) - some_y).square().mean().div(parts).backward()
        used.append({name: p.detach().clone() for name, p in block.energy.named_parameters()})
        optimiser.step()
    return used


def adam(block: EnergyBlock, rate: float = 0.1, **how: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(block.parameters(), rate, **how)


def same(first: nn.Module, second: nn.Module) -> bool:
    """Bit for bit, vectors and all."""
    one, other = first.state_dict(), second.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("net", NETS)
def test_every_step_of_fast_training_is_made_within_the_limit(net: str) -> None:
    block, (x, y) = block_of(net), data_of(net)
    found = []
    for used in train(block, adam(block), x, y, 20):
        block.energy.load_state_dict(used)
        found.append(contraction(block, net))
    assert max(found) < 1.05 * LIMIT
    assert max(found) > 0.9 * LIMIT, "or the limit never mattered"
    assert block.limit.certificate.contraction <= LIMIT * (1 + 1e-9)


def test_without_a_limit_the_same_training_leaves_it() -> None:
    block, (x, y) = block_of(limit=None), data_of()
    train(block, adam(block), x, y, 20)
    assert contraction(block) > 1
    assert block.limit is None


@pytest.mark.parametrize("how", [{"fused": True}, {"foreach": True}, {"foreach": False}], ids=str)
def test_every_kind_of_optimiser_is_noticed(how: dict[str, bool]) -> None:
    """Fused ones change weights without leaving a trace in their versions."""
    block, (x, y) = block_of(), data_of()
    train(block, adam(block, **how), x, y, 5)
    block(x)
    assert contraction(block) < 1.05 * LIMIT


def test_weights_that_are_written_past_autograd_are_noticed() -> None:
    block, (x, _) = block_of(), data_of()
    block(x)
    for edge in block.energy.edges:
        edge.weight.data.mul_(10)
    block(x)
    assert contraction(block) < 1.05 * LIMIT


def test_weights_that_begin_at_zero_are_limited_once_they_grow() -> None:
    """A power iteration must not take the zero vector for an end."""
    block, (x, _) = block_of(), data_of()
    for edge in block.energy.edges:
        nn.init.zeros_(edge.weight)
    block(x)
    assert contraction(block) == 0
    for edge in block.energy.edges:
        nn.init.normal_(edge.weight)
    block(x)
    assert contraction(block) < 1.05 * LIMIT


def test_growth_in_a_direction_that_weights_did_not_have_is_noticed() -> None:
    """After many iterations the vector of a diagonal matrix has nothing left of all others but zeros."""
    energy = Hopfield([Dense(4, 4)], identity()).double()
    block, x = EnergyBlock(energy, max_contraction=LIMIT), torch.zeros(1, 4, dtype=torch.float64)
    with torch.no_grad():
        energy.edges[0].weight.copy_(torch.diag(torch.tensor([0.4, 0.01, 0.01, 0.01])))
        for _ in range(3):
            block(x)
            energy.edges[0].weight[0, 0] *= 0.99
        energy.edges[0].weight[3, 3] = 5.0
        block(x)
    assert block.certify((4,)).contraction < 1.05 * LIMIT


def test_weights_below_the_limit_are_not_touched() -> None:
    block, (x, _) = block_of(limit=0.99), data_of()
    for edge in block.energy.edges:
        edge.weight.data.mul_(0.3)
    before = copy.deepcopy(block.energy.state_dict())
    block(x)
    assert all(torch.equal(before[name], p) for name, p in block.energy.state_dict().items())
    assert block.limit.certificate.contraction == pytest.approx(contraction(block) / SHORT**2, rel=1e-3)


def test_only_weights_above_their_share_are_scaled_and_no_bias() -> None:
    block, (x, _) = block_of(), data_of()
    first, second = block.energy.edges
    second.weight.data.mul_(0.01)
    before = copy.deepcopy(block.energy.state_dict())
    block(x)
    allowed = shares(block.energy, 2, LIMIT)
    assert torch.linalg.matrix_norm(first.weight, 2).item() == pytest.approx(SHORT * allowed[0], rel=1e-3)
    ratio = first.weight / before["interactions.0.weight"]
    torch.testing.assert_close(ratio, torch.full_like(ratio, ratio[0, 0].item()))
    for name in ("interactions.0.bias", "interactions.1.weight", "interactions.1.bias"):
        assert torch.equal(block.energy.state_dict()[name], before[name]), name


def test_an_interaction_that_serves_two_edges_is_scaled_once() -> None:
    edge = Dense(4, 4).double()
    block = EnergyBlock(Hopfield([edge, edge], identity()), max_contraction=LIMIT)
    edge.weight.data.mul_(10)
    block(torch.rand(2, 4, dtype=torch.float64))
    assert block.certify((4,)).contraction == pytest.approx(SHORT**2 * LIMIT, rel=1e-3)


def test_evaluation_sees_weights_within_the_limit_and_changes_nothing_that_training_would_not() -> None:
    """Whichever pass comes first after a step brings them back, so looking in between leaves no trace."""
    watched, alone, (x, y) = block_of(), block_of(), data_of()
    ours, theirs = adam(watched), adam(alone)
    for _ in range(4):
        train(watched, ours, x, y, 1)
        train(alone, theirs, x, y, 1)
        with torch.inference_mode():
            watched.eval()(x)
        assert contraction(watched) < 1.05 * LIMIT
        assert contraction(alone) > LIMIT, "a step leaves it"
        kept = copy.deepcopy(watched.state_dict())
        watched(x)
        assert same_as(watched.train(), kept)
    watched(x)
    alone(x)
    assert same(watched, alone)


def same_as(block: EnergyBlock, state: dict[str, Tensor]) -> bool:
    now = block.state_dict()
    return now.keys() == state.keys() and all(torch.equal(now[name], state[name]) for name in state)


def test_a_second_pass_without_a_step_changes_no_bit_and_both_go_back() -> None:
    block, (x, y) = block_of(), data_of()
    optimiser = adam(block)
    train(block, optimiser, x, y, 3)
    block.zero_grad()
    first = block(x)
    kept, versions = copy.deepcopy(block.state_dict()), [p._version for p in block.parameters()]
    second = block(x.flip(0))
    assert same_as(block, kept)
    assert versions == [p._version for p in block.parameters()]
    (first.sum() + second.sum()).backward()
    single = copy.deepcopy([p.grad for p in block.parameters()])
    block.zero_grad()
    for part in (x, x.flip(0)):
        block(part).sum().backward()
    torch.testing.assert_close([p.grad for p in block.parameters()], single, rtol=0, atol=1e-12)


def test_weights_are_brought_back_once_a_step_with_gradients_accumulated() -> None:
    parted, whole, (x, y) = block_of(), block_of(), data_of()
    ours, theirs = train(parted, adam(parted), x, y, 10, parts=3), train(whole, adam(whole), x, y, 10)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    calls = 0

    class Counting(EdgeGains):
        def measure(self, *args: Any, **kwargs: Any) -> list[float]:
            nonlocal calls
            calls += 1
            return super().measure(*args, **kwargs)

    counted = block_of()
    counted.limit.gains = Counting()
    train(counted, adam(counted), x, y, 4, parts=3)
    assert calls == 4


@pytest.mark.parametrize("after_forward", [False, True])
@pytest.mark.parametrize("net", ["dense", "average"])
def test_training_goes_on_to_the_same_bits_from_a_state_dict(net: str, after_forward: bool) -> None:
    straight, (x, y) = block_of(net), data_of(net)
    optimiser = adam(straight)
    train(straight, optimiser, x, y, 4)
    if after_forward:  # in the middle of a step
        optimiser.zero_grad()
        (straight(x) - y).square().mean().backward()
    file = io.BytesIO()
    torch.save({"block": straight.state_dict(), "optimiser": optimiser.state_dict()}, file)
    resumed = block_of(net, seed=7)
    assert not resumed.limit.gains.state_dict(), "it has seen no input"
    file.seek(0)
    saved = torch.load(file)
    assert any("vector" in name for name in saved["block"])
    resumed.load_state_dict(saved["block"])
    again = adam(resumed)
    again.load_state_dict(saved["optimiser"])
    if after_forward:
        for ours, theirs in zip(resumed.parameters(), straight.parameters(), strict=True):
            ours.grad = theirs.grad.clone()
        optimiser.step()
        again.step()
    train(straight, optimiser, x, y, 4)
    train(resumed, again, x, y, 4)
    assert same(straight, resumed)


def test_a_block_takes_back_its_own_state_from_before_the_first_pass() -> None:
    block, (x, y) = block_of(), data_of()
    before = copy.deepcopy(block.state_dict())
    train(block, adam(block), x, y, 2)
    block.load_state_dict(before)
    again = block_of()
    train(block, adam(block), x, y, 2)
    train(again, adam(again), x, y, 2)
    assert same(block, again)


def test_vectors_follow_the_precision_of_the_block_that_loads_them() -> None:
    wide, (x, _) = block_of(), data_of()
    wide(x)
    narrow = block_of().float()
    narrow.load_state_dict(wide.state_dict())
    narrow(x.float())
    assert contraction(narrow) < 1.05 * LIMIT
    assert contraction(narrow.double()) < 1.05 * LIMIT


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda block: pickle.loads(pickle.dumps(block))], ids=["copy", "pickle"])
def test_copies_train_to_the_same_bits(copied: Callable[[EnergyBlock], EnergyBlock]) -> None:
    block, (x, y) = block_of(), data_of()
    train(block, adam(block), x, y, 3)
    other = copied(block)
    for each in (block, other):
        train(each, adam(each), x, y, 3)
    assert same(block, other)
    assert other.limit.max_contraction == LIMIT
    assert not {id(t) for t in block.state_dict(keep_vars=True).values()} & {
        id(t) for t in other.state_dict(keep_vars=True).values()
    }


def test_a_copy_that_loads_other_weights_is_limited() -> None:
    block, (x, _) = block_of(), data_of()
    block(x)
    large = {name: 100 * t if name.endswith("weight") else t for name, t in block.state_dict().items()}
    for loads in (1, 2, 3):  # one of them may bring versions to where they were
        other = copy.deepcopy(block)
        for _ in range(loads):
            other.load_state_dict(large)
        other(x)
        assert contraction(other) < 1.05 * LIMIT


def test_processes_that_train_alike_stay_alike() -> None:
    """Vectors are drawn from seeds of their own, whatever a process drew before."""
    first, second, (x, y) = block_of(), block_of(), data_of()
    train(first, adam(first), x, y, 4)
    torch.randn(100)
    train(second, adam(second), x, y, 4)
    assert same(first, second)


def test_a_pass_in_inference_mode_does_not_spoil_training() -> None:
    block, (x, y) = block_of(), data_of()
    with torch.inference_mode():
        block(x)
    train(block, adam(block), x, y, 2)
    block(x)
    assert contraction(block) < 1.05 * LIMIT


def test_images_of_another_size_are_limited_for_their_size() -> None:
    torch.manual_seed(0)
    energy = Hopfield([Convolution(2, 3, padding=1), Convolution(3, 3, padding=1)]).double()
    block = EnergyBlock(energy, max_contraction=LIMIT)
    for size in (3, 9):
        block(torch.rand(1, 2, size, size, dtype=torch.float64))
        assert block.certify((2, size, size)).contraction < LIMIT
        assert block.limit.certificate.contraction >= block.certify((2, size, size)).contraction


def test_images_of_the_same_size_are_limited_when_they_grow() -> None:
    torch.manual_seed(0)
    energy = Hopfield([Convolution(2, 3, padding=1), Convolution(3, 3, padding=1)]).double()
    block = EnergyBlock(energy, max_contraction=LIMIT)
    for _ in range(2):
        block(torch.rand(1, 2, 9, 9, dtype=torch.float64))
        for edge in energy.edges:
            edge.weight.data.mul_(3)
    block(torch.rand(1, 2, 9, 9, dtype=torch.float64))
    assert block.certify((2, 9, 9)).contraction < LIMIT


def test_a_certificate_is_of_the_weights_that_were_loaded() -> None:
    energy = [Hopfield([Dense(8, 7)], identity()).double() for _ in range(2)]
    one, other = (EnergyBlock(e, max_contraction=LIMIT) for e in energy)
    x = torch.rand(2, 8, dtype=torch.float64)
    with torch.no_grad():
        one.energy.edges[0].weight.mul_(0.01)
    one(x), other(x)
    other.load_state_dict(one.state_dict())
    assert other.limit.certificate is None
    kept = copy.deepcopy(other.state_dict())
    other(x)
    assert same_as(other, kept), "looking at it changes nothing"
    assert other.limit.certificate.contraction == pytest.approx(one.limit.certificate.contraction, rel=1e-4)


def test_fast_training_never_leaves_the_limit_by_the_true_gain() -> None:
    """Convolutions, whose gains are found slowly: the certificate must not promise more than singular values keep."""
    torch.manual_seed(0)
    energy = Hopfield([Convolution(8, 8, 3, padding=1)], [clamp(1.0), identity()])
    block = EnergyBlock(energy, FixedPoint(6), EquilibriumPropagation(variant="small-signal"), max_contraction=0.5)
    optimiser = torch.optim.Adam(block.parameters(), 4e-3)
    x, y = torch.randn(8, 8, 8, 8), 3 * torch.randn(8, 8, 8, 8)
    for _ in range(60):
        optimiser.zero_grad()
        (block(x) - y).square().mean().backward()
        true = EdgeGains().double().measure(copy.deepcopy(energy).double(), (8, 8, 8), 500)
        found = energy.certificate(true).contraction
        assert found <= block.limit.certificate.contraction <= 0.5 + 1e-9
        optimiser.step()
    assert found > 0.4, "the limit mattered"


def test_what_settles_beside_a_forward_pass_has_the_same_weights() -> None:
    block, (x, y) = block_of(), data_of()
    train(block, adam(block), x, y, 5)
    assert torch.equal(block.settle(x).state[-1], block(x))


def test_a_limited_block_settles_within_the_sweeps_that_it_promises() -> None:
    block, (x, y) = block_of(), data_of()
    train(block, adam(block), x, y, 10)
    block(x)
    certificate = block.limit.certificate
    assert certificate.unique
    with torch.no_grad():
        short, long = (FixedPoint(n)(block.energy, x).state for n in (certificate.sweeps(1e-3), 500))
        zero = block.energy.init_state(x)
    sizes = [math.sqrt(block.energy.layer_weight(k) / a.gain) for k, a in enumerate(block.energy.activations)]
    left, way = (
        torch.stack([size * (s - t).norm(dim=1) for size, s, t in zip(sizes, state, long, strict=True)]).norm(dim=0)
        for state in (short, zero)
    )
    assert (left <= 1.05e-3 * way).all()


def test_a_limit_far_below_makes_weights_nearly_vanish_and_one_near_1_leaves_them() -> None:
    x, _ = data_of()
    sizes = []
    for limit in (1e-4, 0.5, 0.999):
        block = block_of(limit=limit)
        block(x)
        sizes.append(sum(edge.weight.norm().item() for edge in block.energy.edges))
    assert sizes[0] < 0.1 * sizes[1] < sizes[2]


@pytest.mark.parametrize("bad", [0, 1, -1, 0.0, 1.0, float("nan"), float("inf"), "x", True, (0.5,)], ids=str)
def test_limits_that_are_no_contraction_are_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="`max_contraction` must lie between 0 and 1, got"):
        EnergyBlock(dense(), max_contraction=bad)
    with pytest.raises(ValueError, match="`max_contraction`"):
        Limit(bad)


def test_a_parametrised_weight_that_would_have_to_be_scaled_is_refused() -> None:
    edge = parametrizations.weight_norm(Dense(8, 7)).double()
    edge.parametrizations.weight.original0.data.mul_(10)
    block = EnergyBlock(Hopfield([edge]), max_contraction=LIMIT)
    with pytest.raises(TypeError, match=r"is no parameter of its own, .* and cannot be scaled in place"):
        block(data_of()[0])


class Wire(Interaction):
    def up(self, pre: Tensor) -> Tensor:
        return pre

    def out_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape


class Grown(Wire):
    """Tells its gain, and nothing of how to make that less."""

    def up(self, pre: Tensor) -> Tensor:
        return 10 * pre

    def there_and_back(self, pre: Tensor) -> Tensor:
        return 100 * pre


class Bowl(Energy):
    def forward(self, state: State, x: Tensor) -> Tensor:
        return (state[0] - x).square().sum(1) / 2


@pytest.mark.parametrize(
    ("energy", "shape", "error", "message"),
    [
        (
            lambda: Hopfield([Convolution(1, 1, pool=SoftPool())]),
            (1, 6, 6),
            TypeError,
            r"gain of Convolution\((.|\n)*in block 2",
        ),
        (
            lambda: Hopfield([Wire()]),
            (3,),
            TypeError,
            r"gain of Wire\(\) in block 2 is not known.*give the edge `there_and_back`",
        ),
        (
            lambda: Hopfield([Grown()]),
            (3,),
            NotImplementedError,
            "Grown does not say how its weights are scaled",
        ),
        (Bowl, (3,), TypeError, "Nothing can be promised of Bowl in block 2: `max_contraction` needs a `Hopfield`"),
        (
            lambda: Hopfield([Dense(3, 3)], Activation("mine", torch.sigmoid, torch.square)),
            (3,),
            TypeError,
            "Nothing can be promised of Hopfield in block 2",
        ),
    ],
    ids=["soft pooling", "own edge", "own edge that cannot be scaled", "own energy", "own activation"],
)
def test_blocks_that_cannot_be_limited_are_refused(energy, shape, error: type[Exception], message: str) -> None:
    block = EnergyBlock(energy(), max_contraction=0.5, name="block 2")
    with pytest.raises(error, match=message):
        block(torch.rand(2, *shape))


@given(
    slopes=st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=2, max_size=6),
    feedback=st.sampled_from([1.0, 0.3, 0.1]),
    rho=st.floats(0.05, 0.95),
)
def test_shares_of_a_chain_have_a_closed_form(slopes: list[float], feedback: float, rho: float) -> None:
    """√ρ / (2 cos(π/(L+1))), over √(a a) of the two ends, over √ε."""
    layers = len(slopes)
    energy = Hopfield([Dense(3, 3) for _ in slopes[1:]], [identity(slope) for slope in slopes], feedback=feedback)
    share = math.sqrt(rho) / (2 * math.cos(math.pi / (layers + 1)))
    expected = [share / math.sqrt(a * b * feedback) for a, b in pairwise(slopes)]
    assert shares(energy, layers - 1, rho) == pytest.approx(expected, rel=1e-6)


@given(feedback=st.floats(0.05, 1.5))
def test_feedback_raises_the_share_of_an_edge_by_its_root_for_every_layer_that_it_spans(feedback: float) -> None:
    edges = [Dense(3, 3), Dense(3, 3), Edge(0, 2, Dense(3, 3))]
    full, less = (shares(Hopfield(edges, clamp(0.5), feedback=f), 3, 0.5) for f in (1.0, feedback))
    ratios = [b / a for a, b in zip(full, less, strict=True)]
    assert ratios == pytest.approx([feedback**-0.5, feedback**-0.5, 1 / feedback], rel=1e-6)


@given(rho=st.floats(0.05, 0.95), skips=st.lists(st.sampled_from([(0, 2), (1, 3), (0, 3), (0, 1)]), max_size=3))
def test_edges_at_their_shares_contract_just_by_the_limit(rho: float, skips: list[tuple[int, int]]) -> None:
    parts = [*(Dense(3, 3) for _ in range(3)), *(Edge(pre, post, Dense(3, 3)) for pre, post in skips)]
    energy = Hopfield(parts, [clamp(0.5), tanh(), sigmoid(), identity()], feedback=0.4)
    certificate = energy.certificate(shares(energy, len(parts), rho))
    assert certificate.contraction <= rho
    assert certificate.contraction == pytest.approx(rho, rel=1e-6)


def test_the_summary_and_the_line_of_an_epoch_say_how_fast_blocks_settle() -> None:
    model = build((2, 8, 8), [ConvLayer(4)] * 4, 2, 3, max_contraction=0.25, feedback=1.0)
    assert str(model.summary()).count("by 0.2") == 2
    assert str(model.summary()).count("a sweep, to one equilibrium") == 2
    learner = SimpleNamespace(model=model)
    assert _promised(learner)[0].startswith("contraction 0.2")
    assert _promised(SimpleNamespace(model=build((2, 8, 8), [ConvLayer(4)] * 4, 2, 3))) == []
    free = build((2, 8, 8), [ConvLayer(40)] * 4, 2, 3, weights=lambda w: nn.init.constant_(w, 1.0))
    assert str(free.summary()).count("not certain") == 2


def test_what_a_limit_remembers_has_the_precision_and_the_place_of_its_weights() -> None:
    block = block_of()
    block(data_of()[0])
    for module in (block, copy.deepcopy(block).float()):
        module(data_of()[0].to(next(module.parameters()).dtype))
        assert {buffer.dtype for buffer in module.limit.buffers()} == {next(module.parameters()).dtype}


def test_a_block_shows_its_limit() -> None:
    assert "max_contraction=0.3" in repr(block_of())


def test_training_names_blocks_with_several_equilibria_and_a_limit_rules_them_out() -> None:
    """Two layers that hold each other up: once both are high, they stay so without any input."""

    def made(limit: float | None) -> FFEBM:
        energy = Hopfield([Dense(3, 3, bias=False)], clamp(1.0))
        with torch.no_grad():
            energy.edges[0].weight.copy_(2 * torch.eye(3))
        return FFEBM([nn.Identity()], [EnergyBlock(energy, FixedPoint(20), max_contraction=limit)], nn.Linear(3, 2))

    x = torch.full((4, 3), -0.5)
    (finding,) = several(made(None), x)
    assert "block 1 of 1 has more than one equilibrium: 4 of 4 samples" in finding.message
    assert "model.max_contraction" in finding.message
    assert several(made(0.5), x) == []


@pytest.mark.parametrize("net", ["dense", "feedback", "skipping", "average"])
def test_a_block_knows_how_far_from_rest_its_free_phase_ends_at_most(net: str) -> None:
    block, (x, _) = block_of(net), data_of(net)
    block(x)  # brings its weights within the limit
    goal = block.settle(x, FixedPoint(300)).state
    before = [math.inf] * len(goal)
    for sweeps in (1, 3, 6):
        block.relax = FixedPoint(sweeps)
        state = block.settle(x).state
        true = [((s - t).norm() / s.norm()).item() for s, t in zip(state, goal, strict=True)]
        bounds = block.unsettled_part(x)
        assert all(found <= bound + 1e-12 for found, bound in zip(true, bounds, strict=True))
        assert max(bounds) < before[0] / 2
        before = [max(bounds)]


def test_an_unsettled_free_phase_costs_the_gradient_of_a_small_signal_no_larger_part() -> None:
    """Without kinks, and for one sample, whose gradient is one product of a response with a state."""
    torch.manual_seed(0)
    energy = Hopfield([Dense(8, 7, bias=False)], identity()).double()
    nudges = EquilibriumPropagation(FixedPoint(200, order="output-first"), variant="small-signal")
    block = EnergyBlock(energy, FixedPoint(300), nudges, max_contraction=0.5, unsettled="ignore")
    x, y = torch.rand(1, 8, dtype=torch.float64), torch.rand(1, 7, dtype=torch.float64)

    def gradient(sweeps: int) -> Tensor:
        block.relax = FixedPoint(sweeps)
        (found,) = torch.autograd.grad((block(x) * y).sum(), list(energy.parameters()))
        return found

    truth = gradient(300)
    for sweeps in (1, 2, 3):
        wrong = (gradient(sweeps) - truth).norm() / truth.norm()
        assert 0 < wrong <= 2 * max(block.unsettled_part(x))  # both ends of the edge, one of them moved


def test_blocks_of_which_nothing_is_known_do_not_know_how_far_from_rest_they_are() -> None:
    class Bowl(Energy):
        def forward(self, state: State, x: Tensor) -> Tensor:
            return 0.5 * (state[0] - x).square().sum(1)

    assert EnergyBlock(Bowl()).unsettled_part(torch.rand(2, 3)) is None
