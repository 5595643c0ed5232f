"""While a model is exported or traced: only tensor operations, as many for every input."""

from __future__ import annotations

import torch

__all__ = ["exporting", "refuse_training"]
__dir__ = __all__.copy


def exporting() -> bool:
    """Whether somebody keeps the operations of this pass, to repeat them without Python."""
    return torch.compiler.is_exporting() or torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]


def refuse_training(what: str, training: bool) -> None:
    """What is kept is inference: nothing that it computes has the derivative of an equilibrium."""
    if training:
        raise RuntimeError(
            f"{what} cannot be traced (by `torch.jit.trace` or `torch.onnx.export`) or exported while it is in training mode: "
            "call `model.eval()` first. What is kept makes a fixed number of sweeps, and has no gradient of an equilibrium."
        )
