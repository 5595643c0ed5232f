"""What a folder holds of a data set: all of it, a part, something damaged, or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

__all__ = ["Condition", "Presence"]
__dir__ = __all__.copy


class Presence(StrEnum):
    COMPLETE = "complete"
    PARTIAL = "partial"
    DAMAGED = "damaged"
    ABSENT = "absent"


@dataclass(frozen=True)
class Condition:
    """The state of a data set's files."""

    state: Presence
    reason: str = ""  # why it is not complete
    folder: Path | None = None  # where the files are, if there are any
    counts: tuple[int, int] | None = None  # of training and of test images, if they can be read

    @property
    def details(self) -> str:
        """What people read beside the state."""
        if self.counts is None:
            return self.reason
        found = f"{self.counts[0]:,} training and {self.counts[1]:,} test images in {self.folder}"
        return f"{found}; {self.reason}" if self.reason else found
