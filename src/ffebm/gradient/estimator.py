"""What every gradient estimator is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import torch
from torch import Tensor

from ffebm.derivative import Gradients
from ffebm.energy import Energy
from ffebm.errors import block_name
from ffebm.gradient.bridge import differentiable
from ffebm.nudge import Cost
from ffebm.relaxation import Relaxation, Relaxed
from ffebm.state import Deltas, State, per_sample
from ffebm.system import FREE, Simulated, System

if TYPE_CHECKING:
    from ffebm.gradient.equilibrium_propagation import EquilibriumPropagation

__all__ = ["GradientEstimator", "ImplicitEstimator", "divided", "sample_norms"]
__dir__ = __all__.copy


class GradientEstimator(ABC):
    """Solves for the equilibrium of a block *and* owns its derivative."""

    assumes_equilibrium: ClassVar[bool] = True  # whether its derivative is one of an equilibrium, and wrong elsewhere
    nudging: EquilibriumPropagation | None = None  # the nudges that it computes a derivative by, if any
    faintest: float = 0.0  # the least part of an output's move, by a nudge, that rounding does not hide in single precision
    relax: Any = None  # the relaxation that carries the error through a block, where a dataclass has one of its own

    @abstractmethod
    def equilibrium(self, energy: Energy, x: Tensor, relax: Relaxation, start: State | None = None) -> Relaxed:
        """Relax; gradients flow from every layer of the resulting state to `x` and the energy's parameters.

        Args:
            start: where to begin, by default the energy's own state.
        """

    def losses(self, energy: Energy, x: Tensor, relax: Relaxation, cost: Cost, y: Tensor) -> tuple[Tensor, Relaxed]:
        """The loss of every sample at equilibrium, shape (B,), for the last block of a model.

        The block, its readout and the loss are one differentiable unit here, because an elastic nudge needs all three.
        """
        relaxed = self.equilibrium(energy, x, relax)
        return cost(relaxed.state[energy.output_layer], y), relaxed

    def through(self, system: System, x: Tensor) -> Relaxed:
        """`equilibrium` of any system, simulated or not, of which nothing is known but readings."""
        raise TypeError(
            f"{type(self).__name__} differentiates the sweeps of a simulation, and {block_name()} is a "
            f"{type(system).__name__}, which only hands out readings: use `EquilibriumPropagation`."
        )

    def losses_through(self, system: System, x: Tensor, cost: Cost, y: Tensor) -> tuple[Tensor, Relaxed]:
        """`losses` of any system."""
        relaxed = self.through(system, x)
        return cost(relaxed.state[system.output_layer], y), relaxed

    def check_precision(self, dtype: torch.dtype, where: str) -> None:
        """Refuse a precision in which the derivative would be lost; `where` names the block."""
        return

    def swept(self, sweeps: int, omega: float | None = None) -> Self:
        """The same estimator with another number of sweeps, each going `omega` far; itself, where it has none of its own."""
        if self.relax is None or not hasattr(self, "__dataclass_fields__"):
            return self
        return replace(cast(Any, self), relax=self.relax.tuned(sweeps, omega))


class ImplicitEstimator(GradientEstimator):
    """An estimator whose derivative is a formula at the equilibrium, and needs nothing of the way there."""

    @abstractmethod
    def gradient(self, energy: Energy, x: Tensor, state: State, deltas: Deltas) -> Gradients:
        """The derivative, given the equilibrium `state` and the loss's derivative `deltas` with respect to it."""

    def equilibrium(self, energy: Energy, x: Tensor, relax: Relaxation, start: State | None = None) -> Relaxed:
        def settle(energy: Energy, x: Tensor) -> Relaxed:
            return Simulated(energy, relax).settle(x, [FREE], start=start)[0]

        return differentiable(energy, x, settle, self.gradient)


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
