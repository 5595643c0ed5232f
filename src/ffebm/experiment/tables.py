"""Tables in a terminal with words above and below, on lines of their own: rich would squeeze those into a table's width."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

__all__ = ["titled"]
__dir__ = __all__.copy


def titled(title: str, table: Table, note: str = "") -> Group:
    """A table with a title over it and a note under it, either of which may be empty; nothing in them is markup."""
    parts: list[RenderableType] = [Text(title, style="italic")] if title else []
    return Group(*parts, table, *([Text(note, style="dim")] if note else []))
