"""Which of the processes of a run this one is, and how it ends with the one that started it."""

from __future__ import annotations

import os
import signal
import sys
import threading

__all__ = ["LEASH", "follow_leash", "is_first", "process_rank"]
__dir__ = __all__.copy

LEASH = "FFEBM_LEASH"  # set for a process whose standard input lasts as long as the one that started it


def process_rank() -> int:
    """Set by torchrun, by Lightning for those it starts itself, or by SLURM; 0 where there is only one."""
    ranks = (os.environ.get(name, "") for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"))
    return next((int(rank) for rank in ranks if rank.isdigit()), 0)


def is_first(processes: int) -> bool:
    """Whether this process speaks and writes for a run of so many; a run of one does, whatever it was started among."""
    return processes == 1 or process_rank() == 0


def follow_leash() -> None:
    """Stop as after SIGTERM when the process that started this one is gone, even if it was killed without a word."""
    if os.environ.get(LEASH):
        threading.Thread(target=_wait_for_the_end, daemon=True).start()


def _wait_for_the_end() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
