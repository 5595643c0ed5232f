"""Processes that meet: in one folder, or after the one that started them is gone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from ffebm.experiment.run import Run, RunError

TINY = [
    "model.channels=[4, 4]",
    "model.pooled=[]",
    "relaxation.steps=3",
    "gradient.steps=2",
    "trainer.threads=1",
    "trainer.accelerator=cpu",
]


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ffebm", *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def wait_for(what: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def test_of_two_trainings_into_one_new_folder_one_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    both = {seed: start("train", *TINY, "trainer.epochs=1", f"seed={seed}", "--output", folder) for seed in (1, 2)}
    said = {seed: process.communicate(timeout=120)[0] for seed, process in both.items()}
    winner, loser = sorted(both, key=lambda seed: both[seed].returncode)
    assert (both[winner].returncode, both[loser].returncode) == (0, 1), said
    assert "exists already" in said[loser] or "being trained by another process" in said[loser]
    assert "Traceback" not in said[loser]
    assert Run(folder).settings().seed == winner
    assert len(Run(folder).environments()) == 1


def test_a_folder_that_became_a_run_before_it_was_locked_is_refused(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", "")
    (run.folder / "settings.toml").write_text("seed = 1")  # by a process that found it as empty as this one did
    with pytest.raises(RunError, match="exists already"), run.locked(new=True):
        pass


def test_an_empty_run_folder_is_removed_once_it_is_unlocked(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", "")
    with run.locked(new=True):
        run.discard_if_empty()  # by another process: this one still holds it
        assert run.folder.is_dir()
    run.discard_if_empty()
    assert not run.folder.exists()
    with pytest.raises(RunError, match="not there any more"), run.locked():
        pass


def test_a_deleted_run_folder_ends_training_with_a_one_line_error(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    process = start("train", *TINY, "trainer.epochs=1000", "trainer.checkpoint_every=3", "--output", run.folder)
    wait_for(lambda: run.checkpoints() or process.poll() is not None)
    while run.settings_file.exists():
        shutil.rmtree(run.folder, ignore_errors=True)  # while files come and go in it
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 1
    assert "was deleted, or emptied, while it was trained into" in said
    assert "Traceback" not in said
    assert not (run.folder / "settings.toml").exists()


def test_a_killed_training_process_ends_the_others_with_a_one_line_error(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    process = start("train", *TINY, "trainer.epochs=1000", "trainer.devices=2", "--output", run.folder)
    wait_for(lambda: run.checkpoints() or process.poll() is not None)
    (worker,) = children(process.pid)
    os.kill(worker, signal.SIGKILL)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 1
    assert "Another process of this run has ended" in said
    assert "Traceback" not in said


FAILING = """
import os, time, torch
from pathlib import Path
from ffebm import FFEBM, DivergenceError
from ffebm.experiment import command_line
from ffebm.experiment.processes import process_rank
from ffebm.experiment.training import learner

kind, part = os.environ["FAILS_BY"], int(os.environ["FAILS_IN_PART"])
train, forward = learner.Learner.training_step, FFEBM.forward

def diverge(*_):
    raise DivergenceError("block 2 of 2", 3, 1e9, "Lower the learning rate.")

def training_step(self, batch, index):
    failing = process_rank() == int(os.environ["FAILS"]) and self.global_step == 2 and index % 2 == part
    if failing and kind == "loss":
        with torch.no_grad():
            self.model.readout[1].weight.fill_(torch.nan)
    FFEBM.forward = diverge if failing and kind == "divergence" else forward
    return train(self, batch, index) * (torch.inf if failing and kind == "gradient" else 1)

def note(self, message):
    files = [Path(os.environ["NOTES"]) / f"process-{rank}" for rank in range(2)]
    files[process_rank()].write_text(message)
    deadline = time.monotonic() + 30
    while not all(file.exists() for file in files) and time.monotonic() < deadline:
        time.sleep(0.01)  # or the one that started the other would end it before it can say anything

learner.Learner.training_step = training_step
learner.HealthError.__init__ = note
command_line.main()
"""


@pytest.mark.parametrize(
    ("process", "kind", "part", "message"),
    [
        (1, "loss", 0, "The loss is not finite at step 3; "),
        (1, "divergence", 1, "The relaxation of block 2 of 2 diverged"),
        (0, "divergence", 0, "The relaxation of block 2 of 2 diverged"),
        (1, "gradient", 0, "The gradient of the readout is not finite at step 3. "),
    ],
)
def test_when_one_process_fails_in_any_part_of_a_step_both_raise_the_same_error(
    process: int, kind: str, part: int, message: str, tmp_path: Path
) -> None:
    script = tmp_path / "failing.py"
    script.write_text(FAILING)
    command = [
        sys.executable,
        script,
        "train",
        *TINY,
        "trainer.devices=2",
        "trainer.accumulate=2",
        "--output",
        tmp_path / "run",
    ]
    failing = {"FAILS": str(process), "FAILS_BY": kind, "FAILS_IN_PART": str(part), "NOTES": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, env={**os.environ, **failing})
    assert done.returncode == 1, done.stderr
    notes = [(tmp_path / f"process-{rank}").read_text() for rank in range(2)]
    assert notes[0].startswith(message)
    assert notes[0] == notes[1]
    assert "Traceback" not in done.stderr


def test_a_killed_data_worker_ends_the_run_with_a_one_line_error(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    settings = ("trainer.epochs=1000", "trainer.batch=8", "trainer.checkpoint_every=5", "data.workers=1")
    process = start("train", *TINY, *settings, "--output", run.folder)
    wait_for(lambda: run.checkpoints() or process.poll() is not None)  # an epoch takes seconds, and as long lives its helper
    (helper,) = children(process.pid)
    os.kill(helper, signal.SIGKILL)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 1
    assert "A process that prepares batches has ended" in said
    assert "Traceback" not in said


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc for children")
def test_runs_of_a_killed_queue_stop_with_a_checkpoint(tmp_path: Path) -> None:
    """Its runs stop as after SIGTERM: with a checkpoint, so that the next queue goes on from there."""
    run = Run(tmp_path / "run")
    arguments = ["train", *TINY, "trainer.epochs=1000", "--output", str(run.folder)]
    code = (
        "import sys; from pathlib import Path; from ffebm.experiment.queue import LocalProcesses; "
        "LocalProcesses(1)(sys.argv[2:], Path(sys.argv[1]), 0)"
    )
    queue = subprocess.Popen([sys.executable, "-c", code, tmp_path / "log", *arguments])
    wait_for(run.checkpoints)
    (child,) = children(queue.pid)
    queue.kill()
    queue.wait()
    wait_for(lambda: not alive(child))
    assert "Stopped by SIGTERM" in (tmp_path / "log").read_text()


def children(process: int) -> list[int]:
    """Those of ours; Lightning and torch start others, which they look after."""
    found: set[int] = set()
    for thread in Path(f"/proc/{process}/task").glob("*"):
        with suppress(OSError):  # threads and processes come and go
            for child in (thread / "children").read_text().split():
                if b"ffebm" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.add(int(child))
    return sorted(found)


def alive(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False
