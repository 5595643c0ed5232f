"""Reading the pickles of data sets without running them: a small interpreter of the few things that they say.

Python's own unpickler calls whatever a file names. Restricting the names does not help: `numpy.ndarray`, called by the file,
makes objects out of the file's bytes. Here nothing is called. The names that numpy writes are mere signs. An array is made by
this module, and only of numbers that lie in the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from ffebm.checks import brief_name
from ffebm.experiment.errors import DataError
from ffebm.experiment.files import read_regular

__all__ = ["Array", "Interpreter", "Kind", "MalformedError", "Scalar", "Sign", "read_pickle"]
__dir__ = __all__.copy

LARGEST = 1 << 30  # bytes of a file; the largest official one, a batch of ImageNet32, has 394 million
INSTRUCTIONS = 2_000_000  # of a file; CIFAR-100's training images take 200,000
TEXT = 4096  # bytes; what is longer can only be the content of an array: bytes stay where they are in the file
LATIN1 = 0xC3  # the largest first byte, in UTF-8, of the letters that latin1 has
KEYS, NAME, TUPLE, DIMENSIONS = 64, 256, 8, 4  # in the dictionary, letters of a name, items of a tuple, of an array
KINDS = ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f4", "f8")  # what arrays may hold: numbers, never objects


class MalformedError(ValueError):
    """A pickle that says something else than data files do."""


class Sign(Enum):
    """What a file may refer to, by the names of old and new numpy."""

    ARRAY = ("numpy", "ndarray")
    DTYPE = ("numpy", "dtype")
    OLD_RECONSTRUCT = ("numpy.core.multiarray", "_reconstruct")
    RECONSTRUCT = ("numpy._core.multiarray", "_reconstruct")
    ENCODE = ("_codecs", "encode")  # how Python 3 writes bytes into protocol 2


@dataclass
class Kind:
    """The type of an array's numbers, on its way."""

    name: str
    order: str = "|"


@dataclass
class Array:
    """An array on its way: announced first, filled later."""

    value: np.ndarray | None = None


MARK = object()
Scalar = int | str | bytes | None  # bool is an int


class Interpreter:
    """A stack and a memo, as every unpickler has; lists hold scalars, the one dictionary holds scalars, lists and arrays.

    So nothing nests, and nothing that is referred to twice can multiply.
    """

    def __init__(self, content: bytes) -> None:
        self.content = memoryview(content)
        self.position = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.encoded = 0  # letters that were made into bytes

    def run(self) -> dict[str, Any]:
        for _ in range(INSTRUCTIONS):
            code = self.take(1)[0]
            if code == ord("."):
                return self.result()
            instruction = CODES.get(code)
            if instruction is None:
                raise MalformedError(f"instruction {code:#04x} at byte {self.position - 1} is none that data files use")
            instruction(self)
        raise MalformedError(f"it has more than {INSTRUCTIONS:,} instructions")

    def result(self) -> dict[str, Any]:
        found = self.pop()
        if self.stack or self.position != len(self.content):
            raise MalformedError("something is left over at its end")
        if not isinstance(found, dict):
            raise MalformedError(f"it holds {type(found).__name__} where a dictionary was expected")
        if any(isinstance(value, Array) and value.value is None for value in found.values()):
            raise MalformedError("an array is announced and never filled")
        return {key: value.value if isinstance(value, Array) else value for key, value in found.items()}

    # Bytes of the file

    def take(self, count: int) -> memoryview:
        if count > len(self.content) - self.position:
            raise MalformedError(f"it ends in the middle, at byte {len(self.content)}")
        self.position += count
        return self.content[self.position - count : self.position]

    def number(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self.take(size), "little", signed=signed)

    def bytes_of(self, count: int) -> bytes | memoryview:
        found = self.take(count)
        return bytes(found) if count <= TEXT else found

    def line(self) -> str:
        window = bytes(self.content[self.position : self.position + NAME])
        end = window.find(b"\n")
        if end < 0:
            raise MalformedError(f"a name at byte {self.position} has no end")
        self.position += end + 1
        return window[:end].decode("latin1")

    # Objects on the stack

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        if not self.stack or self.stack[-1] is MARK:
            raise MalformedError(f"byte {self.position} takes from an empty stack")
        return self.stack.pop()

    def top(self, kind: type) -> Any:
        if not self.stack or not isinstance(self.stack[-1], kind):
            raise MalformedError(f"byte {self.position} needs a {kind.__name__} that is not there")
        return self.stack[-1]

    def since_mark(self) -> list[Any]:
        for start in range(len(self.stack) - 1, -1, -1):
            if self.stack[start] is MARK:
                found = self.stack[start + 1 :]
                del self.stack[start:]
                return found
        raise MalformedError(f"byte {self.position} looks for a mark that is not there")

    def remember(self, index: int) -> None:
        if index > INSTRUCTIONS or not self.stack or self.stack[-1] is MARK:
            raise MalformedError(f"byte {self.position} remembers what it cannot")
        self.memo[index] = self.stack[-1]

    def recall(self, index: int) -> None:
        if index not in self.memo:
            raise MalformedError(f"byte {self.position} recalls what was never said")
        self.push(self.memo[index])

    # What is made of them

    def tuple_of(self, items: list[Any]) -> None:
        nested = any(isinstance(part, tuple) for item in items if isinstance(item, tuple) for part in item)
        if len(items) > TUPLE or nested or any(isinstance(item, list | dict) for item in items):
            raise MalformedError(f"byte {self.position} nests what data files keep flat")
        self.push(tuple(items))

    def append(self, items: list[Any]) -> None:
        self.top(list).extend(_scalar(item) for item in items)

    def set_items(self, items: list[Any]) -> None:
        if len(items) % 2:
            raise MalformedError(f"byte {self.position} has a key without a value")
        table = self.top(dict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            name = _text(key)
            if len(name) > NAME or len(table) >= KEYS:
                raise MalformedError(f"byte {self.position} has too many or too long keys")
            table[name] = value if isinstance(value, list | Array) else _scalar(value)

    def refer(self, module: str, name: str) -> None:
        try:
            self.push(Sign((module, name)))
        except ValueError:
            raise MalformedError(f"it refers to {brief_name(f'{module}.{name}')}, which no data file needs") from None

    def reduce(self) -> None:
        arguments, sign = self.pop(), self.pop()
        match sign, arguments:
            case Sign.OLD_RECONSTRUCT | Sign.RECONSTRUCT, (Sign.ARRAY, (0,), (str() | bytes())):
                self.push(Array())
            case Sign.DTYPE, ((str() | bytes()) as name, int(), int()) if _text(name) in KINDS:
                self.push(Kind(_text(name)))
            case Sign.ENCODE, (str() as text, "latin1"):
                self.push(self.encode(text))
            case _:
                raise MalformedError(f"byte {self.position} makes something that is neither bytes nor an array of numbers")

    def encode(self, text: str) -> bytes:
        self.encoded += len(text)
        if self.encoded > len(self.content):
            raise MalformedError("it makes the same text into bytes again and again")
        try:
            return text.encode("latin1")
        except UnicodeEncodeError:
            raise MalformedError("it holds text in another encoding than latin1") from None

    def build(self) -> None:
        state = self.pop()
        target = self.top(object)
        match target, state:
            case Kind(), (3, (str() | bytes()) as order, None, None, None, -1, -1, 0) if _text(order) in ("|", "<", ">"):
                target.order = _text(order)
            case Array(value=None), (1, tuple() as shape, Kind() as kind, fortran, (bytes() | memoryview()) as data):
                if fortran:
                    raise MalformedError("an array is stored by columns")
                target.value = _array(shape, kind, data)
            case _:
                raise MalformedError(f"byte {self.position} fills something that is no array of numbers")


def _array(shape: tuple[Any, ...], kind: Kind, data: bytes | memoryview) -> np.ndarray:
    """A view of the file's own bytes: as large as they are, whatever the file announces."""
    if len(shape) > DIMENSIONS or not all(type(size) is int and size >= 0 for size in shape):
        raise MalformedError("the shape of an array is not valid")
    dtype = np.dtype(f"{kind.order}{kind.name}")
    if math.prod(shape) * dtype.itemsize != len(data):
        raise MalformedError(f"an array announces {math.prod(shape) * dtype.itemsize} bytes and holds {len(data)}")
    return np.frombuffer(data, dtype).reshape(shape)


def _scalar(value: Any) -> Scalar:
    if value is None or isinstance(value, int | str | bytes):
        return value
    raise MalformedError(f"{type(value).__name__} stands where a number or a text was expected")


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("latin1")
    if isinstance(value, str):
        return value
    raise MalformedError(f"{type(value).__name__} stands where a name was expected")


def _unicode(data: memoryview) -> str:
    if len(data) > TEXT and np.frombuffer(data, np.uint8).max() > LATIN1:  # else each letter would take four bytes
        raise MalformedError("it holds a long text in another encoding than latin1")
    try:
        return str(data, "utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise MalformedError("it holds text that is not UTF-8") from None


def _long(machine: Interpreter) -> None:
    size = machine.number(1)
    if size > 8:
        raise MalformedError(f"a number of {size} bytes")
    machine.push(machine.number(size, signed=True))


def _protocol(machine: Interpreter) -> None:
    protocol = machine.number(1)
    if not 2 <= protocol <= 4:
        raise MalformedError(f"it is written in protocol {protocol}; 2, 3 and 4 are read")


CODES: dict[int, Callable[[Interpreter], object]] = {
    # The frame of it
    0x80: _protocol,
    0x95: lambda m: m.take(8),  # FRAME: how much comes, which the end of the file says as well
    ord("("): lambda m: m.push(MARK),
    # Scalars
    ord("N"): lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    ord("K"): lambda m: m.push(m.number(1)),
    ord("M"): lambda m: m.push(m.number(2)),
    ord("J"): lambda m: m.push(m.number(4, signed=True)),
    0x8A: _long,
    ord("U"): lambda m: m.push(m.bytes_of(m.number(1))),  # the texts of Python 2 are bytes
    ord("T"): lambda m: m.push(m.bytes_of(m.number(4))),
    ord("C"): lambda m: m.push(m.bytes_of(m.number(1))),
    ord("B"): lambda m: m.push(m.bytes_of(m.number(4))),
    0x8E: lambda m: m.push(m.bytes_of(m.number(8))),
    0x8C: lambda m: m.push(_unicode(m.take(m.number(1)))),
    ord("X"): lambda m: m.push(_unicode(m.take(m.number(4)))),
    0x8D: lambda m: m.push(_unicode(m.take(m.number(8)))),
    # Tuples, lists, the dictionary
    ord(")"): lambda m: m.push(()),
    0x85: lambda m: m.tuple_of([m.pop()]),
    0x86: lambda m: m.tuple_of([m.pop(), m.pop()][::-1]),
    0x87: lambda m: m.tuple_of([m.pop(), m.pop(), m.pop()][::-1]),
    ord("t"): lambda m: m.tuple_of(m.since_mark()),
    ord("]"): lambda m: m.push([]),
    ord("a"): lambda m: m.append([m.pop()]),
    ord("e"): lambda m: m.append(m.since_mark()),
    ord("}"): lambda m: m.push({}),
    ord("s"): lambda m: m.set_items([m.pop(), m.pop()][::-1]),
    ord("u"): lambda m: m.set_items(m.since_mark()),
    # The memo
    ord("q"): lambda m: m.remember(m.number(1)),
    ord("r"): lambda m: m.remember(m.number(4)),
    0x94: lambda m: m.remember(len(m.memo)),
    ord("h"): lambda m: m.recall(m.number(1)),
    ord("j"): lambda m: m.recall(m.number(4)),
    # Signs, and what is made by them
    ord("c"): lambda m: m.refer(m.line(), m.line()),
    0x93: lambda m: m.refer(*[_text(m.pop()), _text(m.pop())][::-1]),
    ord("R"): Interpreter.reduce,
    ord("b"): Interpreter.build,
}


def read_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in a pickle of numbers, texts and arrays of numbers; anything else is refused before it is made."""
    try:
        return Interpreter(read_regular(path, LARGEST)).run()
    except FileNotFoundError:
        raise DataError(f"{path} is missing. `ffebm data fetch` brings the official files.") from None
    except (ValueError, OSError) as error:  # malformed, too large, or no file
        raise DataError(
            f"{path} is not a readable data file ({str(error).rstrip('.')}) and was not executed. Remove it, fetch it again."
        ) from None
