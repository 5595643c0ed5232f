"""Reading pickles that may come from anywhere, without running what is in them."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from ffebm.experiment.data.dataset import DataError


def _latin1(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes into a protocol 2 pickle; a stand-in for `codecs.encode`, which knows more than it should."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it holds text in the encoding {encoding!r}")
    return text.encode(encoding)


# All that the official CIFAR and ImageNet32 files refer to, under the names of old and new numpy. Nothing here runs code.
_ALLOWED: dict[tuple[str, str], Any] = {
    ("_codecs", "encode"): _latin1,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
}

# What the unpickler raises on damaged input, besides its own error.
_UNREADABLE = (
    pickle.UnpicklingError,
    AttributeError,
    EOFError,
    IndexError,
    KeyError,
    MemoryError,
    OverflowError,
    TypeError,
    ValueError,
)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which no data file needs") from None


def read_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in a pickle of numbers, texts and numpy arrays; anything else is refused before it is made."""
    try:
        content = _Unpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except FileNotFoundError:
        raise DataError(f"{path} is missing. `ffebm data fetch` brings the official files.") from None
    except _UNREADABLE as error:
        raise DataError(
            f"{path} is not a readable data file ({str(error).rstrip('.')}) and was not executed. Remove it, fetch it again."
        ) from None
    if not isinstance(content, dict):
        raise DataError(f"{path} holds {type(content).__name__} where a dictionary was expected. Remove it and fetch it again.")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in content.items()}
