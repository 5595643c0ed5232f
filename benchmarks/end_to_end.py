"""What training costs besides gradients, and what a second process brings.

Trains `cifar10-small`, with crops and flips, on real CIFAR-10 (FFEBM_DATA names its folder): for one epoch with a clock around
the forward pass, the backward pass and the optimiser; and in one process of one thread, in two that know nothing of each other,
and in two together, in turn, with the paper's batch of 128 in each.
Writes results/end_to_end.md.

    python benchmarks/end_to_end.py
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from ffebm.experiment.environment import describe_environment
from ffebm.experiment.preset import read_preset
from ffebm.experiment.run import Run
from ffebm.experiment.training import fitting
from ffebm.experiment.training.learner import Learner
from ffebm.model import FFEBM

RESULT = Path(__file__).parent.parent / "results" / "end_to_end.md"
SETTINGS = ["trainer.epochs=1", "data.crop_padding=4", "data.flip=true"]
SECONDS = 85  # of a turn: a run without a terminal reports after a minute
TURNS = 2  # of which the fastest counts


class Clock:
    """Adds up the time that functions take."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                if torch.is_grad_enabled() or function.__name__ == "adam":  # tests do not count
                    self.seconds += time.perf_counter() - begin

        return timed


def share_of_gradients(folder: Path) -> tuple[float, float]:
    """Of an epoch's seconds, those in gradients and optimiser; and all of them."""
    clock = Clock()
    FFEBM.forward = clock.around(FFEBM.forward)
    Learner.backward = clock.around(Learner.backward)
    optimiser = vars(sys.modules["torch.optim.adam"])  # its `step` holds forward and backward pass as well, inside a closure
    optimiser["adam"] = clock.around(optimiser["adam"])
    run = Run.create(folder / "clocked", "clocked")
    learner = fitting.train(read_preset("cifar10-small", [*SETTINGS, f"data.root={os.environ['FFEBM_DATA']}"]), run, Console())
    return clock.seconds, learner.seconds


def throughput(folder: Path, *, runs: int = 1, devices: int = 1) -> float:
    """Images per second of so many runs at once, each of so many processes (DDP) of one thread, with a batch of 128 in each."""
    command = [sys.executable, "-m", "ffebm", "train", "cifar10-small", *SETTINGS, "trainer.threads=1"]
    command += [f"trainer.batch={128 * devices}", f"trainer.devices={devices}", "--output"]
    started = [
        subprocess.Popen([*command, str(folder / str(number))], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        for number in range(runs)
    ]
    time.sleep(SECONDS)
    for run in started:
        run.send_signal(signal.SIGINT)
    return sum(_pace(run.communicate()[1]) for run in started)


def _pace(reports: str) -> float:
    """The best that a run reports."""
    return max(float(pace.replace(",", "")) for pace in re.findall(r"([\d,]+)\s+images/s", reports))


def main() -> None:
    place = describe_environment(seed=0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inside, whole = share_of_gradients(folder)
        ways = {"one": {}, "two apart": {"runs": 2}, "two together": {"devices": 2}}
        turns = [{name: throughput(folder / f"{turn} {name}", **way) for name, way in ways.items()} for turn in range(TURNS)]
    best = {name: max(turn[name] for turn in turns) for name in ways}
    lines = [
        "## What training costs besides gradients",
        "",
        f"Made by `python benchmarks/end_to_end.py` at {place['commit'][:10]}, {place['time'][:10]}, on {place['processor']}, "
        f"{place['cores']} cores, torch {place['packages']['torch']}:",
        "`cifar10-small` with crops and flips on real CIFAR-10; one epoch, its test not counted, for the shares;",
        f"the fastest of {TURNS} turns for the processes.",
        "",
        "| | |",
        "|---|---|",
        f"| forward pass, backward pass, optimiser | {inside:.1f} s |",
        f"| the whole epoch | {whole:.1f} s |",
        f"| data, augmentation, logging, checkpoints, and all else | **{100 * (1 - inside / whole):.1f} %** of it |",
        f"| one process of one thread, batch of 128 | {best['one']:.1f} images/s |",
        f"| two that know nothing of each other: what the machine can do | {best['two apart']:.1f} images/s, "
        f"{best['two apart'] / best['one']:.2f} × |",
        f"| two together (DDP), batch of 256 | {best['two together']:.1f} images/s, "
        f"**{best['two together'] / best['one']:.2f} ×**, {100 * best['two together'] / best['two apart']:.0f} % of that |",
    ]
    RESULT.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
