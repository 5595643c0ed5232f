"""A document as Markdown."""

from __future__ import annotations

from functools import singledispatch

from ffebm.checks import one_line
from ffebm.experiment.markup import escaped, fence, span, table, text
from ffebm.experiment.report.document import Document, Listing, Part, Table, Text

__all__ = ["markdown", "paragraph"]
__dir__ = __all__.copy


def markdown(document: Document) -> str:
    """Texts, tables and listings; charts and pictures are the page's alone."""
    lines = [f"# {text(document.title)}", ""]
    for section in document.sections:
        shown = [line for part in section.parts for line in _lines(part)]
        lines += [f"## {text(section.title)}", "", *shown] if shown else []
    return "\n".join(lines).rstrip() + "\n"


@singledispatch
def _lines(_: Part) -> list[str]:
    """A part, with an empty line behind it; nothing for what is the page's alone."""
    return []


@_lines.register
def _(part: Table) -> list[str]:
    return [f"**{text(part.title)}**", "", table(part.header, part.rows), ""]


@_lines.register
def _(part: Text) -> list[str]:
    return [paragraph(part), ""]


@_lines.register
def _(part: Listing) -> list[str]:
    return [f"{text(part.title)}:", "", fence(part.text), ""]


def paragraph(part: Text) -> str:
    """Words, but for the commands between backticks, which stay code."""
    pieces = Text(one_line(part.words)).pieces()
    return "".join(span(piece) if number % 2 else escaped(piece) for number, piece in enumerate(pieces))
