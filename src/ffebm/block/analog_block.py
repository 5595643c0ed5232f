"""What every analog block is: a system that settles, as a module."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from ffebm.block.samples import apart, as_one, sizes_of, start_as_one
from ffebm.checks import check_choice, check_samples_stay_apart, check_type
from ffebm.energy import Certificate
from ffebm.errors import UnsettledError, UnsettledWarning, naming
from ffebm.gradient import GradientEstimator
from ffebm.gradient.bridge import full_precision
from ffebm.interaction import check_edges
from ffebm.limit import Limit
from ffebm.nudge import Cost
from ffebm.relaxation import Relaxation, Relaxed
from ffebm.relaxation.relaxation import check_input, check_tensor
from ffebm.state import State
from ffebm.substrate import Chip, Substrate
from ffebm.system import FREE, System
from ffebm.tracing import exporting, not_compiled, unseen
from ffebm.twin import renewed

__all__ = ["AnalogBlock", "Unsettled"]
__dir__ = __all__.copy

Unsettled = Literal["warn", "raise", "ignore"]

FIRST, EVERY = 3, 100  # forward passes after which a block looks whether it has settled, where it is to warn
LOOKS = (20, 50)  # training passes after which a few samples are relaxed from another start, and then as often
UNSETTLED = 0.1  # a mean residual above this, in units of the largest state or of 1, is far from an equilibrium


class AnalogBlock(nn.Module):
    """A system that settles, as a module: its forward pass finds an equilibrium, and an estimator differentiates that."""

    system: System  # what settles
    name: str = ""
    unsettled: Unsettled = "warn"
    limit: Limit | None  # on its gain
    chip: Chip | None  # that it runs on, where it is not ideal
    _warned = False  # whether it has been warned of
    _passes = 0  # forward passes so far

    def __init__(self, what: str, part: nn.Module, estimator: GradientEstimator, name: str, unsettled: Unsettled) -> None:
        super().__init__()
        check_samples_stay_apart(what, part, "Put it into a module before or behind the block.")
        check_type("estimator", estimator, GradientEstimator, "EquilibriumPropagation()")
        check_choice("unsettled", unsettled, get_args(Unsettled))
        self.estimator = estimator
        self.limit = None
        self.chip = None
        self.name = name
        self.unsettled = unsettled
        self.residual: Tensor | None = None  # of every sample in the last forward pass, and its sweeps
        self.sweeps: Tensor | None = None

    def forward(self, x: Tensor, start: State | None = None, *, instead: Callable[[Tensor], Any] | None = None) -> Any:
        """The output at equilibrium.

        Args:
            x: a batch of inputs. Where the first layer of an energy is dense, there may be several dimensions of samples before
                its units, as for `nn.Linear`.
            start: the state where relaxation begins, all layers of it, with as many dimensions of samples; by default the
                energy's own.
            instead: what to return in place of the output: a method that asks the block for more, which whoever wraps or hooks
                modules then sees as a call of it.
        """
        if instead is not None:
            return instead(x)
        return self.inference(x, start) if exporting() else self.equilibrium(x, start).state[self.output_layer]

    def leading(self, shape: Sequence[int]) -> int:
        """How many dimensions of an input of this shape count samples."""
        return 1

    def check_samples(self, x: Tensor) -> None:
        """Refuse several dimensions of samples, for a model: it has one target for each of them. A single one is no harm."""
        shape = sizes_of(x)
        if any(size != 1 for size in shape[1 : self.leading(shape)]):
            raise ValueError(
                f"{self.label} got an input of shape {shape}, several dimensions of samples, (B, T, D). A model takes one, "
                "because each sample has a target: call it as `model(x.flatten(0, 1), y.flatten())`, or use the block outside "
                "of a model, where it takes them as `nn.Linear` does."
            )

    def inference(self, x: Tensor, start: State | None = None) -> Tensor:
        """The output after a fixed number of sweeps, by tensor operations alone: what is kept of a block that is exported."""
        raise TypeError(
            f"{self.label} cannot be exported or traced: a {self.system.kind} is known by its readings alone, and a file "
            "cannot ask it. Export the parts before and behind it."
        )

    @not_compiled
    def equilibrium(self, x: Tensor, start: State | None = None) -> Relaxed:
        """All layers at equilibrium, each differentiable, with residual and sweeps; `start` is where relaxation begins."""
        dims = self.leading(sizes_of(x))
        with naming(self.label), record_function(f"{self.label}: free phase"):
            entering = self._enter(x, dims)
            with full_precision(entering):
                relaxed = self._equilibrium(entering, start_as_one(start, x, dims))
                return apart(self._record(relaxed, entering), x, dims)

    @not_compiled
    def losses(self, x: Tensor, cost: Cost, y: Tensor) -> tuple[Tensor, Relaxed]:
        """The loss of every sample, shape (B,), nudged elastically where the estimator nudges."""
        check_tensor("The targets", y)
        self.check_samples(x)
        dims = self.leading(sizes_of(x))
        with naming(self.label), record_function(f"{self.label}: free phase"):
            entering = self._enter(x, dims)
            with full_precision(entering):
                losses, relaxed = self._losses(entering, cost, y)
                return losses, apart(self._record(relaxed, entering), x, dims)

    def settle(self, x: Tensor, relax: Relaxation | None = None) -> Relaxed:
        """The free equilibrium as it is read, without a graph; `relax` is another way for a simulation to get there."""
        dims = self.leading(sizes_of(x))
        with naming(self.label), full_precision(x), torch.no_grad():
            entering = as_one(x, dims)
            entering = entering if self.chip is None else self.chip.enter(entering)
            return apart(self._on_chip(self.system).settle(entering, [FREE], relax=relax)[0], x, dims)

    @property
    def expects_rest(self) -> bool:
        """Whether its gradient is one of an equilibrium, and its phases are meant to end at one."""
        return self.estimator.assumes_equilibrium and not (self.chip is not None and self.chip.restless)

    @property
    def hardware(self) -> Substrate | None:
        """What it runs on; None where it is ideal."""
        return None if self.chip is None else self.chip.substrate

    def put_on(self, hardware: Substrate | None, layers: int | None = None) -> Self:
        """Run on this hardware from now on, on a new chip of it, or on none; returns the block."""
        if hardware is not None:
            check_type("hardware", hardware, Substrate, "Hardware(adc=Converter(bits=8))")
        self.chip = None if hardware is None else hardware.chip(layers)
        self._check_nudges()
        return self

    def _check_nudges(self) -> None:
        nudging = self.estimator.nudging
        if self.chip is not None and nudging is not None and nudging.chosen.small:
            raise ValueError(
                f"{self.label} runs on hardware, got {nudging.chosen.name} nudges: those are a calculation with the tangent of "
                "a simulation, and converters would see nothing of them. Use "
                '`EquilibriumPropagation(variant="centered")`, the default of `build` with `hardware`.'
            )

    def _on_chip(self, system: System) -> System:
        """A system as the chip shows it for one pass."""
        return system if self.chip is None else self.chip.over(system)

    def certify(self, shape: Sequence[int]) -> Certificate | None:
        """What is known in advance of how the block settles, for inputs of this shape; None where nothing is."""
        return None

    def unsettled_part(self, x: Tensor) -> tuple[float, ...] | None:
        """How far from rest the free phase leaves each layer at most, in parts of its size; None where nothing is known."""
        return None

    def _equilibrium(self, x: Tensor, start: State | None) -> Relaxed:
        if start is not None:
            raise TypeError(f"{self.label} begins where its system begins: a {self.system.kind} cannot be given a state.")
        self._check_nudges()
        return self.estimator.through(self._on_chip(renewed(self.system)), x)

    def _losses(self, x: Tensor, cost: Cost, y: Tensor) -> tuple[Tensor, Relaxed]:
        self._check_nudges()
        return self.estimator.losses_through(self._on_chip(renewed(self.system)), x, cost, y)

    @property
    def always_settles(self) -> bool:
        """Whether sweeps settle, in one equilibrium, whatever the weights; of a system nobody knows."""
        return False

    @property
    def output_layer(self) -> int:
        """The layer that the block returns, and that errors enter."""
        return self.system.output_layer

    @property
    def label(self) -> str:
        """How errors name this block."""
        return self.name or f"an unnamed {self.system.kind} block"

    def _enter(self, x: Tensor, dims: int) -> Tensor:
        """Check the input, whose first dimensions are of samples, and bring it from autocast's precision to the block's own."""
        check_input(self.label, x)
        x = as_one(x, dims)
        for child in self.children():
            check_edges(child, self.label)
            renewed(child)
        parameter = next(self.parameters(), None)
        own = torch.promote_types(x.dtype, torch.float32) if parameter is None else parameter.dtype
        half = x.dtype in (torch.float16, torch.bfloat16)
        if x.dtype != own and not half:
            raise TypeError(
                f"The input of {self.label} is {x.dtype} but its parameters are {own}: "
                "convert the data or the model so that both are the same."
            )
        x = x.to(own)
        return x if self.chip is None else self.chip.enter(x)

    def _record(self, relaxed: Relaxed, x: Tensor) -> Relaxed:
        if unseen(x):  # nobody can look at it
            return relaxed
        self.residual, self.sweeps = relaxed.residual.detach(), relaxed.sweeps
        # The look waits for the device: it is taken at first, and then now and again.
        now_and_again = self._passes % EVERY == 0
        due = self._passes < FIRST or now_and_again
        elsewhere_due = self._passes in LOOKS or (now_and_again and self._passes > 0)
        self._passes += 1
        watches = self.unsettled == "warn" and not self._warned and self.expects_rest
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
