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
            two processes of one thread train more than one process of two.
        devices: CUDA devices, one for each process in turn.
    """

    def __init__(self, jobs: int | None = None, devices: Sequence[str] = ()) -> None:
        cores = os.cpu_count() or 1
        self.slots = jobs or len(devices) or cores
        self.threads = max(1, cores // self.slots)
        self._devices = devices
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._stopping = threading.Event()

    def __call__(self, arguments: Sequence[str], log: Path, slot: int) -> int:
        environment = dict(os.environ)
        if self._devices:
            environment["CUDA_VISIBLE_DEVICES"] = self._devices[slot % len(self._devices)]
        return _run(arguments, log, environment, self._processes, self._stopping)

    def stop(self) -> None:
        self._stopping.set()
        for process in list(self._processes):
            process.send_signal(signal.SIGINT)


def _run(
    arguments: Sequence[str],
    log: Path,
    environment: dict[str, str],
    processes: set[subprocess.Popen[bytes]],
    stopping: threading.Event,
) -> int:
    with log.open("ab") as file:
        command = [sys.executable, "-m", "ffebm", *arguments]
        # In a session of its own: an interrupt from the keyboard comes from us, and once.
        with subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        ) as process:
            processes.add(process)
            try:
                if stopping.is_set():
                    process.send_signal(signal.SIGINT)
                return process.wait()
            finally:
                processes.discard(process)


class RayCluster:
    """Tasks on a Ray cluster, whose machines all see the same run folders and data, and have ffebm installed.

    Args:
        address: of the cluster's head, "auto" for the one this machine belongs to, "local" for one of this machine alone.
        threads: CPUs that each task asks for.
    """

    slots = 1000  # Ray itself lets wait what does not fit

    def __init__(self, address: str, threads: int = 1) -> None:
        try:
            import ray
        except ImportError:
            raise UserError("Ray is not installed: `pip install 'ffebm[ray]'` brings it.") from None
        self._ray: Any = ray
        try:
            ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UserError(f"No Ray cluster answers at {address}: {error}. Start one by `ray start --head`.") from None
        self.threads = threads
        gpus = 1 if ray.cluster_resources().get("GPU") else 0
        self._task = ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=0)(_remotely)
        self._stopping = threading.Event()

    def __call__(self, arguments: Sequence[str], log: Path, slot: int) -> int:
        task = self._task.remote(list(arguments), str(log.absolute()), os.getcwd())
        cancelled = False
        while not self._ray.wait([task], timeout=0.5)[0]:
            if self._stopping.is_set() and not cancelled:
                self._ray.cancel(task, force=False)
                cancelled = True
        try:
            return self._ray.get(task)
        except self._ray.exceptions.RayError:  # cancelled, or its machine is gone
            return 1

    def stop(self) -> None:
        self._stopping.set()


def _remotely(arguments: list[str], log: str, folder: str) -> int:
    """What a worker does."""
    os.chdir(folder)
    processes: set[subprocess.Popen[bytes]] = set()
    stopping = threading.Event()
    try:
        return _run(arguments, Path(log), dict(os.environ), processes, stopping)
    except KeyboardInterrupt:  # how Ray cancels a task
        for process in processes:
            process.send_signal(signal.SIGINT)
            process.wait()
        raise
