"""At home in PyTorch: several processes, Lightning, torch.compile, profiles, pruning, gradient checkpointing."""

from __future__ import annotations

import socket
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from ffebm import (
    FFEBM,
    ConvLayer,
    Convolution,
    DenseLayer,
    EnergyBlock,
    EquilibriumPropagation,
    GradientEstimator,
    Hopfield,
    Interaction,
    RecurrentBackprop,
    Unrolled,
    build,
)
from ffebm.diagnostics import fidelity
from ffebm.gradient.estimator import ImplicitEstimator

ESTIMATORS: dict[str, ImplicitEstimator] = {"EP": EquilibriumPropagation(), "recurrent backprop": RecurrentBackprop()}


def model(estimator: ImplicitEstimator, limit: float | None = None) -> FFEBM:
    torch.manual_seed(0)
    layers = [ConvLayer(4), ConvLayer(4), ConvLayer(5), DenseLayer(6)]
    return build((3, 6, 6), layers, 2, 5, batch_norm=False, estimator=estimator, max_contraction=limit)


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 3, 6, 6, generator=generator), torch.arange(8) % 5


def mean_loss(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return net(x, y).losses.mean()


def _ddp_worker(rank: int, port: int, name: str, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    net = DistributedDataParallel(model(ESTIMATORS[name]))
    x, y = data()
    mine = slice(4 * rank, 4 * rank + 4)
    mean_loss(net, x[mine], y[mine]).backward()
    if rank == 0:
        torch.save([p.grad for p in net.parameters()], Path(folder) / "grads.pt")
    dist.barrier()
    del net  # gloo may hang where a model outlives its process group
    dist.destroy_process_group()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_ddp_on_two_processes_gives_the_gradients_of_one(name: str, tmp_path: Path) -> None:
    mp.spawn(_ddp_worker, (free_port(), name, str(tmp_path)), nprocs=2)
    net = model(ESTIMATORS[name])
    mean_loss(net, *data()).backward()
    for p, g in zip(net.parameters(), torch.load(tmp_path / "grads.pt", weights_only=True), strict=True):
        torch.testing.assert_close(g, p.grad, rtol=1e-4, atol=1e-6)


def _limited_worker(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    net = DistributedDataParallel(model(EquilibriumPropagation(), limit=0.1))
    optimiser = torch.optim.Adam(net.parameters(), 0.05)
    x, y = data()
    mine = slice(4 * rank, 4 * rank + 4)
    for _ in range(4):  # as many passes, of which all but the first find weights to bring back
        optimiser.zero_grad()
        mean_loss(net, x[mine], y[mine]).backward()
        optimiser.step()
    net(x[mine])
    torch.save(net.module.state_dict(), Path(folder) / f"rank{rank}.pt")
    dist.barrier()
    del net
    dist.destroy_process_group()


def test_a_limit_does_the_same_on_two_processes_that_see_different_samples(tmp_path: Path) -> None:
    mp.spawn(_limited_worker, (free_port(), str(tmp_path)), nprocs=2)
    one, other = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(2))
    assert any("vector_" in name for name in one), "the kept directions are compared, too"
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    alone = model(EquilibriumPropagation(), limit=0.1)
    alone.load_state_dict(one)
    for visit in alone.walk(data()[0]):
        assert visit.block.certify(visit.x.shape[1:]).contraction < 1.05 * 0.1


def test_a_model_learns_in_a_lightning_trainer_at_bf16_mixed(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Lightning and what it imports
        import lightning

        class Module(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.model = model(EquilibriumPropagation())
                self.history: list[float] = []

            def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
                loss = mean_loss(self.model, *batch)
                self.history.append(loss.item())
                return loss

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return torch.optim.Adam(self.parameters(), 0.02)

        module = Module()
        trainer = lightning.Trainer(
            max_epochs=30,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
            precision="bf16-mixed",
        )
        trainer.fit(module, DataLoader(TensorDataset(*data()), batch_size=8))
    assert module.history[-1] < 0.5 * module.history[0]


def test_a_block_in_a_compiled_net_gives_the_same_gradients() -> None:
    """The graph breaks at the block, and numbers stay the same."""
    energy = Hopfield([Convolution(4, 4, padding=1)])
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), EnergyBlock(energy), nn.Flatten(), nn.Linear(64, 5))
    x, y = data()

    def step(function: nn.Module) -> list[Tensor]:
        net.zero_grad()
        F.cross_entropy(function(x), y).backward()
        return [p.grad.clone() for p in net.parameters() if p.grad is not None]

    expected = step(net)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler
        compiled = torch.compile(net, backend="aot_eager")
        found = step(compiled)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_a_compiled_model_gives_the_same_gradients() -> None:
    net = model(EquilibriumPropagation())
    mean_loss(net, *data()).backward()
    expected = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    net.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mean_loss(torch.compile(net, backend="aot_eager"), *data()).backward()
    torch.testing.assert_close([p.grad for p in net.parameters()], expected, rtol=1e-4, atol=1e-6)


def test_a_checkpointed_stage_and_block_give_the_same_gradient() -> None:
    net = model(EquilibriumPropagation())
    x, _ = data()
    x.requires_grad_()
    stage, block = net.chain[0]
    block(stage(x)).sum().backward()
    assert x.grad is not None
    expected, x.grad = x.grad, None
    checkpoint(lambda x: block(stage(x)), x, use_reentrant=False).sum().backward()
    torch.testing.assert_close(x.grad, expected)


def test_a_compiled_model_is_cut_once_a_block_and_around_its_checks() -> None:
    """Once where a block settles; before the first, where the input is checked, and behind the last, for the logits."""
    net = model(EquilibriumPropagation())
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler
        torch.compile(net, backend=keep)(*data())
    assert len(graphs) <= len(net.blocks) + 1


class TestPruning:
    """Weights are computed anew from what is trained and what is masked, wherever they are used."""

    @staticmethod
    def pruned(estimator: GradientEstimator, limit: float | None = None) -> FFEBM:
        net = model(estimator, limit)
        for stage, block in net.chain:
            prune.l1_unstructured(stage.connection, "weight", 0.5)
            prune.l1_unstructured(block.energy.edges[0], "weight", 0.5)
        return net

    @pytest.mark.parametrize("estimator", [*ESTIMATORS.values(), Unrolled()], ids=[*ESTIMATORS, "unrolled"])
    def test_gradients_are_those_of_the_masked_weights(self, estimator: GradientEstimator) -> None:
        net, same = self.pruned(estimator), self.pruned(estimator)
        for module in same.modules():
            if prune.is_pruned(module) and isinstance(module, Interaction):
                prune.remove(module, "weight")
        mean_loss(net, *data()).backward()
        mean_loss(same, *data()).backward()
        for name, p in same.named_parameters():
            pruned = net.get_parameter(name + "_orig") if name + "_orig" in dict(net.named_parameters()) else None
            if pruned is None:
                torch.testing.assert_close(net.get_parameter(name).grad, p.grad)
            else:
                torch.testing.assert_close(pruned.grad, p.grad * net.get_buffer(name + "_mask"))

    def test_training_keeps_masks_and_limits(self) -> None:
        net = self.pruned(EquilibriumPropagation(variant="small-signal"), 0.3)
        optimiser = torch.optim.Adam(net.parameters(), 0.1)
        for _ in range(5):
            optimiser.zero_grad()
            mean_loss(net, *data()).backward()
            optimiser.step()
        net(data()[0])
        for visit in net.walk(data()[0]):
            (edge,) = visit.block.energy.edges
            assert (edge.weight[edge.weight_mask == 0] == 0).all()
            found = visit.block.certify(visit.x.shape[1:])
            assert found is not None
            assert found.contraction <= 0.3 + 1e-6

    def test_diagnostics_look_at_pruned_models(self) -> None:
        net = self.pruned(EquilibriumPropagation())
        mean_loss(net, *data()).backward()
        assert fidelity(net, *data()).cosine > 0.99


@pytest.mark.filterwarnings("ignore:.*returned a view tensor.*:UserWarning")  # nobody changes it in place
@pytest.mark.parametrize("limit", [None, 0.5])
def test_fully_sharded_blocks_have_the_same_gradients(limit: float | None, tmp_path: Path) -> None:
    """`fully_shard` brings weights together by hooks on calls: a model must call its blocks for that."""
    net, plain = model(EquilibriumPropagation(), limit), model(EquilibriumPropagation(), limit)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        for block in net.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(net, mesh=mesh)
        for side in (net, plain):
            mean_loss(side, *data()).backward()
        for (name, p), q in zip(net.named_parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(p.grad.full_tensor(), q.grad, msg=name)
    finally:
        del net
        dist.destroy_process_group()


def test_a_profile_names_block_and_phase() -> None:
    net = model(EquilibriumPropagation())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        mean_loss(net, *data()).backward()
    names = {event.key for event in profile.key_averages()}
    for number in (1, 2):
        assert {f"block {number} of 2: free phase", f"block {number} of 2: nudged phases"} <= names
