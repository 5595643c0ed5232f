"""All commands together: what goes for each, and how mistakes are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from ffebm.checks import brief_name
from ffebm.experiment.parts import trust

__all__ = ["Group", "UsageError"]
__dir__ = __all__.copy

TRUST = "--trust"

UsageError: type[Exception] = typer.BadParameter.__bases__[0]  # Click's, or that of the copy which newer Typers bring along


class Group(TyperGroup):
    """The commands; what was typed is quoted in part where it is long."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """--trust may stand anywhere: it is of the whole command, and settings are read in many places."""
        trust(TRUST in args)
        ctx.call_on_close(lambda: trust(None))
        return super().parse_args(ctx, [argument for argument in args if argument != TRUST])

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
