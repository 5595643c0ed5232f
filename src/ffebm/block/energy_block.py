"""Blocks that an energy describes, and a relaxation simulates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor

from ffebm.block.analog_block import AnalogBlock, Unsettled
from ffebm.block.samples import as_one, sizes_of, start_as_one
from ffebm.checks import check_type
from ffebm.energy import Certificate, Energy
from ffebm.errors import DivergenceError, naming
from ffebm.gradient import EquilibriumPropagation, GradientEstimator
from ffebm.gradient.bridge import full_precision
from ffebm.limit import EdgeGains, Limit, in_single
from ffebm.nudge import Cost
from ffebm.relaxation import FixedPoint, Relaxation, Relaxed
from ffebm.relaxation.problem import Problem
from ffebm.state import State, change
from ffebm.substrate import Substrate
from ffebm.system import Simulated
from ffebm.tracing import numberless, refuse_training, transforming
from ffebm.twin import renewed

__all__ = ["EnergyBlock"]
__dir__ = __all__.copy

LOOKED = 16  # samples that are relaxed from another start
APART = 0.05  # by so much a unit of one equilibrium differs from that of another


class EnergyBlock(AnalogBlock):
    r"""Relaxes to $s_\star = \operatorname{argmin}_s E(s, \theta, x)$ and returns its last layer; goes wherever a module goes.

    Args:
        energy: what is minimised.
        relax: how the free equilibrium is found.
        estimator: how its derivative is computed.
        name: how errors name this block.
        unsettled: what to do when a forward pass ends far from an equilibrium: `"warn"` once, `"raise"`, or `"ignore"` it. Far
            is a mean residual of the batch above a tenth of the largest state, or of 1; gradients are then finite and wrong.
            The same for a block in training that has another equilibrium, where a few samples end from another start.
            There is no warning with an estimator that needs no equilibrium, `BackpropThroughTime`.
        max_contraction: keep weights so small that a plain sweep leaves at most this part of the way to the equilibrium. Below
            1 the block settles whatever it learns, in a number of sweeps that is known; without pooling that chooses, there is
            one equilibrium. Weights are brought back before the first forward pass after each step. None is no limit.
        hardware: what the block runs on, for example `Hardware(adc=Converter(bits=8))`; None is ideal.

    Paper: Eq. [def:deeply-nested-model], Alg. [alg:inference-ff-ebm]
    """

    def __init__(
        self,
        energy: Energy,
        relax: Relaxation = FixedPoint(20),
        estimator: GradientEstimator = EquilibriumPropagation(),
        *,
        name: str = "",
        unsettled: Unsettled = "warn",
        max_contraction: float | None = None,
        hardware: Substrate | None = None,
    ) -> None:
        check_type("energy", energy, Energy, "Hopfield([Dense(32, 16)])")
        check_type("relax", relax, Relaxation, "FixedPoint(20)")
        super().__init__("The energy", energy, estimator, name, unsettled)
        self.energy = energy
        self.relax = relax
        self.limit = None if max_contraction is None else Limit(max_contraction)
        self.put_on(hardware)

    def put_on(self, hardware: Substrate | None, layers: int | None = None) -> Self:
        return super().put_on(hardware, len(self.energy.activations) if layers is None else layers)

    def inference(self, x: Tensor, start: State | None = None) -> Tensor:
        refuse_training(self.label, self.training)
        self._refuse_chip()
        if self.limit is not None:
            self.limit.check_kept(self.label)
        energy, dims = renewed(self.energy), self.leading(sizes_of(x))
        entering, state = as_one(x, dims), start_as_one(start, x, dims)
        state = Problem(energy, entering, start=state).begin()
        for _ in range(self.relax.steps):
            state = self.relax.sweep(energy, state, entering)
        output = state[self.output_layer]
        return output if dims == 1 else output.unflatten(0, x.shape[:dims])

    def certify(self, shape: Sequence[int]) -> Certificate | None:
        """What the weights promise about how the block settles, for inputs of this shape; None where nothing is known.

        This takes some dozens of Lanczos iterations. A block with a limit keeps a certificate while it trains: `block.limit`.
        """
        if any(numberless(p) for p in self.parameters()):
            return None
        if (known := self.energy.certified(shape)) is not None:
            return known
        try:
            return self.energy.certificate(EdgeGains().measure(in_single(self.energy), shape))
        except TypeError:  # an edge that does not tell its gain
            return None

    @torch.no_grad()
    def settle(self, x: Tensor, relax: Relaxation | None = None) -> Relaxed:
        self._limited(as_one(x, self.leading(sizes_of(x))))
        return super().settle(x, relax)

    def unsettled_part(self, x: Tensor) -> tuple[float, ...] | None:
        """How far from rest the free phase leaves each layer at most, in parts of its size; None where nothing is known.

        One more sweep tells, and the certificate. A nudge's response is contrasted with these states, so it is wrong by as
        large a part, but for units that are still on the wrong side of a kink. Max-pooling must keep its positions.
        """
        x = as_one(x, self.leading(sizes_of(x)))
        self._limited(x)
        certificate = self.certify(x.shape[1:])
        if certificate is None:
            return None
        with naming(self.label), full_precision(x):
            state = self.relax(self.energy, x).state
            swept = FixedPoint(1)(self.energy, x, start=state).state
        moves = [(new - old).norm().item() for new, old in zip(swept, state, strict=True)]
        tiny = torch.finfo(x.dtype).tiny
        sizes = [max(s.norm().item(), tiny) for s in state]
        return tuple(distance / size for distance, size in zip(certificate.distances(moves), sizes, strict=True))

    def _enter(self, x: Tensor, dims: int) -> Tensor:
        x = super()._enter(x, dims)
        self._limited(x)
        return x

    def _refuse_chip(self) -> None:
        if self.chip is not None:
            raise TypeError(
                f"{self.label} runs on hardware, whose draws and converters no file can hold. To export the ideal block, take "
                "the hardware away first: `block.put_on(None)`."
            )

    def power(self, x: Tensor) -> Tensor:
        """What the block dissipates at its free equilibrium, in watts, for every sample: of a circuit, such as `Resistive`."""
        dims = self.leading(sizes_of(x))
        entering = as_one(x, dims)
        return self.energy.power(self.settle(entering).state, entering).view(x.shape[:dims])

    def _limited(self, x: Tensor) -> None:
        if transforming():  # which change nothing in place: weights are used as they are
            return
        self.energy.confine_()
        if self.limit is not None:
            with naming(self.label):
                self.limit.keep(self.energy, x.shape[1:])

    @property
    def always_settles(self) -> bool:
        return self.energy.always_settles

    @property
    def output_layer(self) -> int:
        return self.energy.output_layer

    @property
    def system(self) -> Simulated:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The energy as its relaxation minimises it."""
        return Simulated(self.energy, self.relax)

    def leading(self, shape: Sequence[int]) -> int:
        return self.energy.leading(shape) if len(shape) > 2 else 1

    def _equilibrium(self, x: Tensor, start: State | None) -> Relaxed:
        if self.chip is not None:
            return super()._equilibrium(x, start)
        energy = renewed(self.energy)
        if start is None:
            return self.estimator.equilibrium(energy, x, self.relax)
        return self.estimator.equilibrium(energy, x, self.relax, tuple(s.detach() for s in start))

    def _losses(self, x: Tensor, cost: Cost, y: Tensor) -> tuple[Tensor, Relaxed]:
        if self.chip is not None:
            return super()._losses(x, cost, y)
        return self.estimator.losses(renewed(self.energy), x, self.relax, cost, y)

    def _check_unique(self, x: Tensor) -> None:
        if self.limit is not None:
            return
        elsewhere, looked = self.ambiguous(x[:LOOKED])
        if elsewhere:
            self._complain(
                f"{self.label} has more than one equilibrium: {elsewhere} of {looked} samples end elsewhere when relaxation "
                "starts from the top. Its output then jumps as inputs or weights change, and gradients do not tell. Limit the "
                "gain of the block, `EnergyBlock(..., max_contraction=0.5)`, or take smaller weights."
            )

    @torch.no_grad()
    def ambiguous(self, x: Tensor) -> tuple[int, int]:
        """How many of these samples end elsewhere when relaxation starts from the top of every layer, and how many were seen.

        Samples that have not settled from both starts in a hundred sweeps do not count, and none where those run away.
        """
        relax = replace(self.relax.tuned(100, 1.0), tolerance=1e-4)
        try:
            with naming(self.label), full_precision(x):
                free = relax(self.energy, x)
                tops = [a.high if math.isfinite(a.high) else 1.0 for a in self.energy.activations]
                top = tuple(torch.full_like(s, high) for s, high in zip(free.state, tops, strict=True))
                other = relax(self.energy, x, start=top)
        except DivergenceError:  # by more sweeps than the block itself makes
            return 0, 0
        settled = (free.residual <= 1e-4) & (other.residual <= 1e-4)
        apart = change(other.state, free.state) > APART
        return int((settled & apart).sum()), int(settled.sum())

    def extra_repr(self) -> str:
        return f"relax={self.relax}, {super().extra_repr()}"
