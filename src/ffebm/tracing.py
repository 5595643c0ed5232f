"""Who looks on while a model runs: exporters and tracers, who want tensor operations alone, and transforms."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake

__all__ = ["exporting", "not_compiled", "numberless", "refuse_exporting", "refuse_training", "transforming", "unseen"]
__dir__ = __all__.copy

Method = TypeVar("Method", bound=Callable[..., Any])


def exporting() -> bool:
    """Whether somebody keeps the operations of this pass, to repeat them without Python."""
    return torch.compiler.is_exporting() or torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]


def transforming() -> bool:
    """Whether a transform of `torch.func` is at work: tensors are then stand-ins, whose numbers nobody can look at."""
    return torch._C._are_functorch_transforms_active()


def numberless(x: Tensor) -> bool:
    """Whether a tensor is a shape alone, as on the meta device."""
    return x.is_meta or is_fake(x)


def unseen(x: Tensor) -> bool:
    """Whether nobody can look at the numbers of a tensor: where there are none, or under a transform."""
    return transforming() or numberless(x)


def refuse_training(what: str, training: bool) -> None:
    """What is kept is inference: nothing that it computes has the derivative of an equilibrium."""
    if training:
        raise RuntimeError(
            f"{what} cannot be traced (by `torch.jit.trace` or `torch.onnx.export`) or exported while it is in training mode: "
            "call `model.eval()` first. What is kept makes a fixed number of sweeps, and has no gradient of an equilibrium."
        )


def refuse_exporting(whose: object, method: str) -> None:
    """A derivative that autograd takes on the way is nothing that could be kept."""
    if exporting():
        name = type(whose).__name__
        raise TypeError(
            f"{name} cannot be exported or traced: its `{method}` is a derivative that autograd takes at every sweep, and a "
            f"file holds plain operations. Give {name} a `{method}` in closed form."
        )


def not_compiled(method: Method) -> Method:
    """Have `torch.compile` cut its graph here: it would unroll every sweep, or cut wherever a number is looked at."""
    disabled: Method | None = None

    @wraps(method)
    def called(*arguments: Any, **options: Any) -> Any:
        nonlocal disabled
        if disabled is None:
            if "torch._dynamo" not in sys.modules:  # nobody compiles; loading it takes as long as the rest of torch
                return method(*arguments, **options)
            disabled = cast(Method, torch.compiler.disable(method))
        return disabled(*arguments, **options)

    return cast(Method, called)
