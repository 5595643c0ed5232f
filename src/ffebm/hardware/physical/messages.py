"""Messages between processes, and records in a file: words in JSON and tensors as plain bytes. Nothing in them can run."""

from __future__ import annotations

import ctypes
import json
import math
import struct
from collections.abc import Mapping
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Message", "MessageError", "plain_bytes", "receive", "send"]
__dir__ = __all__.copy

MARK = b"ffe1"  # of the format's version
LENGTHS = struct.Struct("<4sIQ")  # mark, bytes of JSON, bytes of tensors
MOST_WORDS, MOST_TENSORS = 1 << 20, 1 << 32  # bytes
KINDS = {"float32": torch.float32, "float64": torch.float64, "int64": torch.int64, "uint8": torch.uint8, "bool": torch.bool}
NAMES = {kind: name for name, kind in KINDS.items()}


class MessageError(ValueError):
    """Bytes that are no message."""


class Message(NamedTuple):
    words: dict[str, Any]
    tensors: dict[str, Tensor]


def send(file: IO[bytes], words: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> None:
    """Write one message."""
    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in (tensors or {}).items()}
    described = [[name, NAMES[tensor.dtype], list(tensor.shape)] for name, tensor in kept.items()]
    head = json.dumps({"words": dict(words), "tensors": described}).encode()
    bodies = [plain_bytes(tensor) for tensor in kept.values()]
    file.write(LENGTHS.pack(MARK, len(head), sum(map(len, bodies))) + head)
    for body in bodies:
        file.write(body)
    file.flush()


def plain_bytes(tensor: Tensor) -> bytes:
    """The numbers of a tensor as they lie in memory, row after row."""
    tensor = tensor.detach().cpu().contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.nbytes else b""


def receive(file: IO[bytes], most: int = MOST_TENSORS) -> Message | None:
    """The next message; None where there is none any more.

    Args:
        most: bytes of tensors that are taken. Room is made for no more than a message describes, and none for more than this.
    """
    lengths = file.read(LENGTHS.size)
    if not lengths:
        return None
    if len(lengths) < LENGTHS.size or not lengths.startswith(MARK):
        raise MessageError("this is no message of a device")
    _, head_size, body_size = LENGTHS.unpack(lengths)
    if head_size > MOST_WORDS or body_size > most:
        raise MessageError(f"it announces {head_size:,} + {body_size:,} bytes, and {MOST_WORDS:,} + {most:,} are the most")
    words, described = _head(_exactly(file, head_size))
    sizes = [kind.itemsize * math.prod(shape) for _, kind, shape in described]
    if sum(sizes) != body_size:
        raise MessageError(f"its tensors have {sum(sizes):,} bytes, and {body_size:,} are announced")
    body = memoryview(_exactly(file, body_size))
    tensors: dict[str, Tensor] = {}
    for (name, kind, shape), size in zip(described, sizes, strict=True):
        tensors[name] = (
            torch.frombuffer(bytearray(body[:size]), dtype=kind).view(shape) if size else torch.empty(shape, dtype=kind)
        )
        body = body[size:]
    return Message(words, tensors)


def _exactly(file: IO[bytes], size: int) -> bytes:
    found = file.read(size)
    if len(found) < size:
        raise MessageError("it is cut off")
    return found


def _head(content: bytes) -> tuple[dict[str, Any], list[tuple[str, torch.dtype, tuple[int, ...]]]]:
    try:
        head = json.loads(content)
        words, described = head["words"], [(name, KINDS[kind], tuple(shape)) for name, kind, shape in head["tensors"]]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise MessageError("its words cannot be read") from None
    whole = all(type(size) is int and 0 <= size < 1 << 40 for _, _, shape in described for size in shape)
    named = all(isinstance(name, str) for name, _, _ in described)
    if not (isinstance(words, dict) and whole and named):
        raise MessageError("its words cannot be read")
    return words, described
