"""Refusals of bad arguments, at construction: what, got, why, what to do instead."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"Unknown {name} {value!r}; choose one of {', '.join(map(repr, choices))}.")


def check_type(name: str, value: object, kind: type, example: str) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"`{name}` must be a {kind.__name__} such as {example}, got {value!r}.")


def check_size(name: str, size: int, least: int = 1) -> None:
    if isinstance(size, bool) or not isinstance(size, int) or size < least:
        raise ValueError(f"`{name}` must be a whole number of at least {least}, got {size!r}: it is a count.")


def check_samples_stay_apart(what: str, module: nn.Module, instead: str) -> None:
    """Refuse batch-norm and dropout in a part that runs at every sweep."""
    for name, part in module.named_modules():
        if isinstance(part, _BatchNorm | _DropoutNd):
            raise ValueError(
                f"{what} holds {type(part).__name__} ({name or 'itself'}), and runs at every sweep: samples would interact, "
                f"or the energy change under way. {instead}"
            )
