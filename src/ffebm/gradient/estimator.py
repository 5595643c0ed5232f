"""What every gradient estimator is, and the bridge from a plain derivative to autograd."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ffebm.energy import Energy, State
from ffebm.nudge import Cost
from ffebm.relaxation import Relaxation, Relaxed

Deltas = tuple[Tensor | None, ...]  # the error signal at every layer; None where there is none
T = TypeVar("T")


class Gradients(NamedTuple):
    """The derivative of a loss with respect to a block's input and parameters."""

    x: Tensor
    parameters: dict[str, Tensor]  # by name, those that require gradients


class GradientEstimator(ABC):
    """Solves for the equilibrium of a block *and* owns its derivative."""

    @abstractmethod
    def equilibrium(self, energy: Energy, x: Tensor, relax: Relaxation) -> Relaxed:
        """Relax; gradients flow from every layer of the resulting state to `x` and the energy's parameters."""

    def losses(self, energy: Energy, x: Tensor, relax: Relaxation, cost: Cost, y: Tensor) -> tuple[Tensor, Relaxed]:
        """The loss of every sample at equilibrium, shape (B,), for the last block of a model.

        The block, its readout and the loss are one differentiable unit here, because an elastic nudge needs all three.
        """
        relaxed = self.equilibrium(energy, x, relax)
        return cost(relaxed.state[-1], y), relaxed


class ImplicitEstimator(GradientEstimator):
    """An estimator whose derivative is a formula at the equilibrium, and needs nothing of the way there."""

    @abstractmethod
    def gradient(self, energy: Energy, x: Tensor, state: State, deltas: Deltas) -> Gradients:
        """The derivative, given the equilibrium `state` and the loss's derivative `deltas` with respect to it."""

    def equilibrium(self, energy: Energy, x: Tensor, relax: Relaxation) -> Relaxed:
        names, parameters = unzip(energy.named_parameters())
        *state, residual, sweeps = _Equilibrium.apply(self, energy, relax, names, x, *parameters)  # pyright: ignore[reportGeneralTypeIssues]
        return Relaxed(tuple(state), residual, sweeps)


class _Equilibrium(torch.autograd.Function):
    """Relaxes in the forward pass, and asks the estimator for the gradient in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        estimator: ImplicitEstimator,
        energy: Energy,
        relax: Relaxation,
        names: tuple[str, ...],
        x: Tensor,
        *parameters: Tensor,
    ) -> tuple[Tensor, ...]:
        state, residual, sweeps = relax(energy, x.detach())
        ctx.estimator, ctx.energy, ctx.names, ctx.layers = estimator, energy, names, len(state)
        ctx.save_for_backward(x, *state, *parameters)
        ctx.mark_non_differentiable(residual, sweeps)
        ctx.set_materialize_grads(False)
        return (*state, residual, sweeps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        x, *rest = ctx.saved_tensors
        state, parameters = tuple(rest[: ctx.layers]), rest[ctx.layers :]
        deltas = grads[: ctx.layers]
        if all(delta is None for delta in deltas):
            return (None,) * len(ctx.needs_input_grad)
        with full_precision(x):
            gradients = with_parameters(
                ctx.energy,
                leaves(ctx.names, parameters, ctx.needs_input_grad[5:]),
                lambda energy: ctx.estimator.gradient(energy, x.detach(), tuple(s.detach() for s in state), deltas),
            )
        return (None, None, None, None, gradients.x, *(gradients.parameters.get(name) for name in ctx.names))


def refuse_second_derivatives() -> None:
    if torch.is_grad_enabled():
        raise RuntimeError(
            "Second derivatives through an analog block are not available (got `create_graph=True`): its gradient comes from a "
            "relaxation that is not recorded. Use `Unrolled` or `BackpropThroughTime` as the estimator of every block for that."
        )


@contextmanager
def full_precision(x: Tensor) -> Iterator[None]:
    """Leave autocast: equilibrium propagation contrasts two nearly equal states, which half precision cannot tell apart."""
    with torch.autocast(x.device.type, enabled=False):
        yield


def unzip(named: Iterator[tuple[str, Tensor]]) -> tuple[tuple[str, ...], tuple[Tensor, ...]]:
    pairs = tuple(named)
    return tuple(name for name, _ in pairs), tuple(tensor for _, tensor in pairs)


def leaves(names: Sequence[str], tensors: Sequence[Tensor], needed: Sequence[bool]) -> dict[str, Tensor]:
    """Fresh leaves without history: differentiating saved tensors directly would follow the graph that they came from."""
    return {name: t.detach().requires_grad_(need) for name, t, need in zip(names, tensors, needed, strict=True)}


def with_parameters(module: nn.Module, parameters: Mapping[str, Tensor], function: Callable[[Any], T]) -> T:
    """Call `function(module)` with the module's parameters replaced.

    Backward passes must see the parameters of their forward pass, also when those were put there by `functional_call`.
    """
    host = _Host(module)
    return functional_call(host, {f"module.{name}": t for name, t in parameters.items()}, (function,))


class _Host(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, function: Callable[[nn.Module], T]) -> T:
        return function(self.module)


def differentiate(objective: Tensor, x: Tensor, module: nn.Module) -> Gradients:
    """The derivative of a scalar with respect to `x` and to the parameters of `module` that want one."""
    names, parameters = unzip((name, p) for name, p in module.named_parameters() if p.requires_grad)
    # Zeros, not None, for a parameter that plays no part: DDP waits for a gradient of every parameter.
    x_grad, *grads = torch.autograd.grad(objective, (x, *parameters), allow_unused=True, materialize_grads=True)
    return Gradients(x_grad, dict(zip(names, grads, strict=True)))


def sample_norms(deltas: Deltas) -> Tensor:
    """The Euclidean norm of every sample's error signal, over all layers, shape (B,)."""
    return torch.stack([torch.linalg.vector_norm(d.flatten(1), dim=1) for d in deltas if d is not None]).norm(dim=0)
