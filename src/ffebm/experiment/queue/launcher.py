"""Where a run is carried out: in a process on this machine, or on a Ray cluster."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from ffebm.experiment.errors import UserError
from ffebm.experiment.files import open_to_append
from ffebm.experiment.processes import LEASH

__all__ = ["Launcher", "LocalProcesses", "RayCluster"]
__dir__ = __all__.copy

LOOK = 0.5  # seconds between looks at what runs


class Launcher(Protocol):
    """Carries out commands, several at once."""

    slots: int  # how many at once
    threads: int  # CPU threads that each may use

    def __call__(self, arguments: Sequence[str], log: Path, slot: int) -> int:
        """Run `ffebm` with these arguments to its end; what it says goes to `log`. Returns its exit code."""
        ...

    def stop(self) -> None:
        """Ask all that run to save where they are and end."""
        ...


class LocalProcesses:
    """Processes on this machine.

    Args:
        jobs: how many at once; by default one for every device that is named, else one for every core, with a thread each:
            runs wait for each other nowhere, threads do.
        devices: CUDA devices, one for each process in turn.
    """

    def __init__(self, jobs: int | None = None, devices: Sequence[str] = ()) -> None:
        cores = _cores()
        self.slots = jobs or len(devices) or cores
        self.threads = max(1, cores // self.slots)
        self._devices = devices
        self._stopping = threading.Event()

    def __call__(self, arguments: Sequence[str], log: Path, slot: int) -> int:
        device = {"CUDA_VISIBLE_DEVICES": self._devices[slot % len(self._devices)]} if self._devices else {}
        return _run(arguments, log, device, self._stopping)

    def stop(self) -> None:
        self._stopping.set()


class RayCluster:
    """Tasks on a Ray cluster, whose machines all see the same run folders and data, and have ffebm installed.

    Args:
        address: of the cluster's head, "auto" for the one this machine belongs to, "local" for one of this machine alone.
        threads: CPUs that each task asks for.
    """

    def __init__(self, address: str, threads: int = 1) -> None:
        try:
            import ray
        except ImportError:
            raise UserError("Ray is not installed: `pip install 'ffebm[ray]'` brings it.") from None
        self._ray: Any = ray
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UserError(f"No Ray cluster answers at {address}: {error}. Start one by `ray start --head`.") from None
        resources = ray.cluster_resources()
        gpus = int(resources.get("GPU", 0))
        self.threads = threads
        self.slots = gpus or max(1, int(resources.get("CPU", 1)) // threads)
        self._task = ray.remote(num_cpus=threads, num_gpus=1 if gpus else 0, max_retries=0)(_remotely)
        self._stopping = threading.Event()

    def __call__(self, arguments: Sequence[str], log: Path, slot: int) -> int:
        task = self._task.remote(list(arguments), str(log.absolute()), os.getcwd())
        asked = False
        while not self._ray.wait([task], timeout=LOOK)[0]:
            if self._stopping.is_set() and not asked:
                self._ray.cancel(task, force=False)
                asked = True
        try:
            return self._ray.get(task)
        except self._ray.exceptions.TaskCancelledError:
            return 130
        except self._ray.exceptions.RayError as error:  # its machine is gone, or has no ffebm
            with open_to_append(log) as file:
                file.write(f"Error: Ray could not carry this out: {str(error).strip().splitlines()[-1]}\n".encode())
            return 1

    def stop(self) -> None:
        self._stopping.set()


def _remotely(arguments: list[str], log: str, folder: str) -> int:
    """What a worker does."""
    os.chdir(folder)
    return _run(arguments, Path(log), {}, threading.Event())


def _run(arguments: Sequence[str], log: Path, device: dict[str, str], stopping: threading.Event) -> int:
    """Wait for a process; once `stopping` is set, or an interrupt comes as Ray sends it, pass one on and wait for its end."""
    command = [sys.executable, "-m", "ffebm", *arguments]
    asked = False
    with (
        open_to_append(log) as file,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # which ends with us, however we end: see `follow_leash`
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **device, LEASH: "1"},
            start_new_session=True,  # an interrupt from the keyboard comes from us, and once
        ) as process,
    ):
        while True:
            try:
                return process.wait(LOOK)
            except subprocess.TimeoutExpired:
                wanted = stopping.is_set()
            except KeyboardInterrupt:
                wanted = True
            if wanted and not asked:
                process.send_signal(signal.SIGINT)
                asked = True


def _cores() -> int:
    """Those that this process may use, which a scheduler may have made fewer."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
