"""The bridge from a plain derivative to autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from ffebm.derivative import Gradients, asking_for_input
from ffebm.errors import block_name, naming
from ffebm.relaxation import Relaxed
from ffebm.state import Deltas, State
from ffebm.tracing import transforming
from ffebm.twin import Names, holdings, twin

__all__ = ["Gradient", "Settle", "differentiable", "full_precision"]
__dir__ = __all__.copy

M = TypeVar("M", bound=nn.Module)
Settle = Callable[[M, Tensor], Relaxed]  # of a module like the one given, at an input
Gradient = Callable[[M, Tensor, State, Deltas], Gradients]  # likewise, at an input and a state


def differentiable(module: M, x: Tensor, settle: Settle[M], gradient: Gradient[M]) -> Relaxed:
    """Where `x` settles, as a function of `x` and of the parameters of `module`, with this for its derivative."""
    names, tensors = holdings(module)
    *state, residual, sweeps = _Equilibrium.apply(module, settle, gradient, names, x, *tensors)  # pyright: ignore[reportGeneralTypeIssues]
    return Relaxed(tuple(state), residual, sweeps)


class _Equilibrium(torch.autograd.Function):
    """Settles in the forward pass, and asks for the gradient in the backward pass."""

    @staticmethod
    def forward(module: Any, settle: Any, _gradient: Any, names: Names, x: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        if any(own is not given for own, given in zip(holdings(module)[1], tensors, strict=True)):
            # A transform of `torch.func` hands over what is inside of its stand-ins.
            module = twin(module, names, tensors, [False] * len(tensors))
        state, residual, sweeps = settle(module, x.detach())
        return (*state, residual, sweeps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        module, _, gradient, names, x, *tensors = inputs
        *state, residual, sweeps = output
        ctx.module, ctx.gradient, ctx.names, ctx.layers, ctx.block = module, gradient, names, len(state), block_name()
        ctx.transformed = transforming()  # its backward pass may come later, from outside: `vjp`
        ctx.save_for_backward(x, *state, *tensors)
        ctx.mark_non_differentiable(residual, sweeps)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled() and not ctx.transformed:
            _refuse_second_derivatives("`create_graph=True`")
        deltas = grads[: ctx.layers]
        if all(delta is None for delta in deltas):
            return (None,) * len(ctx.needs_input_grad)
        of_input, *wanted = ctx.needs_input_grad[4:]
        call = (ctx.module, ctx.gradient, ctx.names, ctx.layers, of_input, wanted, ctx.block)
        respond: Any = _Response.apply if ctx.transformed else _Response.forward
        of_x, *found = respond(*call, *ctx.saved_tensors, *deltas)
        rest = iter(found)
        return (None, None, None, None, of_x, *(next(rest) if want else None for want in wanted))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, ...]:  # noqa: ARG004
        raise RuntimeError(
            "Forward-mode derivatives through an analog block are not available (`jvp`, `jacfwd`, `hessian`): its derivative "
            "is known for a given error at its output. Use `vjp` or `jacrev`."
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        return _one_after_the_other(_Equilibrium, info, in_dims, inputs)


class _Response(torch.autograd.Function):
    """The gradient, as a function that has none: transforms of `torch.func` see into backward passes."""

    @staticmethod
    def forward(
        module: Any,
        gradient: Any,
        names: Names,
        layers: int,
        of_input: bool,
        wanted: Sequence[bool],
        block: str,
        x: Tensor,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        state = tuple(s.detach() for s in tensors[:layers])
        held, deltas = tensors[layers:-layers], tensors[-layers:]
        named = record_function(f"{block}: nudged phases")
        with full_precision(x), naming(block), asking_for_input(of_input), named:
            found = gradient(twin(module, names, held, wanted), x.detach(), state, deltas)
        of_held = zip(names, held, wanted, strict=True)
        # A parameter that plays no part has a gradient of zero where a transform asks for one.
        return (
            found.x,
            *(found.parameters.get(aliases[0], torch.zeros_like(p)) for aliases, p, want in of_held if want),
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # noqa: ARG004
        return

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ARG004
        return _refuse_second_derivatives("a transform within another")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        return _one_after_the_other(_Response, info, in_dims, inputs)


def _one_after_the_other(function: Any, info: Any, in_dims: tuple[Any, ...], inputs: tuple[Any, ...]) -> tuple[Any, Any]:
    """What a function gives for every element of a batch that `vmap` goes over, stacked."""

    def of(number: int) -> list[Any]:
        pairs = zip(inputs, in_dims, strict=True)
        return [value.select(dim, number) if isinstance(value, Tensor) and dim is not None else value for value, dim in pairs]

    found = [function.apply(*of(number)) for number in range(info.batch_size)]
    return tuple(torch.stack(parts) for parts in zip(*found, strict=True)), (0,) * len(found[0])


def _refuse_second_derivatives(what: str) -> Any:
    raise RuntimeError(
        f"Second derivatives through an analog block are not available (got {what}): its gradient comes "
        "from a relaxation that is not recorded. Use `Unrolled` or `BackpropThroughTime` in every block for that."
    )


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """Leave autocast: equilibrium propagation contrasts two nearly equal states, which half precision cannot tell apart."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()  # not on meta
