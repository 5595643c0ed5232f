"""Lightning without its remarks."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def calm() -> Iterator[None]:
    """Without what Lightning has to say on things that were set on purpose."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*isinstance.treespec, LeafSpec.*")  # of Lightning's own making
            # Its successor is newer than our oldest torch.
            warnings.filterwarnings("ignore", ".*broadcast_buffers. is deprecated.*")
            yield
    finally:
        logger.setLevel(level)
