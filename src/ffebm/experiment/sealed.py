"""Tensors and notes in one file that tells whether a bit of it has changed: safetensors with a checksum over all it holds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

__all__ = ["SealError", "UnsealedError", "digest", "seal", "unseal"]
__dir__ = __all__.copy

SEAL = "sha256"


class SealError(ValueError):
    """A file that is damaged, or none of ours."""


class UnsealedError(SealError):
    """Tensors as safetensors alone writes them, which nothing tells to be sound."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__("it has no checksum")
        self.tensors = tensors


def seal(tensors: Mapping[str, Tensor], notes: Mapping[str, str] | None = None) -> bytes:
    """The content of a file that holds these; reading it back runs no code."""
    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    texts = dict(notes or {})
    return save(kept, {**texts, SEAL: digest(kept, texts)})


def unseal(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """What `seal` was given, or a `SealError`."""
    if not path.is_file():
        raise SealError("it is not a file")
    try:
        with safe_open(path, "pt") as file:
            found = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dictionary
    except (SafetensorError, OSError, RuntimeError, ValueError, TypeError, LookupError) as error:
        raise SealError(str(error).splitlines()[0] if str(error) else type(error).__name__) from None
    if found is None:
        raise UnsealedError(tensors)
    notes = dict(found)
    if notes.pop(SEAL, "") != digest(tensors, notes):
        raise SealError("its checksum is wrong")
    return tensors, notes


def digest(tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> str:
    """The checksum of all that there is: the same for the same tensors in another file."""
    found = hashlib.sha256(json.dumps(notes, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        found.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        found.update(memoryview(tensor.reshape(-1).view(torch.uint8).numpy()))  # pyright: ignore[reportArgumentType]
    return found.hexdigest()
