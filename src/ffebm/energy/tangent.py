"""The tangent of a network at an equilibrium: how it responds to a signal so small that no unit reaches a kink."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor

from ffebm.activation import identity
from ffebm.energy.currents import Currents
from ffebm.energy.energy import Energy
from ffebm.energy.graph import Edge
from ffebm.state import Colours, State, dot

__all__ = ["Response", "Tangent"]
__dir__ = __all__.copy


@final
class Tangent(Energy):
    r"""A quadratic energy of displacements $\delta$, whose minimum without a force is $\delta = 0$.

    $$E = \sum_\ell \frac{c_\ell}{2} \sum_i \frac{\delta_{\ell i}^2}{a_{\ell i}}
    - \sum_{\ell < m} c_m\, \delta_m \cdot W_{\ell m} \delta_\ell$$

    A unit that is clamped has $a = 0$, and stays. No input drives it.

    Args:
        energy: the network.
        edges: its edges at that state, linear and without biases.
        state: where it is at rest.
        respond_: how far a layer gives way there to a current, which it may overwrite, given the input of the network.
    """

    def __init__(
        self, energy: Energy, edges: Sequence[Edge], state: State, respond_: Callable[[Tensor, int, Tensor], Tensor]
    ) -> None:
        super().__init__([identity()] * len(state))
        self.graph = tuple(edges)  # not its own, as little as the rest: nothing of it is trained here
        self.respond_ = respond_
        self._at = state
        self._weights = tuple(energy.layer_weight(layer) for layer in range(len(state)))
        self._colours = energy.colours()

    def forward(self, state: State, x: Tensor) -> Tensor:
        energy = x.new_zeros(len(x))
        for layer, (weight, s) in enumerate(zip(self._weights, state, strict=True)):
            slope = self.respond_(torch.ones_like(s), layer, x)
            energy = energy + weight / 2 * torch.where(slope > 0, s.square() / slope, 0.0).flatten(1).sum(1)
        for pre, post, edge in self.graph:
            energy = energy - self._weights[post] * dot(state[post], edge.up(state[pre]))
        return energy

    def init_state(self, x: Tensor) -> State:
        return tuple(s.new_zeros(()).expand_as(s) for s in self._at)

    def layer_weight(self, layer: int) -> float:
        return self._weights[layer]

    def colours(self) -> Colours:
        return self._colours

    def drive(self, state: State, x: Tensor, layer: int) -> Tensor:
        total = torch.zeros_like(state[layer])
        for pre, post, edge in self.graph:
            if post == layer:
                total = total + edge.up(state[pre])
            if pre == layer:
                total = total + self._weights[post] / self._weights[pre] * edge.down(state[pre], state[post])
        return total

    def minimise(self, layer: int, state: State, x: Tensor, force: Tensor | None = None, omega: float = 1.0) -> Tensor:
        current = self.drive(state, x, layer)
        if force is not None:
            current = current - self.as_current(force, layer)
        return torch.lerp(state[layer], self.respond_(current.clone(), layer, x), omega)

    def session(self, x: Tensor, start: State, *, fresh: bool = False) -> Response:
        return Response(self, start, blank=fresh)


class Response(Currents):
    """`minimise` with the same numbers and less work: a layer that has not moved yet sends nothing."""

    energy: Tangent

    def __init__(self, tangent: Tangent, start: State, *, blank: bool) -> None:
        super().__init__(tangent, tangent.graph, start, blank=blank, biased=False)

    def minimise(self, layer: int, state: State, x: Tensor, force: Tensor | None = None, omega: float = 1.0) -> Tensor:
        current = self.arriving(state, layer)
        if force is not None:
            entering = self.energy.as_current(force, layer)
            current = entering.neg() if current is None else current.sub_(entering)
        if current is None:
            if self._is_zero(state, layer):
                return state[layer]
            current = torch.zeros_like(state[layer])
        current = self.energy.respond_(current, layer, x)
        if omega == 1:
            return current
        if self._is_zero(state, layer):
            return current.mul_(omega)
        return torch.lerp(state[layer], current, omega, out=current)
