"""The bridge from a plain derivative to autograd."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ffebm.derivative import Gradients
from ffebm.errors import block_name, naming
from ffebm.relaxation import Relaxed
from ffebm.state import Deltas, State
from ffebm.twin import holdings, twin

__all__ = ["Gradient", "differentiable", "full_precision"]
__dir__ = __all__.copy

M = TypeVar("M", bound=nn.Module)
Gradient = Callable[[M, Tensor, State, Deltas], Gradients]  # of a module like the one given, at an input and a state


def differentiable(module: M, x: Tensor, settle: Callable[[Tensor], Relaxed], gradient: Gradient[M]) -> Relaxed:
    """Where `x` settles, as a function of `x` and of the parameters of `module`, with this for its derivative."""
    names, tensors = holdings(module)
    *state, residual, sweeps = _Equilibrium.apply(module, settle, gradient, names, x, *tensors)  # pyright: ignore[reportGeneralTypeIssues]
    return Relaxed(tuple(state), residual, sweeps)


class _Equilibrium(torch.autograd.Function):
    """Settles in the forward pass, and asks for the gradient in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, module: Any, settle: Any, gradient: Any, names: Any, x: Tensor, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        state, residual, sweeps = settle(x.detach())
        ctx.module, ctx.gradient, ctx.names, ctx.layers, ctx.block = module, gradient, names, len(state), block_name()
        ctx.save_for_backward(x, *state, *tensors)
        ctx.mark_non_differentiable(residual, sweeps)
        ctx.set_materialize_grads(False)
        return (*state, residual, sweeps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "Second derivatives through an analog block are not available (got `create_graph=True`): its gradient comes "
                "from a relaxation that is not recorded. Use `Unrolled` or `BackpropThroughTime` in every block for that."
            )
        x, *rest = ctx.saved_tensors
        state, tensors = tuple(s.detach() for s in rest[: ctx.layers]), rest[ctx.layers :]
        deltas = grads[: ctx.layers]
        if all(delta is None for delta in deltas):
            return (None,) * len(ctx.needs_input_grad)
        with full_precision(x), naming(ctx.block):
            module = twin(ctx.module, ctx.names, tensors, ctx.needs_input_grad[5:])
            gradients = ctx.gradient(module, x.detach(), state, deltas)
        return (None, None, None, None, gradients.x, *(gradients.parameters.get(aliases[0]) for aliases in ctx.names))


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """Leave autocast: equilibrium propagation contrasts two nearly equal states, which half precision cannot tell apart."""
    return torch.autocast(x.device.type, enabled=False)
