"""Results that others have printed."""

from dataclasses import dataclass

__all__ = ["Published"]
__dir__ = __all__.copy


@dataclass(frozen=True)
class Published:
    """Accuracies in per cent."""

    source: str
    top1: float
    top5: float
