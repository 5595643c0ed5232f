"""Errors that a caller may want to catch by type."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = [
    "DeviceError",
    "DeviceTimeoutError",
    "DivergenceError",
    "UnsettledError",
    "UnsettledWarning",
    "block_name",
    "naming",
    "needs_tool",
]
__dir__ = __all__.copy

_BLOCK = ContextVar("block", default="the block")


def block_name() -> str:
    """How errors name the block that is at work: a block knows its name, and what works for it need not."""
    return _BLOCK.get()


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Have errors name this block for a while."""
    token = _BLOCK.set(name)
    try:
        yield
    finally:
        _BLOCK.reset(token)


class DivergenceError(RuntimeError):
    """A relaxation left the finite numbers, or ran away from its starting scale."""

    def __init__(self, block: str, sweep: int, residual: float, advice: str) -> None:
        super().__init__(f"The relaxation of {block} diverged: residual {residual:.3g} at sweep {sweep}. {advice}")
        self.block = block
        self.sweep = sweep
        self.residual = residual
        self.advice = advice

    def __reduce__(self) -> tuple[type, tuple[str, int, float, str]]:
        # The default would call __init__ with the message alone; worker processes pickle their errors.
        return type(self), (self.block, self.sweep, self.residual, self.advice)


class DeviceError(RuntimeError):
    """A device that stands in for a block failed, or answered nonsense."""


class DeviceTimeoutError(DeviceError):
    """A device took longer than it was given."""


class UnsettledError(RuntimeError):
    """An equilibrium was needed, and the relaxation found none."""


class UnsettledWarning(UserWarning):
    """A block's gradient is that of an equilibrium, and its relaxation ended far from one."""


def needs_tool(what: str, error: ModuleNotFoundError) -> str:
    """What to say where only the library is installed."""
    tool = "pip install 'ffebm[cli]'"
    return f"{what} needs {error.name}, and only the library is installed, which needs torch alone. For the rest: {tool}"
