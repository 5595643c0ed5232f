"""Checkpoints as files: nested numbers, texts and tensors, written down as JSON beside the tensors. Nothing in them can run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ffebm.experiment.sealed import SealError, seal, unseal

__all__ = ["STRUCTURE", "SUFFIX", "packed", "unpacked"]
__dir__ = __all__.copy

STRUCTURE = "structure"
SUFFIX = ".safetensors"
LARGEST = 1 << 23  # bytes of the structure: twenty thousand epochs are less


def packed(content: dict[str, Any]) -> bytes:
    """The content of a file that `unpacked` reads: dictionaries, lists, tuples, texts, numbers and dense tensors."""
    tensors: dict[str, Tensor] = {}
    structure = json.dumps(_written(content, tensors))
    return seal(_apart(tensors), {STRUCTURE: structure})


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies of those whose numbers lie where another's do, which a file cannot say: callbacks keep a score twice."""
    places: set[int] = set()
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        found[name] = tensor.clone() if place in places else tensor
        places.add(place)
    return found


def unpacked(path: Path) -> dict[str, Any]:
    """What a checkpoint file holds, or a `SealError`."""
    tensors, notes = unseal(path)
    if len(notes.get(STRUCTURE, "")) > LARGEST:
        raise SealError(f"its structure is larger than {LARGEST:,} bytes")
    try:
        content = _read(json.loads(notes[STRUCTURE]), tensors)
    except (ValueError, LookupError, TypeError, RuntimeError, RecursionError) as error:
        raise SealError(f"its structure cannot be read: {type(error).__name__}") from None
    if not isinstance(content, dict):
        raise SealError("it holds no dictionary")
    return content


# JSON knows texts as keys, and no tuples or tensors: those are objects with one key that starts with "!".


def _written(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        # Weights with their channels last stay so: sums in another order would end in other bits.
        order = sorted(range(value.dim()), key=lambda d: -value.stride(d))
        tensors[str(len(tensors))] = value.permute(order)
        return {"!tensor": [str(len(tensors) - 1), order]}
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("!") for key in value):
            return {key: _written(item, tensors) for key, item in value.items()}
        return {"!dict": [[_written(key, tensors), _written(item, tensors)] for key, item in value.items()]}
    if isinstance(value, tuple):
        return {"!tuple": [_written(item, tensors) for item in value]}
    if isinstance(value, list):
        return [_written(item, tensors) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"A checkpoint holds numbers, texts and tensors, got {type(value).__name__}.")


def _read(value: Any, tensors: dict[str, Tensor]) -> Any:
    match value:
        case {"!tensor": [name, order]}:
            return tensors[name].permute(torch.tensor(order, dtype=torch.long).argsort().tolist())
        case {"!dict": pairs}:
            return {_read(key, tensors): _read(item, tensors) for key, item in pairs}
        case {"!tuple": items}:
            return tuple(_read(item, tensors) for item in items)
        case dict():
            return {key: _read(item, tensors) for key, item in value.items()}
        case list():
            return [_read(item, tensors) for item in value]
        case _:
            return value
