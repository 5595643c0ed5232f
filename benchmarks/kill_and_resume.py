"""Kill a training run at random moments, resume it every time, and compare its weights with those of a run left in peace.

Every kill is a SIGKILL to the whole process group: nothing gets a chance to tidy up. Writes results/kill_and_resume.md, or with
two processes results/kill_and_resume_two.md.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

from ffebm.experiment.run import Run

SETTINGS = (
    "digits",
    "trainer.batch=32",
    "trainer.threads=1",
    "trainer.accelerator=cpu",
    "trainer.checkpoint_every=4",
    "model.channels=[8, 8, 16]",
    "model.split=[2, 1]",
    "relaxation.steps=10",
    "gradient.steps=5",
)
RESULTS = Path(__file__).parent.parent / "results"


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "ffebm", "train", *map(str, arguments)]


def newest(run: Run) -> int:
    """The step of the newest checkpoint, or 0."""
    found = run.checkpoints()
    return int(found[0].stem.removeprefix("step-")) if found else 0


def kill_once(run: Run, settings: list[str], chance: random.Random, log: Path) -> tuple[int, int] | None:
    """Start or resume the run and kill it a random time after it has moved; None if it came to its end first."""
    started = newest(run)
    begin = command("--resume", run.folder) if run.settings_file.exists() else command(*settings, "--output", run.folder)
    with log.open("ab") as sink:
        process = subprocess.Popen(begin, stdout=sink, stderr=sink, start_new_session=True)
    if chance.random() < 0.2:  # now and then before it has done anything: while it loads, or reads its checkpoint
        moment = time.monotonic() + chance.uniform(0.0, 8.0)
    else:
        while process.poll() is None and newest(run) == started:
            time.sleep(0.002)
        moment = time.monotonic() + chance.uniform(0.0, 1.5)
    while time.monotonic() < moment and process.poll() is None:
        time.sleep(0.001)
    if process.poll() is not None:
        if process.returncode != 0:
            raise SystemExit(f"A resumed run failed; its last words are in {log}.")
        return None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return started, newest(run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--processes", type=int, default=1, choices=(1, 2), help="that train together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-result", action="store_true", help="do not write the results file")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    # Two seconds of training between two kills, at most.
    settings = [*SETTINGS, f"trainer.epochs={5 * arguments.kills // 2}", f"trainer.devices={arguments.processes}"]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        whole, killed = Run(Path(folder) / "whole"), Run(Path(folder) / "killed")
        subprocess.run(command(*settings, "--output", whole.folder), check=True, capture_output=True)
        kills: list[tuple[int, int]] = []
        while len(kills) < arguments.kills and (steps := kill_once(killed, settings, chance, log)) is not None:
            kills.append(steps)
            print(f"kill {len(kills)}: started from step {steps[0]}, newest checkpoint {steps[1]}", flush=True)
        if len(kills) < arguments.kills:
            raise SystemExit(f"The run came to its end after {len(kills)} kills: give it more epochs.")
        if subprocess.run(command("--resume", killed.folder), capture_output=True).returncode:
            raise SystemExit("The last resumption failed.")
        one, other = load_file(whole.weights_file), load_file(killed.weights_file)
        differing = [name for name in one if not torch.equal(one[name], other[name])]
        columns = ("train_loss", "train_accuracy", "test_loss", "test_accuracy", "residual")
        rows = [[row[column] for column in columns] for row in whole.metrics()]
        again = [[row[column] for column in columns] for row in killed.metrics()]
        steps_in_all = int(whole.metrics()[-1]["step"])
    if differing or rows != again:
        raise SystemExit(f"After {len(kills)} kills, these weights differ: {differing}; metrics equal: {rows == again}.")
    early = sum(before == after for before, after in kills)
    together = " by two processes" if arguments.processes == 2 else ""
    text = f"""# Killed and resumed{together}

`{shlex.join(["python", *sys.argv])}`:
a run on the digits{together}, {steps_in_all} steps on one thread each with a checkpoint every 4, was killed {len(kills)} times
by SIGKILL at random moments and resumed every time; {early} kills came before it had written anything new. All resumptions
worked. In the end all {len(one)} weight tensors equal, bit for bit, those of a run that was left in peace; so do losses,
accuracies and residuals of all {len(rows)} epochs.
"""
    print(text)
    if not arguments.no_result:
        (RESULTS / f"kill_and_resume{'_two' if arguments.processes == 2 else ''}.md").write_text(text)


if __name__ == "__main__":
    main()
