"""The fast path: the drives of a Hopfield network while it relaxes and nobody records it."""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor

from ffebm.energy import Hopfield, State
from ffebm.interaction import Convolution, Dense, Interaction, Visit


class Currents:
    """`Hopfield.drive` for one relaxation, with the same numbers and less work.

    Weights and input stand still during a relaxation, so what one half-sweep computed serves the next:

    - the image that an edge convolved and pooled on the way up, and the pooling's positions, serve its way down;
    - layers that are still at their start send nothing down where that start is zero;
    - and where a batch starts as several copies of the same samples, they send the same up, which one copy serves.

    And because no graph remembers them, currents are summed in place. Every call returns a tensor of its own, for the caller to
    overwrite.

    Args:
        start: the state that the relaxation starts from; layers are compared with it by identity.
        blank: whether that is zero in every layer.
        copies: how many times it holds the samples of `x`, one copy of the batch after the other.
    """

    def __init__(self, energy: Hopfield, x: Tensor, start: State, *, blank: bool = False, copies: int = 1) -> None:
        self._edges = energy.edges
        self._x = x
        self._start = start
        self._blank = blank
        self._copies = copies
        self._visited: dict[int, tuple[Tensor, Visit]] = {}  # by edge: the state below it, and what it gave

    def __call__(self, state: State, layer: int) -> Tensor:
        if self._start and not any(s is begun for s, begun in zip(state, self._start, strict=True)):
            self._start = ()  # long past: let its memory go
        down = self._down(state, layer)
        if layer == 0:
            if down is None:
                return torch.cat([self._x] * self._copies)
            down.unflatten(0, (self._copies, -1)).add_(self._x)
            return down
        up = self._up(state, layer - 1)
        return up if down is None else down.add_(up)

    def _up(self, state: State, index: int) -> Tensor:
        edge, pre = self._edges[index], state[index]
        if _pools(edge):
            return self._visit(index, edge, pre).pooled.clone()  # the visit is kept
        if self._copies > 1 and self._begins(state, index):
            return torch.cat([edge.up(pre[: len(pre) // self._copies])] * self._copies)
        return _own(edge, edge.up(pre))

    def _down(self, state: State, layer: int) -> Tensor | None:
        if layer == len(self._edges) or (self._blank and self._begins(state, layer + 1)):
            return None
        edge, pre, post = self._edges[layer], state[layer], state[layer + 1]
        if _pools(edge):
            return edge.down(pre, post, self._visit(layer, edge, pre))
        return _own(edge, edge.down(pre, post))

    def _begins(self, state: State, layer: int) -> bool:
        """Whether a layer still is where it started."""
        return bool(self._start) and state[layer] is self._start[layer]

    def _visit(self, index: int, edge: Convolution, pre: Tensor) -> Visit:
        seen = self._visited.get(index)
        if seen is None or seen[0] is not pre:
            seen = self._visited[index] = (pre, edge.visit(pre))
        return seen[1]


def _pools(edge: Interaction) -> TypeGuard[Convolution]:
    return isinstance(edge, Convolution) and edge.pool is not None


def _own(edge: Interaction, current: Tensor) -> Tensor:
    """A current that may be overwritten. An interaction of somebody else's may return its argument, or a buffer."""
    return current if isinstance(edge, Dense | Convolution) else current.clone()
