"""Derivatives that autograd takes, by the names of what they are taken by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor, nn

__all__ = ["Gradients", "asking_for_input", "differentiate", "input_wanted", "pulled_back", "wanted"]
__dir__ = __all__.copy


class Gradients(NamedTuple):
    """The derivative of a loss with respect to a block's input and parameters."""

    x: Tensor
    parameters: dict[str, Tensor]  # by name, those that require gradients

    @classmethod
    def summed(cls, pieces: Sequence[Gradients]) -> Gradients:
        """Of a whole batch, from those of its portions."""
        parameters = dict(pieces[0].parameters)
        for piece in pieces[1:]:
            for name, gradient in piece.parameters.items():
                parameters[name] = parameters[name] + gradient  # not in place: two names may hold one tensor
        return cls(torch.cat([piece.x for piece in pieces]), parameters)

    def renamed(self, prefix: str, new: str) -> Gradients:
        """The same by the names that the parameters have in another module: those with this prefix have the new one instead."""
        names = {name: new + name[len(prefix) :] if name.startswith(prefix) else name for name in self.parameters}
        return Gradients(self.x, {names[name]: gradient for name, gradient in self.parameters.items()})


_INPUT = ContextVar("input", default=True)


def input_wanted() -> bool:
    """Whether anybody asks for the derivative by the input of a block: where it costs much, zeros will do if not."""
    return _INPUT.get()


@contextmanager
def asking_for_input(wanted: bool) -> Iterator[None]:
    """Say for a while whether anybody does."""
    token = _INPUT.set(wanted)
    try:
        yield
    finally:
        _INPUT.reset(token)


def wanted(module: nn.Module, prefix: str = "") -> dict[str, Tensor]:
    """The parameters that want a gradient, by their names behind this prefix."""
    return {prefix + name: p for name, p in module.named_parameters() if p.requires_grad}


def differentiate(objective: Tensor, x: Tensor, module: nn.Module) -> Gradients:
    """The derivative of a scalar with respect to `x` and to the parameters of `module` that want one."""
    parameters = wanted(module)
    x_grad, *grads = pulled_back([objective], [x, *parameters.values()])
    return Gradients(x_grad, dict(zip(parameters, grads, strict=True)))


def pulled_back(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    errors: Sequence[Tensor | None] | None = None,
    *,
    again: bool = False,
    create_graph: bool = False,
) -> tuple[Tensor, ...]:
    """Errors at the outputs (by default 1), times the derivative of those with respect to the inputs.

    Zeros, not None, for an input that plays no part: DDP waits for a gradient of every parameter.

    Args:
        again: keep the graph, because it is to be asked again.
    """
    errors = [None] * len(outputs) if errors is None else errors
    moving = [pair for pair in zip(outputs, errors, strict=True) if pair[0].requires_grad]
    if not (moving and inputs):
        return tuple(map(torch.zeros_like, inputs))
    ends, weights = zip(*moving, strict=True)
    kept = again or create_graph
    return torch.autograd.grad(ends, inputs, weights, kept, create_graph, allow_unused=True, materialize_grads=True)
