"""Markdown in which names and titles show as they are, whatever they hold."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ffebm.checks import one_line

__all__ = ["cell", "code", "escaped", "fence", "span", "table", "text"]
__dir__ = __all__.copy

# Only what would be read as markup, so that reports stay readable as they are: an underscore inside a word is not, for example.
_MARKUP = re.compile(
    r"""
    [\\`*\[$~]                      # other escapes, code, emphasis, links and images, formulas, strikethrough
    | (?<!\w)_++ | (?<!_)_++(?!\w)  # emphasis
    | \A>                           # at the start of a line: quotations,
    | \A[-+](?=\s|\Z)               # lists,
    | \A-(?=[-\s]*\Z)               # rules,
    | \A\#(?=\#{0,5}(?:\s|\Z))      # headings,
    | (?<=\s)\#+\Z                  # and at the end of one, what would close it
    """,
    re.VERBOSE,
)
_NUMBERED = re.compile(r"\A(\d{1,9})(?=[.)](?:\s|\Z))")
_TAG = re.compile(r"<(?=\S)")
_ENTITY = re.compile(r"&(?=#?\w+;)")


def text(words: str) -> str:
    """Words that show as they are, anywhere on a line."""
    return escaped(one_line(words))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(map(cell, header))} |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *(f"| {' | '.join(map(cell, row))} |" for row in rows)])


def cell(words: str) -> str:
    """Words in a table: nothing in them ends the cell or the row."""
    return text(words).replace("|", "\\|")


def code(words: str) -> str:
    """A command or a name between more backticks than it holds in a row."""
    return span(one_line(words))


def fence(content: str) -> str:
    """Lines of code that nothing inside of them ends."""
    ticks = "`" * _more_ticks(content, 3)
    return f"{ticks}\n{content.rstrip()}\n{ticks}"


def escaped(words: str) -> str:
    words = _MARKUP.sub(lambda found: "".join(f"\\{letter}" for letter in found[0]), words)
    return _TAG.sub("&lt;", _ENTITY.sub("&amp;", _NUMBERED.sub(r"\1\\", words)))


def span(words: str) -> str:
    ticks = "`" * _more_ticks(words, 1)
    outer = words[:1] + words[-1:]
    space = " " if "`" in outer or outer == "  " else ""  # a space on both sides is taken off
    return f"{ticks}{space}{words}{space}{ticks}"


def _more_ticks(content: str, least: int) -> int:
    return max([least, *(len(run) + 1 for run in re.findall("`+", content))])
