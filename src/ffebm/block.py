"""The analog block: a module whose forward is a relaxation and whose backward is equilibrium propagation."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, NoReturn, get_args

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from ffebm.checks import check_choice, check_samples_stay_apart, check_type
from ffebm.energy import Certificate, Energy
from ffebm.errors import DivergenceError, UnsettledError, UnsettledWarning, naming
from ffebm.gradient import EquilibriumPropagation, GradientEstimator
from ffebm.gradient.bridge import full_precision
from ffebm.limit import EdgeGains, Limit, in_single
from ffebm.nudge import Cost
from ffebm.relaxation import FixedPoint, Relaxation, Relaxed
from ffebm.relaxation.relaxation import check_input, check_tensor
from ffebm.state import State, change
from ffebm.system import FREE, Simulated, System
from ffebm.tracing import exporting, not_compiled, refuse_training, transforming

__all__ = ["AnalogBlock", "EnergyBlock", "SystemBlock", "Unsettled"]
__dir__ = __all__.copy

Unsettled = Literal["warn", "raise", "ignore"]

FIRST, EVERY = 3, 100  # forward passes after which a block looks whether it has settled, where it is to warn
LOOKS = (20, 50)  # training passes after which a few samples are relaxed from another start, and then as often
LOOKED = 16  # how many
APART = 0.05  # by so much a unit of one equilibrium differs from that of another
UNSETTLED = 0.1  # a mean residual above this, in units of the largest state or of 1, is far from an equilibrium


class AnalogBlock(nn.Module):
    """A system that settles, as a module: its forward pass finds an equilibrium, and an estimator differentiates that."""

    system: System  # what settles
    name: str = ""
    unsettled: Unsettled = "warn"
    limit: Limit | None  # on its gain
    _warned = False  # whether it has been warned of
    _passes = 0  # forward passes so far

    def __init__(self, what: str, part: nn.Module, estimator: GradientEstimator, name: str, unsettled: Unsettled) -> None:
        super().__init__()
        check_samples_stay_apart(what, part, "Put it into a module before or behind the block.")
        check_type("estimator", estimator, GradientEstimator, "EquilibriumPropagation()")
        check_choice("unsettled", unsettled, get_args(Unsettled))
        self.estimator = estimator
        self.limit = None
        self.name = name
        self.unsettled = unsettled
        self.residual: Tensor | None = None  # of every sample in the last forward pass, and its sweeps
        self.sweeps: Tensor | None = None

    def forward(self, x: Tensor, start: State | None = None, *, instead: Callable[[Tensor], Any] | None = None) -> Any:
        """The output at equilibrium.

        Args:
            x: a batch of inputs. Where the first layer of an energy is dense, there may be several dimensions of samples before
                its units, as for `nn.Linear`.
            start: the state where relaxation begins, all layers of it; by default the energy's own.
            instead: what to return in place of the output: a method that asks the block for more, which whoever wraps or hooks
                modules then sees as a call of it.
        """
        if instead is not None:
            return instead(x)
        leading = self._leading(x)
        if leading > 1:
            return self(x.flatten(0, leading - 1), start).unflatten(0, x.shape[:leading])
        return self.inference(x) if exporting() else self.equilibrium(x, start).state[self.output_layer]

    def _leading(self, x: Tensor) -> int:
        """How many dimensions of an input count samples."""
        return 1

    def inference(self, x: Tensor) -> Tensor:
        """The output after a fixed number of sweeps, by tensor operations alone: what is kept of a block that is exported."""
        raise TypeError(
            f"{self.label} cannot be exported or traced: a {self.system.kind} is known by its readings alone, and a file "
            "cannot ask it. Export the parts before and behind it."
        )

    @not_compiled
    def equilibrium(self, x: Tensor, start: State | None = None) -> Relaxed:
        """All layers at equilibrium, each differentiable, with residual and sweeps; `start` is where relaxation begins."""
        with naming(self.label), record_function(f"{self.label}: free phase"):
            x = self._enter(x)
            with full_precision(x):
                return self._record(self._equilibrium(x, start), x)

    @not_compiled
    def losses(self, x: Tensor, cost: Cost, y: Tensor) -> tuple[Tensor, Relaxed]:
        """The loss of every sample, shape (B,), nudged elastically where the estimator nudges."""
        check_tensor("The targets", y)
        with naming(self.label), record_function(f"{self.label}: free phase"):
            x = self._enter(x)
            with full_precision(x):
                losses, relaxed = self._losses(x, cost, y)
                return losses, self._record(relaxed, x)

    def settle(self, x: Tensor, relax: Relaxation | None = None) -> Relaxed:
        """The free equilibrium as it is read, without a graph; `relax` is another way for a simulation to get there."""
        with naming(self.label), full_precision(x):
            return self.system.settle(x, [FREE], relax=relax)[0]

    def certify(self, shape: Sequence[int]) -> Certificate | None:
        """What is known in advance of how the block settles, for inputs of this shape; None where nothing is."""
        return None

    def unsettled_part(self, x: Tensor) -> tuple[float, ...] | None:
        """How far from rest the free phase leaves each layer at most, in parts of its size; None where nothing is known."""
        return None

    def _equilibrium(self, x: Tensor, start: State | None) -> Relaxed:
        if start is not None:
            raise TypeError(f"{self.label} begins where its system begins: a {self.system.kind} cannot be given a state.")
        return self.estimator.through(self.system, x)

    def _losses(self, x: Tensor, cost: Cost, y: Tensor) -> tuple[Tensor, Relaxed]:
        return self.estimator.losses_through(self.system, x, cost, y)

    @property
    def output_layer(self) -> int:
        """The layer that the block returns, and that errors enter."""
        return self.system.output_layer

    @property
    def label(self) -> str:
        """How errors name this block."""
        return self.name or f"an unnamed {self.system.kind} block"

    def _enter(self, x: Tensor) -> Tensor:
        """Check the input and bring it from autocast's precision to the block's own."""
        check_input(self.label, x)
        for name, part in (found for child in self.children() for found in child.named_modules()):
            renew = getattr(part, "renew", None)  # parts that are called as modules run their hooks
            if renew is not None:
                renew(f"{name} of {self.label}")
        parameter = next(self.parameters(), None)
        own = torch.promote_types(x.dtype, torch.float32) if parameter is None else parameter.dtype
        half = x.dtype in (torch.float16, torch.bfloat16)
        if x.dtype != own and not half:
            raise TypeError(
                f"The input of {self.label} is {x.dtype} but its parameters are {own}: "
                "convert the data or the model so that both are the same."
            )
        return x.to(own)

    def _record(self, relaxed: Relaxed, x: Tensor) -> Relaxed:
        if transforming():  # nobody can look at it
            return relaxed
        self.residual, self.sweeps = relaxed.residual.detach(), relaxed.sweeps
        # The look waits for the device: it is taken at first, and then now and again.
        now_and_again = self._passes % EVERY == 0
        due = self._passes < FIRST or now_and_again
        elsewhere_due = self._passes in LOOKS or (now_and_again and self._passes > 0)
        self._passes += 1
        watches = self.unsettled == "warn" and not self._warned and self.estimator.assumes_equilibrium
        with torch.no_grad():
            if (watches and due) or self.unsettled == "raise":
                self._check_settled(relaxed, x)
            if (watches or self.unsettled == "raise") and elsewhere_due and self.training:
                self._check_unique(x)
        return relaxed

    def _check_unique(self, x: Tensor) -> None:
        """Complain where a few samples end elsewhere from another start; nothing is known of other starts here."""

    def _check_settled(self, relaxed: Relaxed, x: Tensor) -> None:
        most = int(relaxed.sweeps.max())
        moves = relaxed.residual.mean().item()  # by each sample's fastest unit
        if moves > UNSETTLED and most == 1:
            # A single sweep moved from where all began, and says nothing of what is left: another one does.
            moves = self.system.settle(x, [FREE], start=relaxed.state)[0].residual.mean().item()
        if moves <= UNSETTLED * max(1.0, *(s.abs().max().item() for s in relaxed.state)):
            return
        made = f"{most} sweep{'s' if most > 1 else ''}"
        message = (
            f"{self.label} has not settled: units still move by {moves:.2g} after {made}, so its gradient is not one of "
            "an equilibrium. Give it more sweeps, or a tolerance and many (`FixedPoint(100, tolerance=1e-5)`). If that does "
            "not help, its weights are too large, or max-pooling inside it flips between positions: take smaller weights, "
            "average pooling, or above max-pooling a layer that is never negative, such as clamp(0.5). Where a block is meant "
            'to stop early, give it unsettled="ignore".'
        )
        self._complain(message)

    def _complain(self, message: str) -> None:
        if self.unsettled == "raise":
            raise UnsettledError(message)
        if not self._warned:
            self._warned = True
            warnings.warn(message, UnsettledWarning, stacklevel=2)

    def extra_repr(self) -> str:
        unsettled = "" if self.unsettled == "warn" else f", unsettled={self.unsettled!r}"
        return f"estimator={self.estimator}{unsettled}"


class SystemBlock(AnalogBlock):
    """Any system as a module: a chip, a circuit, a map without an energy, or a simulation that is disturbed.

    Args:
        system: what settles.
        estimator: how the derivative of its equilibrium is computed, from readings alone.
        name: how errors name this block.
        unsettled: as in `EnergyBlock`.
    """

    def __init__(
        self,
        system: System,
        estimator: GradientEstimator = EquilibriumPropagation(),
        *,
        name: str = "",
        unsettled: Unsettled = "warn",
    ) -> None:
        check_type("system", system, System, "Simulated(Hopfield([Dense(32, 16)]), FixedPoint(20))")
        super().__init__("The system", system, estimator, name, unsettled)
        self.system = system

    def _refuse(self, *_: Any) -> NoReturn:
        raise TypeError(
            f"{self.label} is known by its readings alone. Its energy and sweeps, which calibration and diagnostics ask for, "
            "belong to an `EnergyBlock`; how a system settles is said where it is made."
        )

    energy = property(_refuse)
    relax = property(_refuse, _refuse)


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
    ) -> None:
        check_type("energy", energy, Energy, "Hopfield([Dense(32, 16)])")
        check_type("relax", relax, Relaxation, "FixedPoint(20)")
        super().__init__("The energy", energy, estimator, name, unsettled)
        self.energy = energy
        self.relax = relax
        self.limit = None if max_contraction is None else Limit(max_contraction)

    def inference(self, x: Tensor) -> Tensor:
        refuse_training(self.label, self.training)
        state = self.energy.init_state(x)
        for _ in range(self.relax.steps):
            state = self.relax.sweep(self.energy, state, x)
        return state[self.output_layer]

    def certify(self, shape: Sequence[int]) -> Certificate | None:
        """What the weights promise about how the block settles, for inputs of this shape; None where nothing is known.

        This takes some dozens of Lanczos iterations. A block with a limit keeps a certificate while it trains: `block.limit`.
        """
        if any(p.is_meta for p in self.parameters()):
            return None
        try:
            return self.energy.certificate(EdgeGains().measure(in_single(self.energy), shape))
        except TypeError:  # an edge that does not tell its gain
            return None

    @torch.no_grad()
    def settle(self, x: Tensor, relax: Relaxation | None = None) -> Relaxed:
        self._limited(x)
        return super().settle(x, relax)

    def unsettled_part(self, x: Tensor) -> tuple[float, ...] | None:
        """How far from rest the free phase leaves each layer at most, in parts of its size; None where nothing is known.

        One more sweep tells, and the certificate. A nudge's response is contrasted with these states, so it is wrong by as
        large a part, but for units that are still on the wrong side of a kink. Max-pooling must keep its positions.
        """
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

    def _enter(self, x: Tensor) -> Tensor:
        x = super()._enter(x)
        self._limited(x)
        return x

    def _limited(self, x: Tensor) -> None:
        if self.limit is not None and not transforming():  # which change nothing in place: weights are used as they are
            with naming(self.label):
                self.limit.keep(self.energy, x.shape[1:])

    @property
    def output_layer(self) -> int:
        return self.energy.output_layer

    @property
    def system(self) -> Simulated:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The energy as its relaxation minimises it."""
        return Simulated(self.energy, self.relax)

    def _leading(self, x: Tensor) -> int:
        return self.energy.leading(x.shape) if isinstance(x, Tensor) and x.dim() > 2 else 1

    def _equilibrium(self, x: Tensor, start: State | None) -> Relaxed:
        if start is None:
            return self.estimator.equilibrium(self.energy, x, self.relax)
        return self.estimator.equilibrium(self.energy, x, self.relax, tuple(s.detach() for s in start))

    def _losses(self, x: Tensor, cost: Cost, y: Tensor) -> tuple[Tensor, Relaxed]:
        return self.estimator.losses(self.energy, x, self.relax, cost, y)

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
