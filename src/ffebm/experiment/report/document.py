"""A report before it is a page: sections of text, tables, charts and pictures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Chart", "Curve", "Document", "Listing", "Part", "Picture", "Section", "Table", "Text"]
__dir__ = __all__.copy


@dataclass(frozen=True)
class Text:
    """A paragraph, with commands between backticks."""

    words: str

    def pieces(self) -> list[str]:
        """Prose and commands in turn; the first piece is prose, be it empty."""
        return re.split(r"(?<!`)`(?=\s*+[^`\s])([^`]++)`(?!`)", self.words)


@dataclass(frozen=True)
class Table:
    """Cells of text under a header; numbers are aligned to the right where all but the first column are such."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]


@dataclass(frozen=True)
class Curve:
    """One line of a chart."""

    name: str
    x: Sequence[float] | Sequence[str]
    y: Sequence[float]  # what is not finite, or has no logarithm where one is taken, is left out
    colour: int = 0  # curves of the same number have the same colour
    dashed: bool = False
    errors: Sequence[float] = ()  # up and down, one for each point
    notes: Sequence[str] = ()  # what hovering over each point says besides
    points: bool = False  # marks without a line


@dataclass(frozen=True)
class Chart:
    """Curves, or bars, over a common axis; hover and zoom are the page's."""

    title: str
    x: str
    y: str
    curves: list[Curve]
    log: bool = False
    bars: bool = False
    steps: bool = False  # the common axis has names in a row, rather than numbers


@dataclass(frozen=True)
class Picture:
    """A PNG image."""

    title: str
    content: bytes


@dataclass(frozen=True)
class Listing:
    """Lines of code or settings, folded away."""

    title: str
    text: str


Part = Text | Table | Chart | Picture | Listing


@dataclass(frozen=True)
class Section:
    title: str
    parts: list[Part] = field(default_factory=list)


@dataclass(frozen=True)
class Document:
    title: str
    sections: list[Section]
    numbers: dict[str, Any]  # what the report's JSON holds
