"""What a limit on gain does to learning, and how blocks of two, three and four layers compare: short runs on real CIFAR-10.

All runs share one recipe, the preset `cifar10-small`: an eighth of the paper's width, a start from data, Adam. It was chosen on
training images that were set apart, with a seed that no table here has. Runs go to runs/cifar10-small, two at once with a
thread each; one that exists is resumed, one that is finished is kept. Those whose numbers are in results/cifar10_small.json
count as finished, too, but with --all. With --tables nothing is trained. Needs CIFAR-10 (FFEBM_DATA). Writes
results/cifar10_small.md and .json, and docs/images/cifar10_small.png.

    python benchmarks/cifar10_small.py --all
"""

from __future__ import annotations

import json
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.progress import Progress

from ffebm.experiment.environment import describe_environment
from ffebm.experiment.markup import table
from ffebm.experiment.run import Run
from ffebm.limit import feedback_within

History = list[dict[str, float]]

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
RUNS = ROOT / "runs" / "cifar10-small"
NUMBERS = RESULTS / "cifar10_small.json"
PUBLISHED: dict[str, History] = {} if "--all" in sys.argv or not NUMBERS.exists() else json.loads(NUMBERS.read_text())
SEEDS = (0, 1, 2)
LIMITS = ("0.2", "0.35", "0.5", "0.7", "none")
BEST = "0.2"  # chosen, with the rate and the batch, on training images that were set apart
SPLITS = (2, 3, 4)
RECIPE = (  # what the preset cifar10-small is besides cifar10-l12-bs2
    "model.pooled=[3, 5, 9]",  # the paper's blocks of three pool elsewhere
    "model.width=0.125",
    "model.variance=none",
    f"model.max_contraction={BEST}",
    "model.start=0.5",
    "relaxation.steps=20",
    "gradient.steps=10",
    "gradient.beta=0.05",
    "optimiser.learning_rate=2e-3",
    "optimiser.warmup=0.2",
    "optimiser.weight_decay=0",
    "data.crop_padding=0",  # five epochs leave nothing to prevent the net from learning by heart
    "data.flip=false",  # likewise
    "trainer.epochs=5",
    "trainer.batch=64",
)
WITHOUT = (  # a limit: centered nudges, and as many sweeps as the preset had before there were limits
    "model.max_contraction=none",
    "sweeps=settle",
    "relaxation.steps=6",
    "relaxation.tolerance=none",
    "gradient.steps=3",
)


@dataclass(frozen=True)
class Kind:
    """Runs that differ in their seed alone."""

    epochs: int
    limit: str = BEST
    split: int = 2
    feedback: float | None = None  # what `build` proposes

    @property
    def name(self) -> str:
        feedback = "" if self.feedback is None else f"-feedback-{self.feedback:g}"
        return f"bs{self.split}-limit-{self.limit}{feedback}-{self.epochs}-epochs"

    @property
    def command(self) -> list[str]:
        """But for its seed."""
        if self.split == 2:
            chosen = ["cifar10-small"]
        else:
            chosen = [f"cifar10-l12-bs{self.split}", *(each for each in RECIPE if not each.startswith("trainer.epochs"))]
        if self.limit == "none":
            chosen += WITHOUT
        elif self.limit != BEST:
            chosen += [f"model.max_contraction={self.limit}"]
        if self.feedback is not None:
            chosen += [f"model.feedback={self.feedback:g}"]
        return [*chosen, f"trainer.epochs={self.epochs}", "trainer.threads=1"]

    def run(self, seed: int) -> Run:
        return Run(RUNS / f"{self.name}-seed{seed}")

    def history(self, seed: int) -> History:
        """The metrics of every epoch, as a run has them or as they were published."""
        run = self.run(seed)
        return (run.metrics() if run.settings_file.exists() else []) or PUBLISHED.get(run.folder.name, [])

    def finished(self, seed: int) -> bool:
        return len(self.history(seed)) == self.epochs

    def train(self, seed: int) -> None:
        if self.finished(seed):
            return
        run = self.run(seed)
        begun = run.settings_file.exists()
        which = ["--resume", str(run.folder)] if begun else [*self.command, f"seed={seed}", "--output", str(run.folder)]
        RUNS.mkdir(parents=True, exist_ok=True)
        with (RUNS / f"{run.folder.name}.log").open("a") as log:
            command = [sys.executable, "-m", "ffebm", "train", *which]
            subprocess.run(command, cwd=ROOT, check=True, stdout=log, stderr=subprocess.STDOUT)

    def histories(self, seeds: Sequence[int]) -> list[History]:
        return [self.history(seed) for seed in seeds if self.finished(seed)]


TWO = [(Kind(2, limit), SEEDS) for limit in LIMITS]
FIVE = [(Kind(5), SEEDS), (Kind(5, "none"), SEEDS)]
CUT = [(Kind(2, split=split), SEEDS[:2]) for split in SPLITS]
LESS = [(Kind(2, feedback=feedback), SEEDS[:2]) for feedback in (1.0, 0.3, None)]


def last(histories: Sequence[History], key: str = "test_accuracy") -> list[float]:
    return [history[-1][key] for history in histories]


def row(name: str, kind: Kind, seeds: Sequence[int]) -> tuple[str, ...]:
    histories = kind.histories(seeds)
    accuracies = [100 * accuracy for accuracy in last(histories)]
    error = statistics.stdev(accuracies) / len(accuracies) ** 0.5 if len(accuracies) > 1 else None
    mean = f"{statistics.mean(accuracies):.2f} %"
    return (
        name,
        mean if error is None else f"{mean} ± {error:.2f}",
        ", ".join(f"{accuracy:.2f}" for accuracy in accuracies),
        f"{100 * statistics.mean(last(histories, 'train_accuracy')):.2f} %",
        f"{max(last(histories, 'residual')):.1e}",
    )


def proposed(kind: Kind) -> str:
    return f"{feedback_within(float(kind.limit), kind.split):.2g}, proposed" if kind.feedback is None else f"{kind.feedback:g}"


HEAD = ("", "test accuracy", "every seed", "training accuracy", "residual")


def draw() -> None:
    longer = any(kind.histories(seeds) for kind, seeds in FIVE)
    figure = Figure(figsize=(11 if longer else 8, 3.4), layout="constrained", dpi=130)
    limits, cut, *rest = figure.subplots(1, 3 if longer else 2)
    cut.sharey(limits)
    points(limits, TWO, LIMITS, "limit on contraction, two epochs")
    points(cut, CUT, [str(split) for split in SPLITS], f"layers in a block, limit {BEST}, two epochs")
    limits.set_ylabel("test accuracy (%)")
    for curves in rest:
        for (kind, seeds), name, colour in zip(FIVE, (f"limit {BEST}", "no limit"), ("#1b62a5", "#7a7a7a"), strict=True):
            for number, history in enumerate(kind.histories(seeds)):
                epochs = [each["epoch"] for each in history]
                accuracies = [100 * each["test_accuracy"] for each in history]
                curves.plot(epochs, accuracies, color=colour, marker="o", markersize=3, label=None if number else name)
        curves.set_xlabel("epoch of five, blocks of two")
        curves.legend(frameon=False)
    for axes in (limits, cut, *rest):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("CIFAR-10 by equilibrium propagation: 12 layers, an eighth of the width, every seed", fontsize=11)
    figure.savefig(ROOT / "docs" / "images" / "cifar10_small.png")


def points(axes: Axes, kinds: Sequence[tuple[Kind, Sequence[int]]], names: Sequence[str], words: str) -> None:
    for place, (kind, seeds) in enumerate(kinds):
        if found := [100 * accuracy for accuracy in last(kind.histories(seeds))]:
            axes.plot([place] * len(found), found, "o", color="#1b62a5", alpha=0.5)
            axes.plot([place - 0.25, place + 0.25], [statistics.mean(found)] * 2, color="#1b62a5")
    axes.set_xticks(range(len(names)), names)
    axes.set_xlabel(words)


def main() -> None:
    jobs = list(dict.fromkeys((kind, seed) for kind, seeds in (*FIVE, *TWO, *CUT, *LESS) for seed in seeds))
    with Progress() as progress, ThreadPoolExecutor(2) as pool:  # a thread each: faster than one after the other on two
        done = progress.add_task("training", total=len(jobs))
        for _ in pool.map(lambda job: job[0].train(job[1]), [] if "--tables" in sys.argv else jobs):
            progress.advance(done)
    kinds = list(dict.fromkeys(kind for kind, _ in jobs))
    every = {kind.run(seed).folder.name: kind.history(seed) for kind, seed in jobs if kind.finished(seed)}
    NUMBERS.write_text(json.dumps(every, indent=1) + "\n")
    draw()
    (limited, seeds), (free, _) = FIVE
    pairs = [
        last([kind.history(seed) for kind in (limited, free)])
        for seed in seeds
        if limited.finished(seed) and free.finished(seed)
    ]
    ahead = [100 * (one - other) for one, other in pairs]
    longer = (
        [
            "After five epochs:",
            "",
            table(("limit", *HEAD[1:]), [row(kind.limit, kind, seeds) for kind, seeds in FIVE]),
            "",
            f"Seed by seed, the limit is {statistics.mean(ahead):+.2f} points ahead, with a standard error of "
            f"{statistics.stdev(ahead) / len(ahead) ** 0.5:.2f} over {len(ahead)} pairs.",
            "",
        ]
        if len(ahead) > 1
        else ["The runs of five epochs are not finished yet.", ""]
    )
    text = [
        "# CIFAR-10, small",
        "",
        "`make cifar10` trained 12 layers at an eighth of the paper's width on real CIFAR-10 by EP, all by one recipe,",
        f"the preset `cifar10-small`. Two runs at once, one thread each, on {describe_environment(seed=0)['processor']}.",
        "Accuracies are of the 10,000 test images after the last epoch, with the standard error of the mean over seeds. The",
        "recipe was chosen on training images set apart, with seed 100. Every number of epochs has a cycle of its own.",
        "",
        "Limits on the contraction of a sweep, by EP, after two epochs:",
        "",
        table(("limit", *HEAD[1:]), [row(kind.limit, kind, seeds) for kind, seeds in TWO]),
        "",
        *longer,
        "The same layers, with pooling in the same places, in larger blocks, by EP, after two epochs:",
        "",
        table(("blocks of", *HEAD[1:]), [row(str(kind.split), kind, seeds) for kind, seeds in CUT]),
        "",
        "Blocks of two with more feedback and the same limit, by EP, after two epochs. Less feedback lets edges be stronger.",
        "",
        table(("feedback", *HEAD[1:]), [row(proposed(kind), kind, seeds) for kind, seeds in LESS]),
        "",
        "```",
        *(f"ffebm train {shlex.join(kind.command)} seed=0" for kind in kinds if kind.finished(0)),
        "```",
    ]
    (RESULTS / "cifar10_small.md").write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
