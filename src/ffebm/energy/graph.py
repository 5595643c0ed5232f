"""Which layers of a network are tied to which, and what follows: their shapes, and those that may move together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from ffebm.interaction import Interaction, Shape
from ffebm.state import Colours

__all__ = ["Edge", "chain_and_skips", "check_reached", "colouring", "layer_count", "layer_shapes"]
__dir__ = __all__.copy


class Edge(NamedTuple):
    """An interaction between two layers, counted from 0; negative numbers count from the last layer.

    The current it sends up goes from `pre` to `post`. Both ends feel it.
    """

    pre: int
    post: int
    interaction: Interaction

    def among(self, layers: int) -> Edge:
        """The same with both ends counted from 0; raises where a network of so many layers has no such ends."""
        pre, post = (end + layers if end < 0 else end for end in self[:2])
        if not 0 <= pre < post < layers:
            raise ValueError(
                f"Edge({self.pre}, {self.post}, …) must go from a lower to a higher of {layers} layers, counted from 0 or, "
                "negative, from the end. An edge acts both ways: swap its ends, and give the interaction that goes up. Where "
                "edges count from the end, give one activation per layer."
            )
        return Edge(pre, post, self.interaction)


def chain_and_skips(parts: Sequence[Interaction | Edge]) -> list[Edge]:
    """Interactions in a row tie each layer to the next; edges among them tie the layers that they name."""
    links = count()
    return [part if isinstance(part, Edge) else Edge(link := next(links), link + 1, part) for part in parts]


def layer_count(edges: Sequence[Edge]) -> int:
    """As many layers as the highest number names, where numbers count from 0."""
    return 1 + max((max(edge.pre, edge.post) for edge in edges), default=0)


def check_reached(edges: Sequence[Edge], layers: int) -> None:
    """Refuse a layer that no edge reaches from below: its shape would not be known, and nothing would drive it."""
    alone = set(range(1, layers)) - {edge.post for edge in edges}
    if alone:
        raise ValueError(
            f"No edge reaches layer {min(alone)} of {layers} (counted from 0) from below: add one, or leave its activation out."
        )


def colouring(edges: Sequence[Edge], layers: int) -> Colours:
    """Layers without an edge between them, as few groups as come from giving each layer the first colour it may have.

    A chain has two: the odd and the even layers.
    """
    colours: list[list[int]] = []
    for layer in range(layers):
        below = {edge.pre for edge in edges if edge.post == layer}
        free = next((colour for colour in colours if not below & set(colour)), None)
        if free is None:
            colours.append(free := [])
        free.append(layer)
    return tuple(map(tuple, colours))


def layer_shapes(edges: Sequence[Edge], layers: int, shape: Shape) -> list[Shape]:
    """The shape of every layer, without the batch, for an input of this shape; all edges into a layer must agree."""
    shapes: list[Shape] = [shape]
    for layer in range(1, layers):
        found = [(edge, edge.interaction.out_shape(shapes[edge.pre])) for edge in edges if edge.post == layer]
        (first, reached), *others = found
        for other, differs in others:
            if differs != reached:
                raise ValueError(
                    f"Layer {layer} (counted from 0) gets {reached} from layer {first.pre} and {differs} from layer "
                    f"{other.pre}: choose channels, strides and pooling so that both edges end in the same shape."
                )
        shapes.append(reached)
    return shapes
