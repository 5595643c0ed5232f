"""Systems: what an estimator may ask of an analog block, simulated or real."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from ffebm.checks import check_type
from ffebm.derivative import Gradients
from ffebm.energy import Energy, Layout
from ffebm.nudge import Nudge, Strength
from ffebm.portions import portions
from ffebm.relaxation import PhasesObserver, Relaxation, Relaxed
from ffebm.relaxation.problem import Problem
from ffebm.state import Deltas, State, largest
from ffebm.twin import with_children

__all__ = ["Phase", "Simulated", "System", "SystemWrapper"]
__dir__ = __all__.copy


class Phase(NamedTuple):
    """What a block settles under: the force of a nudge, times a strength; by default freely."""

    nudge: Nudge | None = None
    strength: Strength = 0.0

    @property
    def tilt(self) -> Nudge | None:
        """The nudge at its strength, if there is one: ask it for the `force` on a layer."""
        return None if self.nudge is None else self.nudge.at(self.strength)


FREE = Phase()


class System(nn.Module, ABC):
    """An analog block as estimators see it: it settles in phases, and contrasts what was read at their ends.

    Simulations, circuits and chips are systems; so is a wrapper that quantises or disturbs another one.
    """

    output_layer: int = -1  # that the block returns, and that errors enter
    faintest: float = 1.0  # how much less than an output the layer moves that a nudge there moves least, by its weight
    kind: str  # what errors call a block of it that has no name

    def __init_subclass__(cls) -> None:
        cls.kind = vars(cls).get("kind", cls.__name__)

    @abstractmethod
    def settle(
        self,
        x: Tensor,
        phases: Sequence[Phase],
        *,
        start: State | None = None,
        relax: Relaxation | None = None,
        observer: PhasesObserver | None = None,
    ) -> list[Relaxed]:
        """What is read at the end of each phase, all of which begin at `start`.

        Args:
            start: by default wherever the system begins.
            relax: how a simulation is to get there, where that is not its own way; physics has its own.
            observer: sees the states of all phases, before the first sweep and after each; not every system can be watched.
        """

    @abstractmethod
    def contrast(self, high: State, low: State, x: Tensor, weights: Tensor) -> Gradients:
        r"""The derivative of $\sum_b w_b (E_b(high) - E_b(low))$ to `x` and to the parameters, by their names in the system."""

    @property
    def own_way(self) -> Relaxation | None:
        """How it gets there where nobody says how: a simulation's relaxation. Physics has no sweeps."""
        return None

    def layer_weight(self, layer: int) -> float:
        """How much a layer counts: a force on it is by so much more than the current that it makes."""
        return 1.0

    def returning(self, other: System) -> System:
        """The system whose currents up are its own, and whose currents back are those of `other`, one like it."""
        raise TypeError(
            f'{type(self).__name__} uses the same devices both ways, so they cannot differ: give mismatch `crossbars="shared"`.'
        )

    def confine_(self) -> None:
        """Bring parameters back, in place, that a step took where they must not be, as an energy does."""

    def latched(self, state: State) -> System:
        """The system with those choices fixed that it makes at `state`, as max-pooling does; itself, where it makes none."""
        return self

    def holomorphic(self) -> Self:
        """The system in complex numbers."""
        raise TypeError(
            f"{type(self).__name__} settles under real nudges only: use another stencil, for example `Stencil.centered()`."
        )

    def tangent(self, state: State) -> System:
        """The system of small displacements from `state`, to first order: what is read are displacements."""
        raise TypeError(
            f"{type(self).__name__} is known by its readings alone, not by its tangent: use another stencil, for example "
            "`Stencil.centered()`."
        )

    def response(self, state: State, moved: State, x: Tensor) -> Gradients:
        """`contrast` of two states on both sides of `state`, as far apart as `moved`, summed over the samples."""
        pairs = [(s + step / 2, s - step / 2) for s, step in zip(state, moved, strict=True)]
        return self.contrast(tuple(high for high, _ in pairs), tuple(low for _, low in pairs), x, x.new_ones(len(x)))

    def arriving(self, state: State, deltas: Deltas) -> Deltas:
        """Errors at a state that was read, as far as they have to do with what is behind the reading; by default all."""
        return deltas

    def portions(self, x: Tensor, state: State, phases: int) -> list[slice]:
        """How a batch is best cut before it goes through so many nudged phases; by default not at all."""
        return [slice(0, len(x))]

    def start(self, x: Tensor) -> State:
        """A state like those it settles in."""
        return self.settle(x, [FREE])[0].state

    def sweep_macs(self, shape: tuple[int, ...]) -> int | None:
        """Multiply-accumulates of one sweep for one sample with an input of this shape, or None where not known."""
        return None

    def layout(self, shape: Sequence[int]) -> Layout | None:
        """The matrices that crossbars hold for an input of this shape, or None where not known."""
        return None


class SystemWrapper(System):
    """Another system, a part of which a subclass changes: readings, for example."""

    def __init__(self, system: System) -> None:
        super().__init__()
        check_type("system", system, System, "Simulated(Hopfield([Dense(32, 16)]), FixedPoint(20))")
        self.system = system
        self.output_layer = system.output_layer
        self.faintest = system.faintest
        self.kind = f"{type(self).__name__} {system.kind}"

    def settle(self, x: Tensor, phases: Sequence[Phase], **how: Any) -> list[Relaxed]:
        return self.system.settle(x, phases, **how)

    def contrast(self, high: State, low: State, x: Tensor, weights: Tensor) -> Gradients:
        return self.system.contrast(high, low, x, weights).renamed("", "system.")

    @property
    def own_way(self) -> Relaxation | None:
        return self.system.own_way

    def layer_weight(self, layer: int) -> float:
        return self.system.layer_weight(layer)

    def returning(self, other: System) -> Self:
        assert isinstance(other, SystemWrapper)
        return with_children(self, system=self.system.returning(other.system))

    def confine_(self) -> None:
        self.system.confine_()

    def latched(self, state: State) -> Self:
        return with_children(self, system=self.system.latched(state))

    def holomorphic(self) -> Self:
        return with_children(self, system=self.system.holomorphic())

    def arriving(self, state: State, deltas: Deltas) -> Deltas:
        return self.system.arriving(state, deltas)

    def portions(self, x: Tensor, state: State, phases: int) -> list[slice]:
        return self.system.portions(x, state, phases)

    def start(self, x: Tensor) -> State:
        return self.system.start(x)

    def sweep_macs(self, shape: tuple[int, ...]) -> int | None:
        return self.system.sweep_macs(shape)

    def layout(self, shape: Sequence[int]) -> Layout | None:
        return self.system.layout(shape)


class Simulated(System):
    """An energy that a relaxation minimises.

    A batch larger than the processor's cache relaxes portion by portion where it begins afresh;
    what begins at a state is cut by whoever holds that, into `portions`.
    """

    def __init__(self, energy: Energy, relax: Relaxation) -> None:
        super().__init__()
        check_type("energy", energy, Energy, "Hopfield([Dense(32, 16)])")
        check_type("relax", relax, Relaxation, "FixedPoint(20)")
        self.energy = energy
        self.relax = relax
        self.output_layer = energy.output_layer
        self.faintest = min(1.0, *(1 / energy.layer_weight(layer) for layer in range(len(energy.activations))))
        self.kind = type(energy).__name__

    @torch.no_grad()
    def settle(
        self,
        x: Tensor,
        phases: Sequence[Phase],
        *,
        start: State | None = None,
        relax: Relaxation | None = None,
        observer: PhasesObserver | None = None,
    ) -> list[Relaxed]:
        relax = self.relax if relax is None else relax
        whole = Problem(self.energy, x, [phase.tilt for phase in phases], start)
        if start is None and observer is None and not whole.nudged:
            parts = self.portions(x, self.energy.init_state(x[:1]), len(phases))
            pieces = [relax.settle(replace(whole, x=x[part])) for part in parts]
            return pieces[0] if len(pieces) == 1 else [_joined(readings) for readings in zip(*pieces, strict=True)]
        if start is not None and whole.nudged and relax.tolerance is None:
            whole = replace(whole, size=largest(start[self.output_layer]))
        return relax.settle(whole, observer)

    def contrast(self, high: State, low: State, x: Tensor, weights: Tensor) -> Gradients:
        return Gradients(*self.energy.contrast_gradient(high, low, x, weights)).renamed("", "energy.")

    def response(self, state: State, moved: State, x: Tensor) -> Gradients:
        return Gradients(*self.energy.response_gradient(state, moved, x)).renamed("", "energy.")

    def tangent(self, state: State) -> Simulated:
        return _Tangent(self.energy.tangent(state), self.relax)

    @property
    def own_way(self) -> Relaxation:
        return self.relax

    def layer_weight(self, layer: int) -> float:
        return self.energy.layer_weight(layer)

    def returning(self, other: System) -> Simulated:
        assert isinstance(other, Simulated)
        return with_children(self, energy=self.energy.returning(other.energy))

    def confine_(self) -> None:
        self.energy.confine_()

    def latched(self, state: State) -> Simulated:
        energy = self.energy.latched(state)
        return self if energy is self.energy else _Latched(energy, self.relax)

    def holomorphic(self) -> Self:
        return with_children(self, energy=self.energy.holomorphic())

    def portions(self, x: Tensor, state: State, phases: int) -> list[slice]:
        return portions(len(x), (x[:1], *(s[:1] for s in state)) * phases)

    def start(self, x: Tensor) -> State:
        return self.energy.init_state(x)

    def sweep_macs(self, shape: tuple[int, ...]) -> int | None:
        return self.energy.sweep_macs(shape)

    def layout(self, shape: Sequence[int]) -> Layout | None:
        return self.energy.layout(shape)


class _Latched(Simulated):
    """Choices are latched for a whole batch, which is not cut."""

    portions = System.portions


class _Tangent(Simulated):
    """Displacements, which begin at zero and are in proportion to what enters: nobody needs to measure what they leave."""

    @torch.no_grad()
    def settle(
        self,
        x: Tensor,
        phases: Sequence[Phase],
        *,
        start: State | None = None,
        relax: Relaxation | None = None,
        observer: PhasesObserver | None = None,
    ) -> list[Relaxed]:
        nudges = [phase.tilt for phase in phases]
        begin = self.energy.init_state(x) if start is None else start
        forces = [None if nudge is None else nudge.force(begin, self.output_layer) for nudge in nudges]
        entering = [largest(force) for force in forces if force is not None]
        problem = Problem(self.energy, x, nudges, start, size=torch.stack(entering).amax() if entering else x.new_ones(()))
        return (self.relax if relax is None else relax).settle(problem, observer)


def _joined(pieces: Sequence[Relaxed]) -> Relaxed:
    states, residuals, sweeps = zip(*pieces, strict=True)
    return Relaxed(tuple(torch.cat(layer) for layer in zip(*states, strict=True)), torch.cat(residuals), torch.cat(sweeps))
