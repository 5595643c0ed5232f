"""Drivers: what a device is asked for, be it a chip, a simulator or another process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Self, TypeAlias

from torch import Tensor

from ffebm.state import State

__all__ = ["Currents", "Driver"]
__dir__ = __all__.copy

Currents: TypeAlias = Sequence[Tensor | None]  # into the units of every layer, (rows, units); None where there are none


class Driver(ABC):
    """A device that settles, as `Physical` works it: programmed now and then, and asked for some rows at a time.

    A row is one sample in one phase. For every group of rows the order is `set_input`, `apply_nudge`, `settle`, `read`.
    Numbers are those of the energy that describes the device, in double precision; a driver knows how many volts or steps of a
    converter they are. Whatever goes wrong is a `DeviceError` or an `OSError`; then comes `reset`, and all is asked again.
    """

    rows: int | None = 1  # how many it takes at once; None is any number

    @abstractmethod
    def program(self, parameters: Mapping[str, Tensor]) -> None:
        """Take over the parameters, by their names in the energy that describes the device."""

    @abstractmethod
    def set_input(self, x: Tensor) -> None:
        """The input, (rows, ...)."""

    @abstractmethod
    def apply_nudge(self, currents: Currents) -> None:
        """Constant currents into the units of every layer, each (rows, ...), or None: −β δ, where an error δ enters."""

    @abstractmethod
    def settle(self) -> None:
        """Wait until nothing moves any more."""

    @abstractmethod
    def read(self) -> State:
        """Every layer as it is now, (rows, ...)."""

    def reset(self) -> None:
        """Begin anew after a failure: stop whatever is under way, so that it can be programmed again.

        It is called from another thread than the one that may still be waiting for an answer.
        """
        return

    def close(self) -> None:
        """Let go of the device for good."""
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __deepcopy__(self, memo: Any) -> Self:
        """Itself: copies of a model share the one device."""
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"A {type(self).__name__} cannot be pickled: it holds on to a device. Save `state_dict()`, and give another "
            "process a driver of its own."
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
