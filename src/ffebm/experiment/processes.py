"""Which of the processes of a distributed run this one is."""

from __future__ import annotations

import os


def process_rank() -> int:
    """Set by torchrun, by Lightning for those it starts itself, or by SLURM; 0 where there is only one."""
    ranks = (os.environ.get(name, "") for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"))
    return next((int(rank) for rank in ranks if rank.isdigit()), 0)


def is_first(processes: int) -> bool:
    """Whether this process speaks and writes for a run of so many; a run of one does, whatever it was started among."""
    return processes == 1 or process_rank() == 0
