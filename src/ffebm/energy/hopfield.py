"""Deep Hopfield networks: layers tied to each other both ways, in a chain or in any graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast, final

import torch
from torch import Tensor, nn

from ffebm.activation import Activation, clamp
from ffebm.checks import check_type
from ffebm.derivative import wanted
from ffebm.energy.certificate import Certificate
from ffebm.energy.currents import Currents
from ffebm.energy.energy import Energy, Session
from ffebm.energy.graph import Edge, chain_and_skips, check_reached, colouring, layer_count, layer_shapes
from ffebm.energy.holomorphic import complex_version
from ffebm.energy.tangent import Tangent
from ffebm.errors import block_name
from ffebm.interaction import Interaction, Shape, TwoWay
from ffebm.state import Colours, State, dot, per_sample
from ffebm.twin import with_children

__all__ = ["Hopfield"]
__dir__ = __all__.copy


@final
class Hopfield(Energy):
    r"""A deep Hopfield network: layers, each bidirectionally tied to its neighbours.

    $$E = \sum_\ell c_\ell\, G_\ell(s_\ell) - c_1\, s_1 \cdot x - \sum_{\ell < m} c_m\, s_m \cdot \mathrm{up}_{\ell m}(s_\ell)$$

    In a chain of $L$ layers the edges tie each layer to the next. With no interactions it is a single layer, and the block an
    ordinary activation $s = \sigma(x)$. The bias of a layer belongs to the interaction that ends in it; that of layer 1 to
    whatever computes `x`.

    Args:
        interactions: those in a row tie each layer to the next, from the input side up. An `Edge(pre, post, interaction)` among
            them ties any two layers, counted from 0 or from the end: a skip connection.
        activations: one for all layers, or one per layer.
        feedback: how much of a current comes back, ε: layers move by up + ε · down, because layer ℓ weighs
            $c_\ell = \varepsilon^{\ell - L}$; where an edge spans k layers, by $\varepsilon^k$. 1 is the paper's network.
            Towards 0 it becomes a feedforward net: sweeps settle faster, and equilibrium propagation becomes backprop.

    Paper: appendix A.4 [subsec:details-model], Deep Hopfield Networks
    """

    def __init__(
        self,
        interactions: Sequence[Interaction | Edge] = (),
        activations: Activation | Sequence[Activation] = clamp(0.5),
        *,
        feedback: float = 1.0,
    ) -> None:
        edges = chain_and_skips(interactions)
        if not isinstance(activations, Sequence):
            check_type("activations", activations, Activation, "clamp(0.5), or a list with one for each layer")
            activations = (activations,) * layer_count(edges)
        layers = len(activations)
        if layer_count(edges) > layers or (layer_count(edges) < layers and all(min(edge[:2]) >= 0 for edge in edges)):
            raise ValueError(
                f"{len(edges)} interactions make {layer_count(edges)} layers, got {layers} activations: "
                "give one per layer, or a single one for all."
            )
        if not (math.isfinite(feedback) and feedback > 0):
            raise ValueError(
                f"`feedback` must be positive, got {feedback}: without any, errors have no way back. Use 1 for the paper's "
                "network, and little, such as 0.1, for one that settles fast."
            )
        for edge in edges:
            check_type("interactions", edge.interaction, Interaction, "Dense(32, 16), or an Edge of one")
        super().__init__(activations)
        edges = [edge.among(layers) for edge in edges]
        check_reached(edges, layers)
        self.interactions = nn.ModuleList(edge.interaction for edge in edges)
        self.feedback = float(feedback)
        self._ends = tuple((edge.pre, edge.post) for edge in edges)
        self._colours = colouring(edges, layers)

    @property
    def edges(self) -> list[Interaction]:
        """The interactions alone, in the order that they were given; `graph` says which layers they tie."""
        return cast(list[Interaction], list(self.interactions))

    @property
    def graph(self) -> list[Edge]:
        """The interactions with the layers that they tie."""
        return [Edge(pre, post, edge) for (pre, post), edge in zip(self._ends, self.edges, strict=True)]

    def layer_shapes(self, shape: Sequence[int]) -> list[Shape]:
        """The shape of every layer, without the batch, for an input of this shape."""
        return layer_shapes(self.graph, len(self.activations), tuple(shape))

    def leading(self, shape: Sequence[int]) -> int:
        units = [edge.units for pre, _, edge in self.graph if pre == 0]
        # As `nn.Linear` does, where the last dimension fits: also where an image of one row and channel would be as large.
        return len(shape) - 1 if units and all(size == shape[-1] for size in units) else 1

    def layer_weight(self, layer: int) -> float:
        return self.feedback ** (layer + 1 - len(self.activations))

    def colours(self) -> Colours:
        return self._colours

    def init_state(self, x: Tensor) -> State:
        try:
            shapes = self.layer_shapes(x.shape[1:])
        except ValueError as error:
            raise ValueError(f"An input of shape {tuple(x.shape)} does not fit {block_name()}. {error}") from None
        return tuple(
            activation.sigma(x.new_zeros(())).expand(x.shape[0], *shape)
            for activation, shape in zip(self.activations, shapes, strict=True)
        )

    def drive(self, state: State, x: Tensor, layer: int) -> Tensor:
        graph = self.graph
        currents = [x] if layer == 0 else []
        currents += [edge.up(state[pre]) for pre, post, edge in graph if post == layer]
        for pre, post, edge in graph:
            if pre == layer:
                down = edge.down(state[pre], state[post])
                weight = self.layer_weight(post) / self.layer_weight(pre)
                currents.append(down if weight == 1 else weight * down)
        return sum(currents[1:], start=currents[0])

    def forward(self, state: State, x: Tensor) -> Tensor:
        energy = -self.layer_weight(0) * dot(state[0], x)
        for layer, (activation, s) in enumerate(zip(self.activations, state, strict=True)):
            energy = energy + self.layer_weight(layer) * activation.potential(s).flatten(1).sum(1)
        for pre, post, edge in self.graph:
            energy = energy + self.layer_weight(post) * edge(state[pre], state[post])
        return energy

    def session(self, x: Tensor, start: State, *, fresh: bool = False) -> Session:
        blank = fresh and all(a.slope is not None and a.low <= 0 <= a.high for a in self.activations)  # σ(0) is zero
        return Currents(self, self.graph, start, blank=blank)

    def contrast_gradient(self, high: State, low: State, x: Tensor, weights: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        def of_edge(pre: int, post: int, edge: Interaction) -> dict[str, Tensor]:
            return edge.contrast_gradient((high[pre], high[post]), (low[pre], low[post]), weights)

        return (low[0] - high[0]) * per_sample(weights * self.layer_weight(0), x), self._over_edges(of_edge)

    def response_gradient(
        self, state: State, moved: State, x: Tensor, weights: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        def of_edge(pre: int, post: int, edge: Interaction) -> dict[str, Tensor]:
            return edge.response_gradient((state[pre], state[post]), (moved[pre], moved[post]), weights)

        weight = self.layer_weight(0)
        of_x = moved[0] * -(weight if weights is None else per_sample(weights * weight, x))
        return of_x, self._over_edges(of_edge)

    def _over_edges(self, of_edge: Callable[[int, int, Interaction], dict[str, Tensor]]) -> dict[str, Tensor]:
        """The gradients of all edges, by the names of parameters in the network."""
        sums: dict[Tensor, Tensor] = {}  # by parameter: one may serve several edges
        for pre, post, edge in self.graph:
            own = dict(edge.named_parameters())
            weight = self.layer_weight(post)
            for name, gradient in of_edge(pre, post, edge).items():
                gradient = gradient if weight == 1 else weight * gradient
                sums[own[name]] = sums[own[name]] + gradient if own[name] in sums else gradient
        return {name: sums[p] if p in sums else torch.zeros_like(p) for name, p in wanted(self).items()}

    def ties(self, shape: Sequence[int]) -> list[tuple[Edge, Shape]]:
        shapes = self.layer_shapes(shape)
        return [(edge, shapes[edge.pre]) for edge in self.graph]

    def certificate(self, gains: Sequence[float]) -> Certificate | None:
        slopes = [activation.gain for activation in self.activations]
        if any(slope is None for slope in slopes):
            return None
        couplings = [[0.0] * len(slopes) for _ in slopes]
        for (pre, post), gain in zip(self._ends, gains, strict=True):
            share = math.prod(slope or 0.0 for slope in (slopes[pre], slopes[post]))
            share *= self.layer_weight(post) / self.layer_weight(pre)
            couplings[pre][post] += gain * math.sqrt(share)
            couplings[post][pre] = couplings[pre][post]
        convex = all(edge.linear for edge in self.edges)
        scales = tuple(math.sqrt(self.layer_weight(layer) / (slope or 1.0)) for layer, slope in enumerate(slopes))
        return Certificate(tuple(map(tuple, couplings)), self._colours, convex, scales)

    @torch.no_grad()
    def tangent(self, state: State) -> Tangent:
        latched = self.latched(state)
        bent = next((edge for edge in latched.edges if not edge.linear), None)
        if bent is not None:
            raise TypeError(
                f"{bent} of {block_name()} is curved, and the response to a small signal needs straight edges: use max or "
                "average pooling, or another stencil, for example `Stencil.centered()`."
            )

        def respond_(current: Tensor, layer: int, x: Tensor) -> Tensor:  # noqa: ARG001
            return self.activations[layer].respond_(current, state[layer])

        return Tangent(self, [Edge(pre, post, edge.without_bias()) for pre, post, edge in latched.graph], state, respond_)

    def returning(self, other: Energy) -> Hopfield:
        assert isinstance(other, Hopfield)
        edges = [TwoWay(there, back) for there, back in zip(self.edges, other.edges, strict=True)]
        return with_children(self, interactions=nn.ModuleList(edges))

    @torch.no_grad()
    def latched(self, state: State) -> Hopfield:
        edges = [edge.latched(state[pre]) for pre, _, edge in self.graph]
        if all(edge is before for edge, before in zip(edges, self.edges, strict=True)):
            return self
        return with_children(self, interactions=nn.ModuleList(edges))

    def holomorphic(self) -> Hopfield:
        return complex_version(self, self.edges)

    def sweep_macs(self, shape: tuple[int, ...]) -> int | None:
        shapes = self.layer_shapes(shape)
        ups = [edge.macs(shapes[pre]) for pre, _, edge in self.graph]
        return None if None in ups else 2 * sum(macs for macs in ups if macs is not None)  # each edge up and down

    def extra_repr(self) -> str:
        chain = all(post == pre + 1 for pre, post in self._ends)
        edges = "" if chain else f", edges={list(self._ends)}"
        feedback = "" if self.feedback == 1 else f", feedback={self.feedback:g}"
        return super().extra_repr() + edges + feedback
