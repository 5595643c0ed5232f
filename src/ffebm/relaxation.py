"""Relaxations: how a block finds the minimum of its energy."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn, get_args

import torch
from torch import Tensor

from ffebm.checks import check_choice, check_size
from ffebm.currents import Currents
from ffebm.energy import Energy, Hopfield, State
from ffebm.errors import DivergenceError
from ffebm.iteration import Observer, Relaxed, Sweep, change, iterate
from ffebm.nudge import Nudge
from ffebm.portions import portions
from ffebm.rules import Order as Order  # so that others may import it from here

RUNAWAY = 10  # sweeps that move units by this many times what the first did, and ever more, will not come back
STANDSTILL = 4  # units of rounding: a sweep that moves no unit by more has nothing left to do


@dataclass(frozen=True)
class Relaxation(ABC):
    """A map from state to state, one sweep, repeated a fixed number of times or until it changes nothing.

    Args:
        steps: the number of sweeps, or their maximum when there is a tolerance. Without one, a free relaxation that nobody
            records or observes skips those of its sweeps that would change nothing but rounding.
        tolerance: a sample is left as it is once no unit of it moves by more than this in a sweep. Each sample stops
            on its own, so the result never depends on which others share its batch.
    """

    steps: int = 20
    tolerance: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_size("steps", self.steps)
        if self.tolerance is not None and not (math.isfinite(self.tolerance) and self.tolerance > 0):
            raise ValueError(f"`tolerance` must be positive, got {self.tolerance}; use None for a fixed number of sweeps.")

    @abstractmethod
    def sweep(self, energy: Energy, state: State, x: Tensor, nudge: Nudge | None = None) -> State:
        """One sweep over all layers. Differentiable where gradients are tracked; never changes `state` in place."""

    @property
    @abstractmethod
    def transposed(self) -> Relaxation:
        """The relaxation whose sweep backpropagation through this one performs."""

    def __call__(
        self,
        energy: Energy,
        x: Tensor,
        *,
        start: State | None = None,
        nudge: Nudge | None = None,
        observer: Observer | None = None,
        copies: int = 1,
    ) -> Relaxed:
        """Relax from `start` (default: the energy's own), tilted by `nudge`; `observer` sees every state on the way.

        Args:
            copies: relax every sample this many times, each copy under its own part of `nudge`, one copy of the batch after the
                other. What copies have in common before a nudge parts them is computed once, and all copies of a sample stop
                together: only if both nudged phases of a contrast made as many sweeps does what the free phase left unsettled
                cancel. The residual of a fixed number of sweeps is then that of the last layer.
        """
        check_input(energy, x)
        if start is not None:
            check_state(energy, start, x)
        if torch.is_grad_enabled() and any(t.requires_grad for t in (x, *energy.parameters(), *(start or ()))):
            return self._relax(energy, x, start, nudge, observer, copies, recorded=True)
        parts = [slice(None)]
        if observer is None and copies == 1:
            sample = (x[:1], *(energy.init_state(x[:1]) if start is None else (s[:1] for s in start)))
            parts = portions(len(x), sample)
        nudges = [None if nudge is None else nudge.part(part) for part in parts]
        if len(parts) == 1 or (nudge is not None and None in nudges):
            return self._relax(energy, x, start, nudge, observer, copies)
        starts = [None if start is None else tuple(s[part] for s in start) for part in parts]
        pieces = [self._relax(energy, x[part], begin, tilt) for part, begin, tilt in zip(parts, starts, nudges, strict=True)]
        return _joined(pieces)

    def unrecorded(
        self, energy: Energy, x: Tensor, start: State, nudge: Nudge | None = None, *, fresh: bool = False, copies: int = 1
    ) -> Sweep:
        """`sweep` as a function of the state alone, for many sweeps that no graph records; here a subclass prepares for them.

        Args:
            start: the state that the first sweep is going to get, all copies of it.
            fresh: whether that is the energy's own.
            copies: how many times that state, and those to come, hold the samples of `x`.
        """
        x = repeated(x, copies)
        return lambda state: self.sweep(energy, state, x, nudge)

    def _relax(
        self,
        energy: Energy,
        x: Tensor,
        start: State | None,
        nudge: Nudge | None,
        observer: Observer | None = None,
        copies: int = 1,
        *,
        recorded: bool = False,
    ) -> Relaxed:
        def begin() -> State:
            state = energy.init_state(x) if start is None else start
            check_state(energy, state, x)
            return tuple(repeated(s, copies) for s in state)

        state = begin()
        if recorded:
            sweep = Relaxation.unrecorded(self, energy, x, state, nudge, copies=copies)
        else:
            sweep = self.unrecorded(energy, x, state, nudge, fresh=start is None, copies=copies)
        held = [state]
        del state  # the loop alone holds it, and lets it go when it moves on
        # A nudge may move units by so little that rounding hides it while they still are on their way.
        unwatched = nudge is None and observer is None and not recorded and self.tolerance is None
        standstill = STANDSTILL * torch.finfo(x.dtype).eps if unwatched and x.dtype in (torch.float32, torch.float64) else None
        relaxed = iterate(sweep, held.pop(), self.steps, self.tolerance, observer, copies, standstill=standstill)
        # Clamped units move by 1 at most, and settling ones by less and less. NaN fails the comparison too.
        if not bool((relaxed.residual <= 1).all()):  # the only wait for the device
            self._explain(energy, repeated(x, copies), begin(), nudge)
        return relaxed

    @torch.no_grad()
    def _explain(self, energy: Energy, x: Tensor, start: State, nudge: Nudge | None) -> None:
        """Replay a suspicious relaxation, sweep by sweep, and raise unless large numbers are simply its scale."""
        for name, tensor in (("input", x), *energy.named_parameters()):
            if not bool(tensor.isfinite().all()):
                self._refuse(energy, name, tensor)
        state, residuals = start, [0.0]
        for sweep in range(1, self.steps + 1):
            previous, state = state, self.sweep(energy, state, x, nudge)
            residuals.append(change(state, previous).max().item())
            if not math.isfinite(residuals[-1]):
                raise DivergenceError(energy.label, sweep, residuals[-1], ADVICE)
        growing = residuals[-3:] == sorted(residuals[-3:])
        if growing and residuals[-1] > RUNAWAY * max(1.0, residuals[1]):
            raise DivergenceError(energy.label, self.steps, residuals[-1], ADVICE)

    @staticmethod
    def _refuse(energy: Energy, name: str, tensor: Tensor) -> NoReturn:
        bad = int((~tensor.isfinite()).sum())
        raise ValueError(
            f"The {name} of {energy.label} has {bad} non-finite values among {tensor.numel()}: nothing can relax from that. "
            "Look for NaN in the data, or for a learning rate that blew up the layer before."
        )


ADVICE = (
    "The weights inside the block are too large for its activations: lower their initial scale or the learning rate, "
    "clamp the output layer, or use a smaller slope."
)


@dataclass(frozen=True)
class FixedPoint(Relaxation):
    r"""Sweeps of the fixed-point iteration $s_\ell \leftarrow \sigma_\ell(\partial_\ell \Phi - \beta\, \partial_\ell C)$.

    Args:
        order: which layers move together. `"odd-even"` and `"even-odd"` update half of the layers, then the other half from the
            new values: faster than `"synchronous"`, which moves all layers at once, and without max or soft pooling they
            never raise the energy. `"output-first"` and `"output-last"` are whichever of the two starts or ends with the last
            layer.
        omega: how far a layer goes towards where it is drawn: 1 is all the way, and more (projected over-relaxation) settles
            in fewer sweeps where layers pull each other slowly.

    Paper: Eq. [eq:fixed-point-iteration], Alg. [alg:asynchronous], Alg. [alg:asynchronous-last-block]
    """

    order: Order = field(default="odd-even", kw_only=True)
    omega: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("order", self.order, get_args(Order))
        if not 0 < self.omega < 2:
            raise ValueError(
                f"`omega` must lie between 0 and 2, got {self.omega}: beyond, sweeps run away. Use 1 for plain sweeps, "
                "a little more to settle in fewer, less to calm a block that flips back and forth."
            )

    def sweep(self, energy: Energy, state: State, x: Tensor, nudge: Nudge | None = None) -> State:
        return self._sweep(energy, lambda state, layer: energy.drive(state, x, layer), state, nudge)

    def unrecorded(
        self, energy: Energy, x: Tensor, start: State, nudge: Nudge | None = None, *, fresh: bool = False, copies: int = 1
    ) -> Sweep:
        if not isinstance(energy, Hopfield) or type(self).sweep is not FixedPoint.sweep:
            return super().unrecorded(energy, x, start, nudge, copies=copies)
        currents = Currents(energy, x, start, blank=fresh and energy.starts_blank, copies=copies)
        return lambda state: self._sweep(energy, currents, state, nudge, overwrite=True)

    @property
    def transposed(self) -> FixedPoint:
        """The same half-sweeps in reverse order.

        Nudged sweeps in the order opposite to the tracked ones give EP(t) = ID(t) at every t.
        """
        return replace(self, order=_REVERSED[self.order])

    def _groups(self, layers: int) -> tuple[range, ...]:
        """The layers (0-based) that move together, in turn."""
        if self.order == "synchronous":
            return (range(layers),)
        odd, even = range(0, layers, 2), range(1, layers, 2)  # the paper counts layers from 1
        output_is_odd = layers % 2 == 1
        odd_first = {
            "odd-even": True,
            "even-odd": False,
            "output-first": output_is_odd,
            "output-last": not output_is_odd,
        }[self.order]
        groups = (odd, even) if odd_first else (even, odd)
        return tuple(group for group in groups if group)

    def _sweep(
        self,
        energy: Energy,
        drive: Callable[[State, int], Tensor],
        state: State,
        nudge: Nudge | None,
        *,
        overwrite: bool = False,
    ) -> State:
        """One sweep from the currents that `drive` gives; `overwrite` says that those are ours to overwrite."""
        for group in self._groups(len(state)):
            moved = list(state)
            for layer in group:
                current = drive(state, layer)
                force = None if nudge is None else nudge.force(state, layer)
                if force is not None:
                    current = current.sub_(force) if overwrite else current - force
                activation = energy.activations[layer]
                step = activation.step_ if overwrite else activation.step
                moved[layer] = step(current, state[layer], self.omega)
            state = tuple(moved)
        return state


_REVERSED: dict[Order, Order] = {
    "odd-even": "even-odd",
    "even-odd": "odd-even",
    "output-first": "output-last",
    "output-last": "output-first",
    "synchronous": "synchronous",
}


def repeated(tensor: Tensor, copies: int) -> Tensor:
    """The batch as many times, one after the other."""
    return tensor if copies == 1 else torch.cat([tensor] * copies)


def _joined(pieces: Sequence[Relaxed]) -> Relaxed:
    states, residuals, sweeps = zip(*pieces, strict=True)
    return Relaxed(tuple(torch.cat(layer) for layer in zip(*states, strict=True)), torch.cat(residuals), torch.cat(sweeps))


def check_tensor(what: str, value: object) -> None:
    """Refuse arrays and lists: most of what they lack would only show far from here."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{what} must be a tensor, got a {type(value).__name__}: convert it by `torch.as_tensor`.")


def check_input(energy: Energy, x: Tensor) -> None:
    """Refuse an input that has no batch of samples."""
    check_tensor(f"The input of {energy.label}", x)
    if x.dim() < 2 or x.numel() == 0:
        raise ValueError(
            f"The input of {energy.label} must have shape (batch, ...) with at least one sample and one unit, "
            f"got {tuple(x.shape)}. Add a batch dimension to a single sample, and skip empty batches."
        )
    if not x.is_floating_point():
        raise TypeError(f"The input of {energy.label} must be floating point, got {x.dtype}: convert it by `x.float()`.")


def check_state(energy: Energy, state: State, x: Tensor) -> None:
    """Refuse a state that is not one tensor per layer with a sample for each of the input's."""
    layers, batch = len(energy.activations), x.shape[0]
    if not isinstance(state, tuple) or len(state) != layers or any(s.dim() < 2 or s.shape[0] != batch for s in state):
        got = [tuple(s.shape) for s in state] if isinstance(state, tuple) else type(state).__name__
        raise ValueError(
            f"The state of {energy.label} must be a tuple of {layers} tensors, one per activation, each with the batch of "
            f"{batch} first, got {got}. Check `init_state`, or the `start` given."
        )
