"""What every gradient estimator is, and the bridge from a plain derivative to autograd."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn

from ffebm.energy import Energy, State, per_sample
from ffebm.iteration import Relaxed
from ffebm.nudge import Cost
from ffebm.relaxation import Relaxation

M = TypeVar("M", bound=nn.Module)
Deltas = tuple[Tensor | None, ...]  # the error signal at every layer; None where there is none


class Gradients(NamedTuple):
    """The derivative of a loss with respect to a block's input and parameters."""

    x: Tensor
    parameters: dict[str, Tensor]  # by name, those that require gradients

    @classmethod
    def summed(cls, pieces: Sequence[Gradients]) -> Gradients:
        """Of a whole batch, from those of its portions."""
        names = pieces[0].parameters
        parameters = {name: functools.reduce(Tensor.add_, (piece.parameters[name] for piece in pieces)) for name in names}
        return cls(torch.cat([piece.x for piece in pieces]), parameters)


class GradientEstimator(ABC):
    """Solves for the equilibrium of a block *and* owns its derivative."""

    assumes_equilibrium: ClassVar[bool] = True  # whether its derivative is one of an equilibrium, and wrong elsewhere

    @abstractmethod
    def equilibrium(self, energy: Energy, x: Tensor, relax: Relaxation) -> Relaxed:
        """Relax; gradients flow from every layer of the resulting state to `x` and the energy's parameters."""

    def check_precision(self, dtype: torch.dtype, where: str) -> None:
        """Refuse a precision in which the derivative would be lost; `where` names the block."""
        return

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
        names, tensors = holdings(energy)
        *state, residual, sweeps = _Equilibrium.apply(self, energy, relax, names, x, *tensors)  # pyright: ignore[reportGeneralTypeIssues]
        return Relaxed(tuple(state), residual, sweeps)


class _Equilibrium(torch.autograd.Function):
    """Relaxes in the forward pass, and asks the estimator for the gradient in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, estimator: ImplicitEstimator, energy: Energy, relax: Relaxation, names: Names, x: Tensor, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        state, residual, sweeps = relax(energy, x.detach())
        ctx.estimator, ctx.energy, ctx.names, ctx.layers = estimator, energy, names, len(state)
        ctx.save_for_backward(x, *state, *tensors)
        ctx.mark_non_differentiable(residual, sweeps)
        ctx.set_materialize_grads(False)
        return (*state, residual, sweeps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        x, *rest = ctx.saved_tensors
        state, tensors = tuple(s.detach() for s in rest[: ctx.layers]), rest[ctx.layers :]
        deltas = grads[: ctx.layers]
        if all(delta is None for delta in deltas):
            return (None,) * len(ctx.needs_input_grad)
        with full_precision(x):
            energy = twin(ctx.energy, ctx.names, tensors, ctx.needs_input_grad[5:])
            gradients = ctx.estimator.gradient(energy, x.detach(), state, deltas)
        return (None, None, None, None, gradients.x, *(gradients.parameters.get(aliases[0]) for aliases in ctx.names))


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


Names = tuple[tuple[str, ...], ...]  # every name by which a module holds each of its tensors


def holdings(module: nn.Module) -> tuple[Names, tuple[Tensor, ...]]:
    """The distinct parameters and buffers that a module holds, with all of their names."""
    found: dict[int, tuple[Tensor, list[str]]] = {}
    for name, tensor in _named_tensors(module):
        found.setdefault(id(tensor), (tensor, []))[1].append(name)
    return tuple(tuple(names) for _, names in found.values()), tuple(tensor for tensor, _ in found.values())


def twin(module: M, names: Names, tensors: Sequence[Tensor], needed: Sequence[bool]) -> M:
    """A module of the same kind that holds these tensors, as leaves without history; the original is not touched.

    Backward passes must see what their forward pass saw, also when `functional_call` had put it there for one call; and
    differentiating saved tensors directly would follow the graph that they came from.
    """
    leaves = {
        name: leaf
        for aliases, tensor, need in zip(names, tensors, needed, strict=True)
        for leaf in [tensor.detach().requires_grad_(need)]
        for name in aliases
    }
    twins: dict[int, nn.Module] = {}
    for prefix, part in module.named_modules():
        twins[id(part)] = other = part.__class__.__new__(part.__class__)
        other.__dict__ = dict(part.__dict__)
        for kind in ("_parameters", "_buffers"):
            held: dict[str, Tensor | None] = part.__dict__[kind]
            other.__dict__[kind] = {name: leaves.get(f"{prefix}.{name}".lstrip("."), t) for name, t in held.items()}
    for other in twins.values():
        other._modules = {name: None if child is None else twins[id(child)] for name, child in other._modules.items()}
    return cast(M, twins[id(module)])


def _named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def differentiate(objective: Tensor, x: Tensor, module: nn.Module) -> Gradients:
    """The derivative of a scalar with respect to `x` and to the parameters of `module` that want one."""
    wanted = {name: p for name, p in module.named_parameters() if p.requires_grad}
    # Zeros, not None, for a parameter that plays no part: DDP waits for a gradient of every parameter.
    x_grad, *grads = torch.autograd.grad(objective, (x, *wanted.values()), allow_unused=True, materialize_grads=True)
    return Gradients(x_grad, dict(zip(wanted, grads, strict=True)))


def of_samples(deltas: Deltas, samples: slice) -> Deltas:
    return tuple(d if d is None else d[samples] for d in deltas)


def sample_norms(deltas: Deltas) -> Tensor:
    """The Euclidean norm of every sample's error signal, over all layers, shape (B,)."""
    present = [delta for delta in deltas if delta is not None]
    layers = [torch.linalg.vector_norm(delta, dim=tuple(range(1, delta.dim()))) for delta in present]
    norms = torch.linalg.vector_norm(torch.stack(layers), dim=0)
    if bool(((norms > 1e-15) & (norms < 1e15)).all()):
        return norms
    flat = torch.cat([delta.flatten(1) for delta in present], 1)
    largest = flat.abs().amax(1)  # taken out first: the square of a small error is zero, that of a large one infinite
    scaled = flat / torch.where(largest > 0, largest, 1.0).unsqueeze(1)
    return largest * torch.linalg.vector_norm(scaled, dim=1)


def divided(deltas: Deltas, sizes: Tensor) -> Deltas:
    """Every sample's error signal over its size.

    A sample without error stays at zero. So does one whose error is infinite or NaN, as a loss scaler's overflow makes it:
    multiplying by `sizes` again then gives NaN, which is what the scaler looks for.
    """
    usable = (sizes > 0) & sizes.isfinite()
    quotients = [d if d is None else d / per_sample(sizes, d) for d in deltas]
    if bool(usable.all()):
        return tuple(quotients)
    return tuple(q if q is None else torch.where(per_sample(usable, q), q, torch.zeros_like(q)) for q in quotients)
