"""The fast path: the currents of a Hopfield network while it relaxes and nobody records it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from ffebm.energy.energy import Energy, Session
from ffebm.energy.graph import Edge
from ffebm.interaction import Contact
from ffebm.state import State


class Currents(Session):
    """`minimise` for one relaxation, with the same numbers and less work.

    Weights and input stand still during a relaxation, so what one half-sweep computed serves the next:

    - the image that an edge convolved and pooled on the way up, and the pooling's positions, serve its way down;
    - layers that are still at their start send nothing down where that start is zero;
    - and where a batch starts as several copies of the same samples, they send the same up, which one copy serves.

    And because no graph remembers them, currents are summed in place.

    Args:
        start: the state that the relaxation starts from. States are never changed in place, so a layer that is the same tensor
            still is where it was.
        blank: whether that is zero in every layer.
        copies: how many times it holds the same samples, one copy of the batch after the other.
    """

    takes_input_once: ClassVar[bool] = True

    def __init__(self, energy: Energy, edges: Sequence[Edge], start: State, *, blank: bool, copies: int) -> None:
        super().__init__(energy)
        self._into = [[edge for edge in edges if edge.post == layer] for layer in range(len(start))]
        self._out_of = [[edge for edge in edges if edge.pre == layer] for layer in range(len(start))]
        self._start = start
        self._blank = blank
        self._copies = copies
        self._contacts: dict[Edge, Contact] = {}  # that remember

    def minimise(self, layer: int, state: State, x: Tensor, force: Tensor | None = None, omega: float = 1.0) -> Tensor:
        current = self.current(state, x, layer)
        if force is not None:
            current.sub_(self.energy.as_current(force, layer))
        return self.energy.activations[layer].step_(current, state[layer], omega)

    def current(self, state: State, x: Tensor, layer: int) -> Tensor:
        """`drive`, in a tensor of its own that the caller may overwrite."""
        if self._start and not any(s is begun for s, begun in zip(state, self._start, strict=True)):
            self._start = ()  # long past: let its memory go
        total: Tensor | None = None
        for edge in self._out_of[layer]:
            if not (self._blank and self._begins(state, edge.post)):
                down = self._contact(edge, state).down(state[edge.post])
                weight = self.energy.layer_weight(edge.post) / self.energy.layer_weight(layer)
                down = down if weight == 1 else down.mul_(weight)
                total = down if total is None else total.add_(down)
        for edge in self._into[layer]:
            up = self._contact(edge, state).up(self._copies if self._begins(state, edge.pre) else 1)
            total = up if total is None else total.add_(up)
        if layer == 0:
            each = len(state[0]) // len(x)  # 1, or as many copies as the input stands for
            if total is None:
                return torch.cat([x] * each)
            total.unflatten(0, (each, -1)).add_(x)
        assert total is not None, "an edge reaches every other layer"
        return total

    def _begins(self, state: State, layer: int) -> bool:
        """Whether a layer still is where it started."""
        return bool(self._start) and state[layer] is self._start[layer]

    def _contact(self, edge: Edge, state: State) -> Contact:
        contact = self._contacts.get(edge)
        if contact is None or contact.pre is not state[edge.pre]:
            contact = edge.interaction.contact(state[edge.pre])
            if contact.remembers:
                self._contacts[edge] = contact
        return contact
