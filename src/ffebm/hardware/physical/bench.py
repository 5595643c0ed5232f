"""The bench that a device works on: programmed when it has to be, asked within a time, reset and asked again when it fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from ffebm.checks import brief
from ffebm.errors import DeviceError, DeviceTimeoutError, block_name
from ffebm.hardware.physical.driver import Currents, Driver
from ffebm.state import State

__all__ = ["Bench", "within"]
__dir__ = __all__.copy

T = TypeVar("T")


class Bench:
    """A driver, and what its device was programmed with last."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._programmed: dict[str, Tensor] | None = None

    @property
    def driver(self) -> Driver:
        return self._driver

    @driver.setter
    def driver(self, driver: Driver) -> None:
        self._driver, self._programmed = driver, None

    def ask(
        self,
        parameters: Mapping[str, Tensor],
        rows: Tensor,
        currents: Currents,
        shapes: Sequence[tuple[int, ...]],
        timeout: float,
        retries: int,
    ) -> State:
        """Every layer of all rows, in double precision, on the processor."""
        size = self.driver.rows or len(rows)
        pieces = []
        for begin in range(0, len(rows), size):
            part = slice(begin, begin + size)
            pushed = [None if current is None else current[part].cpu() for current in currents]
            pieces.append(self._insist(parameters, rows[part].cpu(), pushed, shapes, timeout, retries))
        return tuple(torch.cat(layer) for layer in zip(*pieces, strict=True))

    def _insist(
        self,
        parameters: Mapping[str, Tensor],
        x: Tensor,
        currents: Currents,
        shapes: Sequence[tuple[int, ...]],
        timeout: float,
        retries: int,
    ) -> State:
        failure: Exception | None = None
        for _ in range(1 + retries):
            known, self._programmed = self._programmed, None
            try:
                state, programmed = within(timeout, lambda known=known: self._once(known, parameters, x, currents))
                checked = _checked(state, len(x), shapes)
                self._programmed = programmed
                return checked
            except (DeviceError, OSError, EOFError) as error:
                failure = error
            finally:
                if self._programmed is None:  # also where somebody has stopped the program
                    self.driver.reset()
        times = "once" if retries == 0 else f"{1 + retries} times in a row"
        kind = DeviceTimeoutError if isinstance(failure, DeviceTimeoutError) else DeviceError
        raise kind(
            f"The device of {block_name()}, {self.driver!r}, failed {times}: {_last_words(failure)} Parameters and the state "
            "of the optimiser are as they were before this step. Mend the device or give another driver, "
            "`block.system.driver = ...`; then `optimiser.zero_grad()`, and make the step again."
        ) from failure

    def _once(
        self, known: dict[str, Tensor] | None, parameters: Mapping[str, Tensor], x: Tensor, currents: Currents
    ) -> tuple[State, dict[str, Tensor]]:
        """What is read, and what the device is programmed with by then. Whoever comes too late changes nothing here."""
        if known is None or not _equal(known, parameters):
            known = {name: tensor.detach().cpu().clone() for name, tensor in parameters.items()}
            self.driver.program(known)
        self.driver.set_input(x)
        self.driver.apply_nudge(currents)
        self.driver.settle()
        return self.driver.read(), known


def _equal(known: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> bool:
    return known.keys() == parameters.keys() and all(
        torch.equal(known[name], tensor.cpu()) for name, tensor in parameters.items()
    )


def within(seconds: float, work: Callable[[], T]) -> T:
    """What `work` returns, if it does so in time; else a `DeviceTimeoutError`, while it is left to itself."""
    found: list[T] = []
    failed: list[BaseException] = []
    threads = torch.get_num_threads()

    def run() -> None:
        torch.set_num_threads(threads)  # else each new thread takes all processors
        try:
            found.append(work())
        except BaseException as error:  # is raised below, in the thread that asked
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True, name="ffebm device")
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not found:
        raise DeviceTimeoutError(f"it has not answered within {seconds:g} s.")
    return found[0]


def _checked(state: State, rows: int, shapes: Sequence[tuple[int, ...]]) -> State:
    """Readings of the right shape, all finite."""
    got = [tuple(s.shape) for s in state]
    if got != [(rows, *shape) for shape in shapes]:
        expected = [(rows, *shape) for shape in shapes]
        raise DeviceError(f"it reads layers of shapes {brief(got)}, and should read {brief(expected)}.")
    for number, s in enumerate(state, 1):
        if not bool(s.isfinite().all()):
            raise DeviceError(f"layer {number} reads as {int((~s.isfinite()).sum())} numbers that are not finite.")
    return tuple(s.double() for s in state)


def _last_words(failure: Exception | None) -> str:
    words = str(failure).strip() or type(failure).__name__
    return words if words.endswith((".", "!", "?")) else f"{words}."
