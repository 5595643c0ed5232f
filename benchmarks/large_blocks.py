"""What large blocks need to learn as fast as small ones: the 12-layer nets of Table 1 in the small, without feedback.

Cutting the same layers into larger blocks leaves fewer of them with batch-norm, so that more of them in a row live on what the
layer below hands on. An untrained block of four hands on so little that the epsilon of torch's batch-norm outweighs it, and the
readout hardly sees it. Here every layer is driven from below alone: there is nothing to relax and no gradient to estimate, only
plain backprop. Sizes, weights, batch-norms and optimiser are those of `ffebm reproduce split --scale small`, with and without
what the recipe does about it: some for a few hundred steps, the others for as many as the table's runs have, which shows what
of the table's differences is left without relaxation. Trainings are spread over the cores, a thread each. Needs CIFAR-10
(FFEBM_DATA). Writes results/large_blocks.md.

    python benchmarks/large_blocks.py
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from rich.progress import Progress
from torch import Tensor, nn
from torch.multiprocessing import get_context

from ffebm import FFEBM, EnergyBlock, Hopfield, Relaxed
from ffebm.experiment.architectures import build_model
from ffebm.experiment.data import Dataset, default_folder, load
from ffebm.experiment.environment import describe_environment
from ffebm.experiment.preset import read_preset
from ffebm.experiment.reproduction.cell import Cell
from ffebm.experiment.reproduction.experiments import SPLIT
from ffebm.experiment.settings import Settings

RESULT = Path(__file__).parent.parent / "results" / "large_blocks.md"
STEPS = 500
ROWS = ("cifar10-l12-bs4", "cifar10-l12-bs3", "cifar10-l12-bs2")


class Column(NamedTuple):
    """What is trained of every net."""

    words: str
    changes: tuple[str, ...] = ()  # to the small recipe
    steps: int | None = None  # as many as a whole run has
    seeds: tuple[int, ...] = (0, 1)


WHOLE = (Column("the paper's variance, all steps", ("model.variance=5.9e-5",)), Column("the small recipe, all steps"))
BRIEF = (
    Column("the small recipe", (), STEPS, (0,)),
    Column("torch's epsilon", ("model.norm_eps=1e-5",), STEPS, (0,)),
    Column("one readout for all", ("model.readout_gain=5",), STEPS, (0,)),
    Column("both of these", ("model.norm_eps=1e-5", "model.readout_gain=5"), STEPS, (0,)),
)


class WithoutFeedback(nn.Module):
    """The layers of an ff-EBM, each driven by the one below it and by nothing else."""

    def __init__(self, model: FFEBM) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        *_, last = self.model.walk(x, self._from_below)
        return self.model.readout(last.output)

    @staticmethod
    def _from_below(block: EnergyBlock, x: Tensor) -> Relaxed:
        assert isinstance(block.energy, Hopfield)
        first, *others = block.energy.activations
        state = [first.sigma(x)]
        for edge, activation in zip(block.energy.edges, others, strict=True):
            state.append(activation.sigma(edge.up(state[-1])))
        return Relaxed(tuple(state), x.new_zeros(len(x)), torch.ones(len(x)))


@cache
def cifar10() -> Dataset:
    torch.set_num_threads(1)
    return load("cifar10", default_folder())


def train(settings: Settings, steps: int | None = None) -> float:
    """Test accuracy in per cent, after as many steps as a whole run has by default."""
    dataset = cifar10()
    torch.manual_seed(settings.seed)
    net = WithoutFeedback(build_model(settings, dataset.shape, len(dataset.classes)))
    net = net.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    chosen, batch = settings.optimiser, settings.trainer.batch
    per_epoch = -(-len(dataset.train) // batch)
    steps = steps or settings.trainer.epochs * per_epoch
    optimiser = torch.optim.Adam(net.parameters(), chosen.learning_rate, weight_decay=chosen.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps, chosen.final_learning_rate)
    order = [which for _ in range(-(-steps // per_epoch)) for which in torch.randperm(len(dataset.train)).split(batch)]
    for which in order[:steps]:
        loss = F.cross_entropy(net(_images(dataset, dataset.train.x[which])), dataset.train.y[which])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    net.eval()
    with torch.no_grad():
        right = sum(
            (net(_images(dataset, x)).argmax(1) == y).sum().item()
            for x, y in zip(dataset.test.x.split(500), dataset.test.y.split(500), strict=True)
        )
    return 100 * right / len(dataset.test)


@torch.no_grad()
def faintest(settings: Settings) -> float:
    """The smallest variance that a batch-norm of the untrained net gets to see, of its median channel."""
    dataset = cifar10()
    torch.manual_seed(settings.seed)
    net = WithoutFeedback(build_model(settings, dataset.shape, len(dataset.classes)))
    seen: list[float] = []
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].var((0, 2, 3)).median().item()))
    net(_images(dataset, dataset.train.x[:128]))
    return min(seen)


def _images(dataset: Dataset, x: Tensor) -> Tensor:
    return dataset.normalise(x).contiguous(memory_format=torch.channels_last)


def main() -> None:
    cells = [cell for cell in SPLIT.cells("small", rows=ROWS) if cell.kind == "ep"]  # without feedback there is no other
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool, Progress(transient=True) as progress:
        trained = {
            (cell, column): [
                pool.submit(train, read_preset(cell.preset, [*cell.overrides, *column.changes, f"seed={seed}"]), column.steps)
                for seed in column.seeds
            ]
            for column in (*WHOLE, *BRIEF)  # the longest first
            for cell in cells
        }
        futures = [future for futures in trained.values() for future in futures]
        for future in progress.track(as_completed(futures), len(futures), description="Training"):
            future.result()
    found = {key: ", ".join(f"{future.result():.2f}" for future in futures) for key, futures in trained.items()}
    text = report(describe_environment(seed=0), {cell: faintest(cell.settings) for cell in cells}, found)
    RESULT.write_text(text)
    print(text)


def report(place: dict[str, Any], faintness: dict[Cell, float], found: dict[tuple[Cell, Column], str]) -> str:
    lines = [
        "## What large blocks need",
        "",
        f"Made by `python benchmarks/large_blocks.py` at {place['commit'][:10]}, {place['time'][:10]},",
        f"torch {place['packages']['torch']}: the 12 layers of Table 1 in the small, each driven from below alone, by plain",
        f"backprop; test accuracy in %, after {STEPS} steps, and of two seeds after as many as the table's runs have.",
        "Faintest: the smallest variance at the input of a batch-norm, untrained; torch adds 1e-5 to it, the small recipe",
        "1e-10.",
        "",
        f"| blocks of | batch-norms | faintest | {' | '.join(column.words for column in BRIEF)} |",
        "|---" * (3 + len(BRIEF)) + "|",
    ]
    for cell, faint in faintness.items():
        start = f"{cell.settings.model.split} | {cell.settings.model.blocks} | {faint:.0e}"
        lines.append(f"| {start} | {' | '.join(found[cell, column] for column in BRIEF)} |")
    lines += ["", f"| blocks of | {' | '.join(column.words for column in WHOLE)} |", "|---" * (1 + len(WHOLE)) + "|"]
    lines += [f"| {cell.settings.model.split} | {' | '.join(found[cell, column] for column in WHOLE)} |" for cell in faintness]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
