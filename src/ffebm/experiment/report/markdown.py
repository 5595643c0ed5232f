"""A document as Markdown."""

from __future__ import annotations

from ffebm.checks import one_line
from ffebm.experiment.markup import escaped, fence, span, table, text
from ffebm.experiment.report.document import Document, Listing, Table, Text


def markdown(document: Document) -> str:
    """Texts, tables and listings; charts and pictures are the page's alone."""
    lines = [f"# {text(document.title)}", ""]
    for section in document.sections:
        shown = [part for part in section.parts if isinstance(part, Text | Table | Listing)]
        if not shown:
            continue
        lines += [f"## {text(section.title)}", ""]
        for part in shown:
            if isinstance(part, Table):
                lines += [f"**{text(part.title)}**", "", table(part.header, part.rows), ""]
            elif isinstance(part, Text):
                lines += [paragraph(part), ""]
            else:
                lines += [f"{text(part.title)}:", "", fence(part.text), ""]
    return "\n".join(lines).rstrip() + "\n"


def paragraph(part: Text) -> str:
    """Words, but for the commands between backticks, which stay code."""
    pieces = Text(one_line(part.words)).pieces()
    return "".join(span(piece) if number % 2 else escaped(piece) for number, piece in enumerate(pieces))
