"""A device in another process, here or on another machine: messages through its standard input and output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, final

import torch
from torch import Tensor

from ffebm.checks import brief_name, check_type
from ffebm.errors import DeviceError
from ffebm.hardware.physical.driver import Currents, Driver
from ffebm.hardware.physical.messages import Message, MessageError, receive, send
from ffebm.state import State

__all__ = ["ProcessDriver", "serve"]
__dir__ = __all__.copy

GREETING = b"ffebm: a device is served from here on\n"
MOST_LINES = 10_000  # before it


@final
class ProcessDriver(Driver):
    """Any driver that another process works: `ProcessDriver([sys.executable, "device.py"])`, or `["ssh", "lab", ...]`.

    The process calls `serve(driver)`. It is started when it is first needed, again after a failure, and ends with this one.
    What goes between them are numbers and a few words; neither side runs anything that the other one sends.

    Args:
        command: what starts the process.
    """

    rows: int | None = None  # the other side cuts them

    def __init__(self, command: Sequence[str]) -> None:
        if isinstance(command, str) or not command:
            raise TypeError(f'`command` must be a list such as [sys.executable, "device.py"], got {command!r}.')
        self.command = [os.fspath(part) for part in command]
        self._child: _Child | None = None
        self._x = torch.empty(0)
        self._currents: Currents = ()
        self._state: State = ()

    @property
    def pid(self) -> int | None:
        """The number of the process, while there is one."""
        return None if self._child is None else self._child.process.pid

    def program(self, parameters: Mapping[str, Tensor]) -> None:
        self._ask("program", parameters)

    def set_input(self, x: Tensor) -> None:
        self._x = x

    def apply_nudge(self, currents: Currents) -> None:
        self._currents = currents

    def settle(self) -> None:
        given = {str(layer): current for layer, current in enumerate(self._currents) if current is not None}
        tensors = self._ask("settle", {"x": self._x, **given}, layers=len(self._currents)).tensors
        self._state = tuple(tensors[name] for name in sorted(tensors))

    def read(self) -> State:
        return self._state

    def reset(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()

    def close(self) -> None:
        self.reset()

    def _ask(self, what: str, tensors: Mapping[str, Tensor] | None = None, **words: Any) -> Message:
        if self._child is None:
            self._child = _Child(self.command)
            self._child.await_greeting()
        answer = self._child.ask({"do": what, **words}, tensors)
        if "error" in answer.words:
            raise DeviceError(f"it says: {brief_name(str(answer.words['error']), 300)}")
        return answer

    def __repr__(self) -> str:
        return f"ProcessDriver({brief_name(' '.join(self.command))!r})"


class _Child:
    """The other process, and what it writes besides messages; it ends with this object."""

    def __init__(self, command: Sequence[str]) -> None:
        self.said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        pipe = subprocess.PIPE
        try:
            # In a session of its own: so nothing that it has started keeps the pipes open once it is killed.
            self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self.said, start_new_session=True)
        except OSError as error:
            self.said.close()
            raise DeviceError(f"{brief_name(command[0])} cannot be started: {error.strerror}.") from error
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.asked: IO[bytes] = self.process.stdin
        self.answers: IO[bytes] = self.process.stdout
        self.end = weakref.finalize(self, _end, self.process, self.asked, self.answers, self.said)

    def await_greeting(self) -> None:
        """Pass over what the program prints before it serves."""
        for _ in range(MOST_LINES):
            line = self.answers.readline(MOST_LINES)
            if line == GREETING:
                return
            if not line:
                break
        raise DeviceError(f"it never came to `serve`{self._how_it_went()}.")

    def ask(self, words: Mapping[str, Any], tensors: Mapping[str, Tensor] | None) -> Message:
        answer: Message | None = None
        try:
            send(self.asked, words, tensors)
            answer = receive(self.answers)
        except MessageError as error:
            raise DeviceError(f"it answers by what is no message, {error}{self._how_it_went()}.") from None
        except (OSError, ValueError):  # a pipe that broke, or that a reset has closed
            pass
        if answer is None:
            raise DeviceError(f"it is gone{self._how_it_went()}.")
        return answer

    def _how_it_went(self) -> str:
        """How the process ended, if it did, and its last line."""
        try:
            code = self.process.wait(0.5)
            self.said.seek(0)
            lines = self.said.read()[-2000:].decode(errors="replace").strip().splitlines()
        except (subprocess.TimeoutExpired, ValueError):  # it still runs, or was ended by a reset
            return ""
        how = f", ended by signal {-code}" if code < 0 else f", ended with code {code}"
        return f"{how} and the words {brief_name(lines[-1], 200)!r}" if lines else how


def _end(process: subprocess.Popen[bytes], *files: IO[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for file in files:
        with suppress(OSError):  # what was not written yet goes nowhere
            file.close()


def serve(driver: Driver) -> None:
    """Work a device for a `ProcessDriver` in another process, until that one ends: the last line of a device's program.

    What the program prints meanwhile goes to its standard error.
    """
    check_type("driver", driver, Driver, "SimulatedDriver(energy)")
    sys.stdout.flush()
    asked, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with driver, asked, answers:
        answers.write(GREETING)
        answers.flush()
        while (message := receive(asked)) is not None:
            try:
                found = _done(driver, message)
            except Exception as error:  # whatever it is, the other side has to hear of it
                with suppress(Exception):
                    driver.reset()
                send(answers, {"error": f"{type(error).__name__}: {error}"})
            else:
                send(answers, {}, found)


def _done(driver: Driver, message: Message) -> dict[str, Tensor]:
    words, tensors = message
    match words.get("do"):
        case "program":
            driver.program(tensors)
            return {}
        case "settle":
            currents = [tensors.get(str(layer)) for layer in range(words["layers"])]
            return {f"{layer:06d}": s for layer, s in enumerate(_settled(driver, tensors["x"], currents))}
        case other:
            raise ValueError(f"a device does not know how to {other}")


def _settled(driver: Driver, x: Tensor, currents: Currents) -> State:
    """Every layer at rest, of any number of rows: as many at a time as the driver takes."""
    size = driver.rows or len(x)
    pieces: list[State] = []
    for begin in range(0, len(x), size):
        part = slice(begin, begin + size)
        driver.set_input(x[part])
        driver.apply_nudge([None if current is None else current[part] for current in currents])
        driver.settle()
        pieces.append(driver.read())
    return tuple(torch.cat(layer) for layer in zip(*pieces, strict=True))
