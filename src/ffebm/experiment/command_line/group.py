"""How mistakes in options are told: the usual way of Typer, but no longer than they need be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from ffebm.checks import brief_name

UsageError: type[Exception] = typer.BadParameter.__bases__[0]  # Click's, or that of the copy which newer Typers bring along


class Group(TyperGroup):
    """The commands; what was typed is quoted in part where it is long."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with _short():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        with _short():
            return super().invoke(ctx)


@contextmanager
def _short() -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        error.message = brief_name(str(getattr(error, "message", "")), 300)  # pyright: ignore[reportAttributeAccessIssue]
        raise
