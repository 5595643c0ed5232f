"""Lightning without its remarks."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["calm"]
__dir__ = __all__.copy


@contextmanager
def calm() -> Iterator[None]:
    """Without what Lightning has to say on things that were set on purpose."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*isinstance.treespec, LeafSpec.*")  # of Lightning's own making
            # A callback that keeps the best weights does so in one folder, before and after a resumption.
            warnings.filterwarnings("ignore", ".*Checkpoint directory .* exists and is not empty.*")
            # Its successor is newer than our oldest torch.
            warnings.filterwarnings("ignore", ".*broadcast_buffers. is deprecated.*")
            yield
    finally:
        logger.setLevel(level)
