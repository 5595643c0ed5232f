"""At home in PyTorch: DDP, Lightning, torch.compile, gradient checkpointing, data on several processes."""

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
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from ffebm import (
    FFEBM,
    ConvLayer,
    Convolution,
    DenseLayer,
    EnergyBlock,
    EquilibriumPropagation,
    Hopfield,
    RecurrentBackprop,
    build,
)
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
