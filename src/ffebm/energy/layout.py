"""A network as crossbars see it."""

from __future__ import annotations

from dataclasses import dataclass

from ffebm.interaction.matrix import Matrix

__all__ = ["Layout"]
__dir__ = __all__.copy


@dataclass(frozen=True)
class Layout:
    """The matrices between layers, and in how many turns a sweep moves all layers."""

    matrices: tuple[Matrix, ...]
    turns: int  # groups of layers that move together
