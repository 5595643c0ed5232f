"""What training costs besides gradients, and what a second process brings.

Trains `cifar10-small`, with crops and flips, on real CIFAR-10 (FFEBM_DATA names its folder): for one epoch with a clock around
the forward pass, the backward pass and the optimiser; and in one and in two processes of one thread each, in turn, with the
paper's batch of 128 in each process.
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
TURNS = 3  # of which the fastest counts


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


def throughput(folder: Path, processes: int) -> float:
    """Images per second in processes of one thread each, the best of what a run reports."""
    command = [sys.executable, "-m", "ffebm", "train", "cifar10-small", *SETTINGS, "trainer.threads=1"]
    command += [
        f"trainer.batch={128 * processes}",
        f"trainer.devices={processes}",
        "--output",
        str(folder / f"processes-{processes}"),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        time.sleep(SECONDS)
        run.send_signal(signal.SIGINT)
        _, reports = run.communicate()
    return max(float(pace.replace(",", "")) for pace in re.findall(r"([\d,]+)\s+images/s", reports))


def main() -> None:
    place = describe_environment(seed=0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inside, whole = share_of_gradients(folder)
        turns = [{count: throughput(folder / str(turn), count) for count in (1, 2)} for turn in range(TURNS)]
    speeds = {count: max(turn[count] for turn in turns) for count in (1, 2)}
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
        f"| one process of one thread, batch of 128 | {speeds[1]:.1f} images/s |",
        f"| two such processes (DDP), batch of 256 | {speeds[2]:.1f} images/s, **{speeds[2] / speeds[1]:.2f} ×** |",
    ]
    RESULT.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
