"""What a device has answered, in a file: to learn from it again where there is no device."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, final

import torch
from torch import Tensor

from ffebm.checks import brief_name, check_type
from ffebm.hardware.physical.driver import Currents, Driver
from ffebm.hardware.physical.messages import Message, MessageError, plain_bytes, receive, send
from ffebm.state import State

__all__ = ["Recorder", "Replay", "ReplayError"]
__dir__ = __all__.copy

FORMAT = "readings of a device, version 1"
MOST = 1 << 30  # bytes of one reading
FIRST = hashlib.sha256(FORMAT.encode()).hexdigest()


class _Questions(Driver):
    """What is asked, as a fingerprint: programs, inputs and nudges."""

    _program: str = ""
    _x: Tensor = torch.empty(0)
    _currents: Currents = ()

    def program(self, parameters: Mapping[str, Tensor]) -> None:
        self._program = _fingerprint(*(part for name in sorted(parameters) for part in (name, parameters[name])))

    def set_input(self, x: Tensor) -> None:
        self._x = x

    def apply_nudge(self, currents: Currents) -> None:
        self._currents = currents

    @property
    def _question(self) -> str:
        return _fingerprint(self._program, self._x, *("none" if current is None else current for current in self._currents))


@final
class Recorder(_Questions):
    """Another driver, whose readings are kept in a file as they come: `Replay` answers from it, bit for bit.

    Args:
        driver: that works the device.
        path: a new file. Each reading is there whole once it has been returned, whatever happens next.
    """

    def __init__(self, driver: Driver, path: str | Path) -> None:
        check_type("driver", driver, Driver, "NgspiceDriver(energy)")
        self.driver = driver
        self.path = Path(path)
        self.rows = driver.rows
        try:
            self._file: IO[bytes] = open(self.path, "xb")  # noqa: SIM115 - it is open as long as the device is
        except FileExistsError:
            raise FileExistsError(
                f"{self.path} is there already, and a recording never replaces one: name another file."
            ) from None
        self._seal = FIRST
        send(self._file, {"format": FORMAT, "rows": self.rows})

    def program(self, parameters: Mapping[str, Tensor]) -> None:
        super().program(parameters)
        self.driver.program(parameters)

    def set_input(self, x: Tensor) -> None:
        super().set_input(x)
        self.driver.set_input(x)

    def apply_nudge(self, currents: Currents) -> None:
        super().apply_nudge(currents)
        self.driver.apply_nudge(currents)

    def settle(self) -> None:
        self.driver.settle()

    def read(self) -> State:
        state = self.driver.read()
        question = self._question
        self._seal = _fingerprint(self._seal, question, *state)
        send(self._file, {"question": question, "seal": self._seal}, {f"{layer:06d}": s for layer, s in enumerate(state)})
        return state

    def reset(self) -> None:
        self.driver.reset()

    def close(self) -> None:
        self._file.close()
        self.driver.close()

    def __repr__(self) -> str:
        return f"Recorder({self.driver!r}, {brief_name(str(self.path))!r})"


@final
class Replay(_Questions):
    """A device that is no more: it answers what another one has answered, where it is asked the same in the same order.

    Args:
        path: a recording. All of it is checked before anything is used.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.length = sum(1 for _ in _records(self.path)) - 1
        self._records = _records(self.path)
        self.rows = next(self._records).words["rows"]
        self._answered = 0
        self._state: State = ()

    def settle(self) -> None:
        record = next(self._records, None)
        if record is None:
            raise ReplayError(
                f"{self.path} ends after {self._answered} readings, and another one is asked for: record for longer, or stop."
            )
        self._answered += 1
        if record.words["question"] != self._question:
            raise ReplayError(
                f"Reading {self._answered} of {self.path} answers another question: parameters, inputs, nudges, or how many go "
                "together are not those of the recorded session, to the last bit. Use the same seed, batches and time-outs; "
                "another processor or another torch may round otherwise."
            )
        self._state = tuple(record.tensors[name] for name in sorted(record.tensors))

    def read(self) -> State:
        return self._state

    def __repr__(self) -> str:
        return f"Replay({brief_name(str(self.path))!r})"


class ReplayError(ValueError):
    """A recording that is damaged, at its end, or of something else."""


def _records(path: Path) -> Iterator[Message]:
    """The head of a file, and its readings, each checked with all before it."""
    with _opened(path) as file:
        seal, number = FIRST, 0
        try:
            head = receive(file, 0)
            if head is None or head.words.get("format") != FORMAT:
                raise MessageError(f"it does not begin as {FORMAT} do")
            rows = head.words.get("rows", 0)
            if rows is not None and (type(rows) is not int or rows < 1):
                raise MessageError("it says nothing of how many samples its device took at once")
            yield head
            while (record := receive(file, MOST)) is not None:
                number += 1
                question = record.words.get("question")
                seal = _fingerprint(seal, str(question), *(record.tensors[name] for name in sorted(record.tensors)))
                if record.words.get("seal") != seal:
                    raise MessageError("its checksum is wrong")
                yield record
        except MessageError as error:
            where = f" after {number} readings" if number else ""
            raise ReplayError(f"{path} is no sound recording{where}: {error}.") from None


def _opened(path: Path) -> IO[bytes]:
    """A file: neither a pipe nor a device can keep the reader waiting."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ReplayError(f"{path} is no sound recording: it is a folder, a pipe or a device.")
    return os.fdopen(descriptor, "rb")


def _fingerprint(*parts: str | Tensor) -> str:
    found = hashlib.sha256()
    for part in parts:
        words = part if isinstance(part, str) else f"{part.dtype} {tuple(part.shape)}"
        found.update(f"{len(words)} {words}".encode())
        if not isinstance(part, str):
            found.update(plain_bytes(part))
    return found.hexdigest()
