"""Kirchhoff's current law at every node: a resistive network while it relaxes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ffebm.energy.diode import walls
from ffebm.energy.energy import Session
from ffebm.state import State
from ffebm.tracing import exporting, transforming

if TYPE_CHECKING:
    from ffebm.energy.resistive import Resistive

__all__ = ["Kirchhoff"]
__dir__ = __all__.copy

ITERATIONS, CLOSE = 500, 1e-3  # of `gain`, at most, and how close the two bounds of it are to come


class Kirchhoff(Session):
    """A resistive network while it relaxes: what the input drives, and what loads a node, is known after the first time.

    Args:
        start: the voltages where sweeps begin, if those are zero: nothing flows down from a layer that is still there.
    """

    energy: Resistive

    def __init__(self, energy: Resistive, x: Tensor, start: State = ()) -> None:
        super().__init__(energy)
        self._x = x
        self._start = start
        self._links = energy.links
        self._diode = energy.diode_in_units
        self._loads: dict[int, Tensor] = {}
        self._sides: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        self._entering: Tensor | None = None
        self._in_place = not (torch.is_grad_enabled() or transforming() or exporting())

    def minimise(self, layer: int, state: State, x: Tensor, force: Tensor | None = None, omega: float = 1.0) -> Tensor:
        current = self._current(layer, state)
        if force is not None:
            current = current - self.energy.as_current(force, layer)
        load = self.load(layer, state)
        if layer not in self._sides:
            signs = self.energy.rails[layer].signs(tuple(current.shape[1:]), current)
            self._sides[layer] = signs, *walls(signs, current)
        signs, low, high = self._sides[layer]
        if not self._in_place:
            target = current / load
            if omega != 1:
                # As far beyond, with a conductance as much smaller: whatever the diode, the energy never rises.
                target, load = torch.lerp(state[layer], target, omega), load / omega
            return self._diode.settle(target, load, signs)
        target = current.div_(load)
        if omega != 1:
            torch.lerp(state[layer], target, omega, out=target)
        if not self._diode.rigid:
            return self._diode.settle(target, load / omega, signs)
        return target if self.energy.rails[layer].pattern == "free" else target.clamp_(low, high)

    def load(self, layer: int, state: State) -> Tensor:
        """The conductance that every node of a layer sees."""
        if layer not in self._loads:
            shapes = [tuple(v.shape[1:]) for v in state]
            load: Tensor | None = None
            for crossbar, pre, post, forward, backward in self._links:
                if post == layer:
                    above = crossbar.load_above(shapes[pre] if pre >= 0 else tuple(self._x.shape[1:]))
                    load = above if load is None else load + above
                if pre == layer:
                    below = forward * backward * crossbar.load_below(shapes[pre])
                    load = below if load is None else load + below
            leak = self.energy.leaks[layer]
            self._loads[layer] = state[layer].new_full((1,), leak) if load is None else load + leak if leak else load
        return self._loads[layer]

    def _current(self, layer: int, state: State) -> Tensor:
        """What flows into the nodes of a layer, were they at zero volts."""
        total = self._from_input() if layer == 0 else None
        shared = self._in_place and layer == 0  # what the input drives serves the next sweep
        for crossbar, pre, post, forward, backward in self._links:
            if post == layer and pre >= 0:
                up = crossbar.up(state[pre] if forward == 1 else forward * state[pre])
                total = up if total is None else total + up
            if pre == layer and not (self._start and state[post] is self._start[post]):
                assert total is not None, "the input drives the first layer, and a crossbar every other"
                total = crossbar.with_down(total, state[pre], state[post], backward)
                shared = False
        assert total is not None
        return total.clone() if shared else total

    def _from_input(self) -> Tensor:
        if self._entering is None:
            if self.energy.input == "voltage":
                crossbar, *_, forward, _ = self._links[0]
                self._entering = crossbar.up(self._x if forward == 1 else forward * self._x)
            else:
                self._entering = self._x
        return self._entering

    @torch.no_grad()
    def gain(self, state: State) -> float:
        r"""A bound on how far displacements of the voltages in every second layer carry to the others at most, and close to it.

        That is the largest eigenvalue of a matrix without negative numbers, $H_{ij} = g_{ij} / \sum_k g_{ik}$ with the gains of
        amplifiers. Whatever the numbers $u > 0$, it is at most $\max_i (H u)_i / u_i$, after Collatz and Wielandt.
        """
        layers = [torch.ones_like(v[:1]) for v in state]
        high = state[0].new_full((), torch.inf)
        for _ in range(ITERATIONS):
            before = layers[::2]
            for first in (1, 0):
                for layer in range(first, len(layers), 2):
                    layers[layer] = self._carried(layer, layers)
            ratios = torch.cat([(new / old).flatten() for new, old in zip(layers[::2], before, strict=True)])
            low, high = ratios.aminmax()
            largest = torch.stack([v.amax() for v in layers]).amax()
            layers = [(v / largest).clamp(min=torch.finfo(v.dtype).tiny ** 0.5) for v in layers]
            if bool(high <= (1 + CLOSE) * low):
                break
        return high.sqrt().item()

    def _carried(self, layer: int, voltages: list[Tensor]) -> Tensor:
        """Where the neighbours of a layer draw it when nothing else does."""
        total = torch.zeros_like(voltages[layer])
        for crossbar, pre, post, forward, backward in self._links:
            if post == layer and pre >= 0:
                total = total + forward * crossbar.without_bias().up(voltages[pre])
            if pre == layer:
                total = crossbar.with_down(total, voltages[pre], voltages[post], backward)
        return total / self.load(layer, tuple(voltages))
