"""What large blocks need to learn as fast as small ones: the 12-layer nets of Table 1 in the small, without feedback.

Cutting the same layers into larger blocks leaves fewer of them with batch-norm, so that more of them in a row live on what the
layer below hands on. An untrained block of four hands on so little that the epsilon of torch's batch-norm outweighs it, and the
readout hardly sees it. Here every layer is driven from below alone: there is nothing to relax and no gradient to estimate, only
plain backprop. Sizes, weights, batch-norms and optimiser are those of `ffebm reproduce split --scale small`: for a few hundred
steps, with and without what the recipe does about it, and for as many as the table's runs have, which shows what of the table's
differences is left without relaxation. Needs CIFAR-10 (FFEBM_DATA). Writes results/large_blocks.md.

Blocks of four have max-pooling inside, which those of three and two do not. results/pooling_inside.md says what that costs:
the same net with its pooling in front of blocks, with feedback, from runs under results/reproduce, and without, trained here.

    python benchmarks/large_blocks.py            # both
    python benchmarks/large_blocks.py pooling    # the second alone
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.progress import track
from torch import Tensor, nn

from ffebm import FFEBM, Hopfield
from ffebm.experiment.architectures import build_model
from ffebm.experiment.data import Dataset, default_folder, load
from ffebm.experiment.environment import describe_environment
from ffebm.experiment.preset import read_preset
from ffebm.experiment.reproduction.experiments import SPLIT
from ffebm.experiment.run import Run
from ffebm.experiment.settings import Settings

RESULTS = Path(__file__).parent.parent / "results"
STEPS = 500
ROWS = ("cifar10-l12-bs4", "cifar10-l12-bs3", "cifar10-l12-bs2")
VARIANTS = {
    "the small recipe": [],
    "torch's epsilon": ["model.norm_eps=1e-5"],
    "one readout for all": ["model.readout_gain=5"],
    "both of these": ["model.norm_eps=1e-5", "model.readout_gain=5"],
}
INSIDE = "cifar10-l12-bs4"
POOLED = {  # the layers, and the folder of runs that pool there
    "3, 5, 9, inside block 1": ([3, 5, 9], "split"),
    "1, 5, 9, in front of blocks": ([1, 5, 9], "pooling"),
}


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


def train(settings: Settings, dataset: Dataset, label: str, steps: int) -> float:
    """Test accuracy in per cent."""
    torch.manual_seed(settings.seed)
    net = WithoutFeedback(build_model(settings, dataset.shape, len(dataset.classes)))
    net = net.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    chosen, batch = settings.optimiser, settings.trainer.batch
    optimiser = torch.optim.Adam(net.parameters(), chosen.learning_rate, weight_decay=chosen.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps, chosen.final_learning_rate)
    epochs = -(-steps * batch // len(dataset.train))
    order = [which for _ in range(epochs) for which in torch.randperm(len(dataset.train)).split(batch)]
    for which in track(order[:steps], label, transient=True):
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
def faintest(settings: Settings, dataset: Dataset) -> float:
    """The smallest variance that a batch-norm of the untrained net gets to see, of its median channel."""
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


def steps_of(settings: Settings, dataset: Dataset) -> int:
    """As many as a whole run has."""
    return settings.trainer.epochs * -(-len(dataset.train) // settings.trainer.batch)


def made_by(command: str) -> str:
    place = describe_environment(seed=0)
    return f"Made by `{command}` at {place['commit'][:10]}, {place['time'][:10]}, torch {place['packages']['torch']}"


def measure_needs(dataset: Dataset) -> None:
    lines = [
        "## What large blocks need",
        "",
        f"{made_by('python benchmarks/large_blocks.py')}: the layers",
        "of Table 1 in the small, each driven from below alone, by plain backprop; test accuracy in %, one",
        f"seed, after {STEPS} steps, and in the last column after as many as the table's runs have. Faintest: the",
        "smallest variance at the input of a batch-norm, untrained; torch adds 1e-5 to it, the small recipe 1e-10.",
        "",
        f"| net | batch-norms | faintest | {' | '.join(VARIANTS)} | the small recipe, all steps |",
        "|---" * (4 + len(VARIANTS)) + "|",
    ]
    for cell in SPLIT.cells("small", rows=ROWS):
        if cell.kind != "ep":  # without feedback there is no other
            continue
        settings = [read_preset(cell.preset, [*cell.overrides, *more]) for more in VARIANTS.values()]
        accuracies = [f"{train(chosen, dataset, cell.preset, STEPS):.2f}" for chosen in settings]
        accuracies.append(f"{train(cell.settings, dataset, cell.preset, steps_of(cell.settings, dataset)):.2f}")
        norms = f"{cell.settings.model.blocks} | {faintest(cell.settings, dataset):.0e}"
        lines.append(f"| {cell.settings.description} | {norms} | {' | '.join(accuracies)} |")
        print(lines[-1], flush=True)
    (RESULTS / "large_blocks.md").write_text("\n".join(lines) + "\n")


def measure_pooling(dataset: Dataset) -> None:
    lines = [
        "## What max-pooling inside a block costs",
        "",
        f"{made_by('python benchmarks/large_blocks.py pooling')}: the layers",
        "of Table 1 in the small, 12 in blocks of 4; test accuracy in % after all steps, by plain backprop where each is",
        "driven from below alone, and by EP where they relax: every seed that is kept under `results/reproduce`.",
        "",
        "| max-pooling in front of layers | without feedback | by EP | EP's runs |",
        "|---|---|---|---|",
    ]
    cell = next(cell for cell in SPLIT.cells("small", rows=[INSIDE]) if cell.kind == "ep")
    for words, (pooled, folder) in POOLED.items():
        settings = read_preset(cell.preset, [*cell.overrides, f"model.pooled={pooled}"])
        runs = [Run(path) for path in sorted((RESULTS / "reproduce" / folder / "runs").glob(f"{INSIDE}-ep-seed*"))]
        different = [run.folder for run in runs if run.settings().model.pooled != pooled]
        if different or not runs:
            raise SystemExit(f"Runs of {INSIDE} with pooling {pooled} are needed in {folder}/runs, got {different or 'none'}.")
        found = [100 * run.metrics()[-1]["test_accuracy"] for run in runs]
        without = train(settings, dataset, words, steps_of(settings, dataset))
        lines.append(f"| {words} | {without:.2f} | {statistics.fmean(found):.2f} | {', '.join(f'{a:.2f}' for a in found)} |")
        print(lines[-1], flush=True)
    (RESULTS / "pooling_inside.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    dataset = load("cifar10", default_folder())
    if sys.argv[1:] != ["pooling"]:
        measure_needs(dataset)
    measure_pooling(dataset)


if __name__ == "__main__":
    main()
