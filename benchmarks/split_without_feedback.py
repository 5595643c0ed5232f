"""Is it the blocks, or what they leave out? The nets of Table 1 in the small, without feedback, by plain backprop.

Cutting the same layers into larger blocks leaves fewer of them with batch-norm. Here every layer is driven from below alone, so
that there is nothing to relax and no gradient to estimate; sizes, initial weights, batch-norms and optimiser stay as
`ffebm reproduce split --scale small` has them. Needs CIFAR-10 (FFEBM_DATA). Writes results/split_without_feedback.md.

    python benchmarks/split_without_feedback.py
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from rich.progress import track
from torch import Tensor, nn

from ffebm import FFEBM, Hopfield
from ffebm.experiment.architectures import build_model
from ffebm.experiment.data import Dataset, default_folder, load
from ffebm.experiment.environment import describe_environment
from ffebm.experiment.reproduction.experiments import SPLIT
from ffebm.experiment.settings import Settings

RESULT = Path(__file__).parent.parent / "results" / "split_without_feedback.md"
SCALE = "small"


class WithoutFeedback(nn.Module):
    """The layers of an ff-EBM, each driven by the one below it and by nothing else."""

    def __init__(self, model: FFEBM) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        for stage, block in self.model.chain:
            assert isinstance(block.energy, Hopfield)
            first, *others = block.energy.activations
            x = first.sigma(stage(x))
            for edge, activation in zip(block.energy.edges, others, strict=True):
                x = activation.sigma(edge.up(x))
        return self.model.readout(x)


def train(settings: Settings, dataset: Dataset, label: str) -> float:
    """Test accuracy in per cent after all epochs."""
    torch.manual_seed(settings.seed)
    net = WithoutFeedback(build_model(settings, dataset.shape, len(dataset.classes)))
    net = net.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    chosen, batch = settings.optimiser, settings.trainer.batch
    steps = settings.trainer.epochs * len(dataset.train) // batch
    optimiser = torch.optim.Adam(net.parameters(), chosen.learning_rate, weight_decay=chosen.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps, chosen.final_learning_rate)
    order = torch.cat([torch.randperm(len(dataset.train)) for _ in range(settings.trainer.epochs)])
    for step in track(range(steps), label, transient=True):
        which = order[step * batch : (step + 1) * batch]
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


def _images(dataset: Dataset, x: Tensor) -> Tensor:
    return dataset.normalise(x).contiguous(memory_format=torch.channels_last)


def main() -> None:
    dataset = load("cifar10", default_folder())
    place = describe_environment(seed=0)
    cells = [cell for cell in SPLIT.cells(SCALE) if cell.kind == "ep"]
    lines = [
        "## The nets of Table 1 in the small, without feedback",
        "",
        f"Made by `python benchmarks/split_without_feedback.py` at {place['commit'][:10]}, {place['time'][:10]}, torch "
        f"{place['packages']['torch']}: plain",
        "backprop through the same layers, each driven from below alone; one seed.",
        "",
        "| net | batch-norms | test accuracy, % |",
        "|---|---|---|",
    ]
    for cell in cells:
        norms = cell.settings.model.blocks if cell.settings.model.batch_norm == "all" else 1
        lines.append(f"| {cell.settings.description} | {norms} | {train(cell.settings, dataset, cell.preset):.2f} |")
        print(lines[-1])
    RESULT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
