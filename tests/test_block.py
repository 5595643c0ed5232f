from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from ffebm import (
    FFEBM,
    AveragePool,
    BackpropThroughTime,
    ConvLayer,
    Convolution,
    Dense,
    DenseLayer,
    DivergenceError,
    Energy,
    EnergyBlock,
    EquilibriumPropagation,
    FixedPoint,
    GradientEstimator,
    Hopfield,
    MaxPool,
    RecurrentBackprop,
    State,
    Unrolled,
    build,
    clamp,
    identity,
)
from ffebm.gradient.estimator import ImplicitEstimator

ESTIMATORS: dict[str, GradientEstimator] = {
    "EP": EquilibriumPropagation(),
    "positive EP": EquilibriumPropagation(variant="positive"),
    "ID": Unrolled(),
    "recurrent backprop": RecurrentBackprop(),
    "BPTT": BackpropThroughTime(),
}


@pytest.fixture(params=ESTIMATORS)
def estimator(request: pytest.FixtureRequest) -> GradientEstimator:
    return ESTIMATORS[request.param]


def model(estimator: GradientEstimator) -> FFEBM:
    layers = [ConvLayer(4, pool=MaxPool()), ConvLayer(4), ConvLayer(5), DenseLayer(6)]
    return build((3, 8, 8), layers, 2, 5, estimator=estimator)


def data(samples: int = 4) -> tuple[Tensor, Tensor]:
    return torch.randn(samples, 3, 8, 8), torch.arange(samples) % 5


def step_losses(net: FFEBM, x: Tensor, y: Tensor) -> Tensor:
    losses = net(x, y).losses
    assert losses is not None
    return losses


def test_gradients_flow_through_blocks_between_any_modules_of_a_sequential(estimator: GradientEstimator) -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        EnergyBlock(Hopfield([Convolution(4, 4, padding=1)], clamp(0.5)), estimator=estimator),
        nn.LayerNorm([4, 8, 8]),
        nn.Dropout(0.2),
        EnergyBlock(Hopfield([Dense(256, 8)], [clamp(0.5), identity()]), estimator=estimator),
        nn.GELU(),
        nn.Linear(8, 5),
    )
    x, y = data()
    F.cross_entropy(net(x), y).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.abs().sum() > 0 for p in net.parameters())


def test_trains_in_a_plain_loop(estimator: GradientEstimator) -> None:
    net = model(estimator)
    x, y = data(16)
    optimiser = torch.optim.Adam(net.parameters(), 0.01)
    history = []
    for _ in range(15):
        loss = step_losses(net, x, y).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        history.append(loss.item())
    assert history[-1] < 0.5 * history[0]


def test_batch_norm_updates_its_statistics_once_a_step(estimator: GradientEstimator) -> None:
    net = model(estimator)
    x, y = data()
    step_losses(net, x, y).mean().backward()
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(norms) == 2
    for norm in norms:
        assert norm.num_batches_tracked is not None
        assert norm.num_batches_tracked.item() == 1
    stage = net.stages[0]
    once = stage.connection.up(x).mean((0, 2, 3))
    torch.testing.assert_close(norms[0].running_mean, 0.1 * once)


def test_frozen_parameters_get_no_gradient_and_do_not_change(estimator: GradientEstimator) -> None:
    net = model(estimator)
    frozen = net.blocks[0].energy.edges[0].weight
    frozen.requires_grad_(False)
    for p in net.stages[1].parameters():
        p.requires_grad_(False)
    before = [p.clone() for p in net.parameters()]
    x, y = data()
    step_losses(net, x, y).mean().backward()
    torch.optim.SGD((p for p in net.parameters() if p.requires_grad), 0.1).step()
    for old, p in zip(before, net.parameters(), strict=True):
        assert (p.grad is None) == (not p.requires_grad)
        assert torch.equal(old, p) == (not p.requires_grad)


def test_a_frozen_block_still_gives_its_input_a_gradient(estimator: GradientEstimator) -> None:
    block = EnergyBlock(Hopfield([Dense(6, 4)]), estimator=estimator).requires_grad_(False)
    x = torch.rand(2, 6, requires_grad=True)
    block(x).sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0


@pytest.mark.parametrize("name", ["EP", "recurrent backprop"])
@pytest.mark.parametrize("elastic", [True, False])
def test_second_derivatives_through_a_relaxation_raise(name: str, elastic: bool) -> None:
    net = model(ESTIMATORS[name])
    x, y = data()
    loss = step_losses(net, x, y).mean() if elastic else net(x).logits.square().mean()
    with pytest.raises(RuntimeError, match=r"Second derivatives .* Use `Unrolled` or `BackpropThroughTime`"):
        torch.autograd.grad(loss, list(net.parameters()), create_graph=True)


def test_no_grad_and_inference_mode_give_the_outputs_of_training(estimator: GradientEstimator) -> None:
    net = model(estimator)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()  # whose forward differs for reasons of its own
    x, y = data()
    expected, losses = net(x, y)
    # Where nobody records them, sweeps that would change nothing but rounding are skipped.
    same = {"rtol": 0, "atol": 0 if isinstance(estimator, ImplicitEstimator) else 16 * torch.finfo(x.dtype).eps}
    torch.testing.assert_close(net(x).logits, expected, **same)
    with torch.no_grad():
        torch.testing.assert_close(net(x).logits, expected, **same)
    with torch.inference_mode():
        found, found_losses = net(x, y)
        torch.testing.assert_close(net(x).logits, expected, **same)
    torch.testing.assert_close(found, expected, **same)
    torch.testing.assert_close(found_losses, losses, **same)
    net.eval()
    torch.testing.assert_close(net(x).logits, expected, rtol=0, atol=0)


def test_custom_energies_work_in_inference_mode() -> None:
    from test_conformance import Memory

    block = EnergyBlock(Memory(5, 3))
    x = torch.randn(2, 5)
    expected = block(x)
    with torch.inference_mode():
        torch.testing.assert_close(block(x + 0), expected, rtol=0, atol=0)


def test_a_loaded_state_dict_gives_the_same_outputs(estimator: GradientEstimator) -> None:
    net, other = model(estimator), model(estimator)
    other.load_state_dict(net.state_dict())
    x, _ = data()
    torch.testing.assert_close(other(x).logits, net(x).logits, rtol=0, atol=0)


def test_copies_and_pickles_of_a_used_model_give_the_same_outputs(estimator: GradientEstimator) -> None:
    net = model(estimator)
    x, y = data()
    step_losses(net, x, y).mean().backward()  # leaves residuals and gradients behind, which must copy too
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        torch.testing.assert_close(other(x).logits, net(x).logits, rtol=0, atol=0)
        step_losses(other, x, y).mean().backward()
        assert repr(other) == repr(net)


def test_a_float64_model_has_float64_outputs_and_gradients(estimator: GradientEstimator) -> None:
    net = model(estimator).double()
    x, y = data()
    out = net(x.double(), y)
    assert out.logits.dtype == torch.float64
    step_losses(net, x.double(), y).mean().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float64 for p in net.parameters())


def test_gradients_under_bfloat16_autocast_are_close_to_those_in_float32(estimator: GradientEstimator) -> None:
    """Blocks leave autocast, so gradients come close to those in float32; plain bfloat16 states would have lost them."""
    torch.manual_seed(0)
    net = model(estimator)
    x, y = data(8)
    step_losses(net, x, y).mean().backward()
    expected = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    net.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        step_losses(net, x, y).mean().backward()
    found = [p.grad for p in net.parameters() if p.grad is not None]
    cosine = F.cosine_similarity(torch.cat([g.flatten() for g in expected]), torch.cat([g.flatten() for g in found]), 0)
    assert cosine > 0.99
    with torch.autocast("cpu", torch.bfloat16):
        block = net.chain[0][1]
        assert block(torch.rand(1, 4, 4, 4, dtype=torch.bfloat16)).dtype == torch.float32


def test_half_precision_parameters_are_refused() -> None:
    block = EnergyBlock(Hopfield([Dense(4, 3)])).bfloat16()
    out = block(torch.rand(2, 4, dtype=torch.bfloat16))
    with pytest.raises(TypeError, match=r"at least float32 .*`torch\.autocast`"):
        out.sum().backward()


def test_mixed_precisions_are_refused() -> None:
    with pytest.raises(TypeError, match=r"input .* is torch\.float64 but its parameters are torch\.float32"):
        EnergyBlock(Hopfield([Dense(4, 3)]))(torch.rand(2, 4, dtype=torch.float64))


def test_gradients_are_of_the_parameters_used_in_the_forward_pass(estimator: GradientEstimator) -> None:
    """`functional_call` swaps parameters for one call; the nudged phases of the backward pass must see the same."""
    block = EnergyBlock(Hopfield([Dense(6, 5), Dense(5, 4)]), estimator=estimator)
    x = torch.rand(3, 6)
    other = copy.deepcopy(block)
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(1.5)
    other(x).square().sum().backward()
    swapped = {name: p.detach().clone().requires_grad_() for name, p in other.named_parameters()}
    functional_call(block, swapped, (x,)).square().sum().backward()
    for name, p in other.named_parameters():
        torch.testing.assert_close(swapped[name].grad, p.grad)
    assert all(p.grad is None for p in block.parameters())


def test_a_parametrisation_of_an_edge_is_differentiated_through(estimator: GradientEstimator) -> None:
    """A parametrisation of an edge (here: half the weight) is differentiated through."""

    class Half(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight / 2

    edge = Dense(6, 4)
    plain = copy.deepcopy(edge)
    with torch.no_grad():
        plain.weight.div_(2)
    nn.utils.parametrize.register_parametrization(edge, "weight", Half())
    x = torch.rand(3, 6)
    for e in (edge, plain):
        EnergyBlock(Hopfield([e]), estimator=estimator)(x).square().sum().backward()
    original = dict(edge.named_parameters())["parametrizations.weight.original"]
    assert original.grad is not None
    torch.testing.assert_close(original.grad * 2, plain.weight.grad)


def test_parameters_changed_between_forward_and_backward_raise() -> None:
    block = EnergyBlock(Hopfield([Dense(6, 4)]))
    out = block(torch.rand(2, 6))
    with torch.no_grad():
        next(block.parameters()).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_parameters_that_play_no_part_get_a_gradient_of_zeros() -> None:
    energy = Hopfield([Dense(6, 4)])
    energy.register_parameter("spare", nn.Parameter(torch.ones(2)))
    EnergyBlock(energy)(torch.rand(2, 6)).sum().backward()
    assert energy.spare.grad.tolist() == [0, 0]


def test_residual_and_sweeps_of_the_last_pass_are_kept() -> None:
    block = EnergyBlock(Hopfield([Dense(6, 4)]), FixedPoint(50, tolerance=1e-3))
    assert block.residual is None
    block(torch.rand(3, 6))
    assert block.residual is not None
    assert block.sweeps is not None
    assert (block.residual <= 1e-3).all()
    assert block.sweeps.shape == (3,)
    assert (block.sweeps < 50).all()


def test_divergence_in_the_backward_pass_names_the_block() -> None:
    block = EnergyBlock(Hopfield([Dense(4, 4)], identity()), FixedPoint(1), name="the second block", unsettled="ignore")
    with torch.no_grad():
        next(block.parameters()).mul_(30)
    out = block(torch.rand(2, 4))
    with pytest.raises(DivergenceError, match="the second block"):
        out.sum().backward()


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_a_step_runs_on_other_devices(device: str) -> None:
    if not getattr(torch, device).is_available():
        pytest.skip(f"no {device} here")
    net = model(EquilibriumPropagation()).to(device)
    x, y = data()
    step_losses(net, x.to(device), y.to(device)).mean().backward()
    assert all(p.grad is not None and p.grad.device.type == device for p in net.parameters())


def test_a_sweep_on_the_meta_device_has_the_right_shapes() -> None:
    """No device is assumed: everything but the check for divergence runs where there are no numbers."""
    energy = Hopfield([Convolution(4, 4, padding=1), Dense(4 * 36, 7)]).to("meta")
    x = torch.empty(2, 4, 6, 6, device="meta")
    state = FixedPoint(1).sweep(energy, energy.init_state(x), x)
    assert [tuple(s.shape) for s in state] == [(2, 4, 6, 6), (2, 4, 6, 6), (2, 7)]


def test_divergence_of_the_adjoint_names_the_block() -> None:
    estimator = RecurrentBackprop(FixedPoint(60))
    energy = Hopfield([Dense(4, 4)], identity())
    block = EnergyBlock(energy, FixedPoint(1), estimator, name="the second block", unsettled="ignore")
    with torch.no_grad():
        next(block.parameters()).mul_(30)
    out = block(torch.rand(2, 4))
    with pytest.raises(DivergenceError, match=r"the second block .* adjoint"):
        out.sum().backward()


def test_residual_and_sweeps_of_unrolled_are_those_of_its_free_phase() -> None:
    block = EnergyBlock(Hopfield([Dense(6, 4)]), FixedPoint(50, tolerance=1e-3), Unrolled(FixedPoint(3)))
    block(torch.rand(3, 6))
    free = block.relax(block.energy, torch.rand(3, 6))
    assert block.sweeps is not None
    assert (block.sweeps - free.sweeps).abs().max() <= 3
    assert (block.sweeps > 3).any()


def test_functional_call_with_one_tensor_under_two_names_sums_its_gradients(estimator: GradientEstimator) -> None:
    """What `functional_call` puts into a block for one call is what its gradient is of."""
    energy = Hopfield([Dense(5, 5, bias=False), Dense(5, 5, bias=False)])
    block = EnergyBlock(energy, FixedPoint(60), estimator)
    shared = (0.3 * torch.randn(5, 5)).requires_grad_()
    names = [name for name, _ in block.named_parameters()]
    x = torch.rand(3, 5)
    functional_call(block, dict.fromkeys(names, shared), (x,)).square().sum().backward()
    tied = Dense(5, 5, bias=False)
    with torch.no_grad():
        tied.weight.copy_(shared)
    EnergyBlock(Hopfield([tied, tied]), FixedPoint(60), estimator)(x).square().sum().backward()
    torch.testing.assert_close(shared.grad, tied.weight.grad, rtol=1e-4, atol=1e-5)


class Gained(Energy):
    """½‖s‖² − gain·s·x, with the gain in a buffer: s = gain·x."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("gain", torch.tensor(2.0))

    def forward(self, state: State, x: Tensor) -> Tensor:
        return (state[0].square() / 2 - self.gain * state[0] * x).sum(1)


def test_the_gradient_uses_the_buffers_of_the_forward_pass() -> None:
    block = EnergyBlock(Gained())
    x = torch.rand(2, 3, requires_grad=True)
    functional_call(block, {"energy.gain": torch.tensor(3.0)}, (x,)).sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 3.0), rtol=1e-3, atol=0)
    out = block(x)
    block.energy.gain.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("elastic", [True, False])
def test_two_threads_differentiate_the_same_model_at_once(elastic: bool) -> None:
    """The backward pass never touches the module that it differentiates."""
    net = model(EquilibriumPropagation())
    parameters = dict(net.named_parameters())
    x, y = data()

    def work() -> None:
        for _ in range(5):
            loss = step_losses(net, x, y).mean() if elastic else net(x).logits.square().mean()
            torch.autograd.grad(loss, list(parameters.values()))

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(work) for _ in range(2)]:
            done.result()
    assert all(parameters[name] is p for name, p in net.named_parameters())


@pytest.mark.parametrize("shape", [(2, 1), ()])
def test_an_energy_of_the_wrong_shape_is_refused(shape: tuple[int, ...]) -> None:
    class Wrong(Gained):
        def forward(self, state: State, x: Tensor) -> Tensor:
            energies = super().forward(state, x)
            return energies.unsqueeze(1) if shape else energies.sum()

    with pytest.raises(ValueError, match=r"must return one energy per sample, shape \(2,\), got"):
        EnergyBlock(Wrong())(torch.rand(2, 3))


@pytest.mark.parametrize("start", [torch.zeros(2, 3), (torch.zeros(1, 3),), (torch.zeros(2, 3),) * 2])
def test_a_state_of_the_wrong_shape_is_refused(start: object) -> None:
    with pytest.raises(ValueError, match="must be a tuple of 1 tensors"):
        FixedPoint(2)(Gained(), torch.rand(2, 3), start=start)


@pytest.mark.parametrize("part", [nn.BatchNorm1d(3), nn.Dropout()])
def test_an_energy_with_batch_norm_or_dropout_is_refused(part: nn.Module) -> None:
    energy = Gained()
    energy.part = part
    with pytest.raises(ValueError, match=r"The energy holds \w+ \(part\)"):
        EnergyBlock(energy)


@pytest.mark.parametrize("name", ["ID", "BPTT"])
def test_layers_that_the_error_does_not_reach_get_a_gradient_of_zeros(name: str) -> None:
    """As EP and recurrent backprop give; DDP waits for a gradient of every parameter."""
    estimator = Unrolled(FixedPoint(1)) if name == "ID" else BackpropThroughTime()
    block = EnergyBlock(Hopfield([Dense(4, 4) for _ in range(3)]), FixedPoint(1), estimator)
    x = torch.rand(2, 4, requires_grad=True)
    block(x).sum().backward()
    assert x.grad is not None
    assert all(p.grad is not None for p in block.parameters())


def test_parameters_of_a_pool_get_the_same_gradient_by_ep_and_recurrent_backprop() -> None:
    class Gain(AveragePool):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

        def forward(self, u: Tensor) -> Tensor:
            return self.gain * super().forward(u)

        def transpose(self, u: Tensor, g: Tensor) -> Tensor:
            return super().transpose(u, self.gain * g)

    energy = Hopfield([Convolution(2, 2, padding=1, pool=Gain())], [clamp(0.5), identity()]).double()
    x = torch.rand(2, 2, 4, 4, dtype=torch.float64)
    relax = FixedPoint(300)
    found = []
    for estimator in (EquilibriumPropagation(relax, beta=1e-4), RecurrentBackprop(relax)):
        output = EnergyBlock(energy, relax, estimator)(x)
        found.append(torch.autograd.grad(output.square().sum(), energy.edges[0].pool.gain)[0])
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=0)
    assert found[1] != 0


def test_targets_that_want_gradients_are_refused() -> None:
    net = build((6,), [DenseLayer(5)], 1, 2, criterion=lambda o, y: (o - y).square().sum(1))
    with pytest.raises(ValueError, match="no gradient to the targets"):
        net(torch.rand(2, 6), torch.rand(2, 2, requires_grad=True))
