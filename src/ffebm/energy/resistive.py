"""Deep resistive networks: circuits of resistors, diodes and amplifiers, which settle where they dissipate least."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast, final, get_args

import torch
from torch import Tensor, nn

from ffebm.checks import brief, check_choice, check_type
from ffebm.circuit import Circuit as Drawn, Junction
from ffebm.derivative import input_wanted, wanted
from ffebm.energy.certificate import Certificate
from ffebm.energy.diode import Diode, Ideal
from ffebm.energy.energy import Energy, Session
from ffebm.energy.graph import Edge
from ffebm.energy.kirchhoff import Kirchhoff
from ffebm.energy.layout import Layout
from ffebm.energy.rails import Pattern, Rails
from ffebm.energy.scale import Scale
from ffebm.energy.schematic import schematic
from ffebm.energy.tangent import Tangent
from ffebm.errors import block_name
from ffebm.interaction import Crossbar, Shape
from ffebm.interaction.pair import Pair, mean_and_difference
from ffebm.state import State, dot, per_sample
from ffebm.tracing import numberless

__all__ = ["Gain", "Link", "Resistive"]
__dir__ = __all__.copy

Gain = tuple[float, float]  # of a bidirectional amplifier: of voltages forward, and of currents backward
Source = Literal["current", "voltage"]


class Link(NamedTuple):
    """A crossbar with the layers (0-based) that it lies between, and the amplifiers at its lower end."""

    crossbar: Crossbar
    pre: int  # -1 is the input
    post: int
    forward: float  # A: the crossbar gets the voltages below so many times
    backward: float  # B: the currents that it draws there arrive so many times


@final
class Resistive(Energy):
    r"""A deep resistive network: layers of nodes with crossbars between them, a diode at every hidden node.

    $$E = \sum_\ell c_\ell \Big[ \tfrac12 \sum_{ij} g^\ell_{ij} (A_\ell v^{\ell-1}_i - v^\ell_j)^2 - b^\ell \cdot v^\ell
    + \tfrac12 g_0 \lVert v^\ell \rVert^2 + \text{co-content of diodes} \Big],
    \qquad c_{\ell+1} / c_\ell = B_{\ell+1} / A_{\ell+1}$$

    Its minimum over the voltages is where Kirchhoff's current law holds at every node. It is strictly convex, so there is one.
    The last layer counts $c_L = 1$, so a nudge and a loss there mean what they mean in other blocks.

    Args:
        crossbars: from the input side up.
        input: `"current"`, what enters is led into the first layer as currents, and crossbars lie between layers; or
            `"voltage"`, it is held as voltages below the first crossbar.
        rails: of every layer, or one for all; by default `"half"` of a hidden layer is positive and half negative, and the
            last one is free. See `Rails`.
        gain: (A, B) of the amplifiers between layers, or one for each crossbar between layers. (1, 1) is none. Where B is A
            they are ideal transformers, and where it is 1 voltage buffers; with B towards 0 the net becomes a feedforward one.
        input_gain: of voltages that enter.
        diode: `Ideal()`, `Threshold()` or `Exponential()`.
        leak: a conductance to ground at every node, one for all layers or one for each. By default 1 at the first layer where
            currents enter, which need a way to ground, and 0 elsewhere.
        bounds: between which conductances stay: they are brought back before the first forward pass after each step. The
            lower one is positive, so that no node loses its last connection.
        scale: what a conductance of 1 and a voltage of 1 are in siemens and volts, for diodes, powers and netlists.
    """

    always_settles = True

    def __init__(
        self,
        crossbars: Sequence[Crossbar],
        *,
        input: Source = "current",  # noqa: A002
        rails: Pattern | Rails | Sequence[Pattern | Rails | Sequence[int]] | None = None,
        gain: Gain | Sequence[Gain] = (1.0, 1.0),
        input_gain: float = 1.0,
        diode: Diode = Ideal(),
        leak: float | Sequence[float] | None = None,
        bounds: tuple[float, float] = (1e-6, math.inf),
        scale: Scale = Scale(),
    ) -> None:
        check_choice("input", input, get_args(Source))
        for crossbar in crossbars:
            check_type("crossbars", crossbar, Crossbar, "Conductance(32, 16)")
        check_type("diode", diode, Diode, "Ideal() or Exponential()")
        check_type("scale", scale, Scale, "Scale(siemens=1e-4)")
        held = input == "voltage"
        if held and not crossbars:
            raise ValueError('With input="voltage" the first crossbar leads from the input to the first layer: give one.')
        layers = len(crossbars) + (0 if held else 1)
        if any(crossbar.doubled for crossbar in (crossbars[1:] if held else crossbars)):
            raise ValueError(
                'Only the crossbar that input="voltage" enters by can be doubled: nothing inverts the voltages of other nodes.'
            )
        every = ["half"] * (layers - 1) + ["free"] if rails is None else rails
        kept = [Rails.of(each) for each in _per_layer("rails", every, layers, not isinstance(every, list | tuple))]
        super().__init__([each.activation(diode) for each in kept])
        self.crossbars = nn.ModuleList(crossbars)
        self.input = input
        self.rails = tuple(kept)
        gains = _per_layer("gain", gain, layers - 1, bool(gain) and not isinstance(gain[0], Sequence))
        self.gains: tuple[Gain, ...] = tuple(_checked_gain(each) for each in gains)
        self.input_gain = _positive("input_gain", input_gain)
        self.diode = diode
        self.scale = scale
        leaks = [0.0 if held else 1.0] + [0.0] * (layers - 1) if leak is None else leak
        self.leaks = tuple(_per_layer("leak", leaks, layers, isinstance(leaks, int | float)))
        low, high = bounds
        if not (0 < low < high and math.isfinite(low)):
            raise ValueError(
                f"`bounds` must be 0 < low < high, got {brief(bounds)}: without a least conductance a node can lose its last "
                "connection, and has no voltage then."
            )
        if not (held or self.leaks[0] > 0) or min(self.leaks) < 0 or not all(map(math.isfinite, self.leaks)):
            raise ValueError(
                f"`leak` must not be negative, and positive at the first layer where currents enter, got {brief(leak)}: "
                "what flows in must flow out."
            )
        self.bounds = (float(low), float(high))
        self.confine_()

    @property
    def links(self) -> list[Link]:
        """Every crossbar with what it lies between, from the input side up."""
        crossbars = cast(list[Crossbar], list(self.crossbars))
        gains = [(self.input_gain, 0.0), *self.gains] if self.input == "voltage" else self.gains
        first = -1 if self.input == "voltage" else 0
        return [
            Link(crossbar, pre, pre + 1, forward, backward)
            for pre, (crossbar, (forward, backward)) in enumerate(zip(crossbars, gains, strict=True), first)
        ]

    @property
    def graph(self) -> list[Edge]:
        """The crossbars between layers, with the layers that they lie between."""
        return [Edge(pre, post, crossbar) for crossbar, pre, post, *_ in self.links if pre >= 0]

    def layer_shapes(self, shape: Sequence[int]) -> list[Shape]:
        """The shape of every layer, without the batch, for an input of this shape."""
        shapes: list[Shape] = [tuple(shape)]
        for crossbar in cast(list[Crossbar], list(self.crossbars)):
            shapes.append(crossbar.out_shape(shapes[-1]))
        return shapes[1:] if self.input == "voltage" else shapes

    def leading(self, shape: Sequence[int]) -> int:
        units = [crossbar.units for crossbar in cast(list[Crossbar], list(self.crossbars))[:1]]
        return len(shape) - 1 if units and units[0] == shape[-1] else 1

    def layer_weight(self, layer: int) -> float:
        return math.prod(forward / backward for forward, backward in self.gains[layer % len(self.activations) :])

    def init_state(self, x: Tensor) -> State:
        try:
            shapes = self.layer_shapes(x.shape[1:])
        except ValueError as error:
            raise ValueError(f"An input of shape {tuple(x.shape)} does not fit {block_name()}. {error}") from None
        return tuple(x.new_zeros(()).expand(x.shape[0], *shape) for shape in shapes)

    def forward(self, state: State, x: Tensor) -> Tensor:
        shapes, diode = self.layer_shapes(x.shape[1:]), self.diode_in_units
        energy = x.new_zeros(len(x)) if self.input == "voltage" else -self.layer_weight(0) * dot(state[0], x)
        for crossbar, pre, post, forward, _ in self.links:
            below = forward * (x if pre < 0 else state[pre])
            squares = _half_squares(state[post], crossbar.load_above(tuple(below.shape[1:])))
            squares = squares + _half_squares(below, crossbar.load_below(tuple(below.shape[1:])))
            energy = energy + self.layer_weight(post) * (crossbar(below, state[post]) + squares)
        for layer, (v, shape, leak, rails) in enumerate(zip(state, shapes, self.leaks, self.rails, strict=True)):
            held = diode.content(v, rails.signs(shape, v)).flatten(1).sum(1)
            energy = energy + self.layer_weight(layer) * (held + leak / 2 * v.square().flatten(1).sum(1))
        return energy

    def minimise(self, layer: int, state: State, x: Tensor, force: Tensor | None = None, omega: float = 1.0) -> Tensor:
        return Kirchhoff(self, x).minimise(layer, state, x, force, omega)

    def session(self, x: Tensor, start: State, *, fresh: bool = False) -> Session:
        return Kirchhoff(self, x, start if fresh else ())

    def contrast_gradient(self, high: State, low: State, x: Tensor, weights: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return self._between([mean_and_difference(*layers) for layers in zip(high, low, strict=True)], x, weights)

    def response_gradient(
        self, state: State, moved: State, x: Tensor, weights: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return self._between([Pair(*layers) for layers in zip(state, moved, strict=True)], x, weights)

    def _between(self, pairs: Sequence[Pair], x: Tensor, weights: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """The derivative of the weighted sum of the change of E between two states, by their means and differences."""
        sums: dict[Tensor, Tensor] = {}  # by parameter: a crossbar may lie between several layers
        for crossbar, pre, post, forward, _ in self.links:
            held = pre < 0
            below, moved = (x, None) if held else pairs[pre]
            if forward != 1:
                below, moved = forward * below, None if moved is None else forward * moved
            own, weight = dict(crossbar.named_parameters()), self.layer_weight(post)
            for name, gradient in crossbar.energy_gradient(below, moved, pairs[post], weights).items():
                gradient = gradient if weight == 1 else weight * gradient
                sums[own[name]] = sums[own[name]] + gradient if own[name] in sums else gradient
        parameters = {name: sums[p] if p in sums else torch.zeros_like(p) for name, p in wanted(self).items()}
        change, weight = pairs[0].difference, self.layer_weight(0)
        if not input_wanted():
            return x.new_zeros(()).expand_as(x), parameters
        if self.input == "voltage":
            crossbar, *_, forward, _ = self.links[0]
            change, weight = crossbar.down(x, change), weight * forward
        by = -weight if weights is None else per_sample(-weight * weights, x)
        return by * change, parameters

    @torch.no_grad()
    def tangent(self, state: State) -> Tangent:
        diode, slopes = self.diode_in_units, dict[int, Tensor]()

        def respond_(current: Tensor, layer: int, x: Tensor) -> Tensor:
            if layer not in slopes:
                v, load = state[layer], Kirchhoff(self, x).load(layer, state)
                slopes[layer] = diode.slope(v, load, self.rails[layer].signs(tuple(v.shape[1:]), v))
            return current.mul_(slopes[layer])

        edges = [
            Edge(pre, post, crossbar.with_weight(crossbar.weight if forward == 1 else forward * crossbar.weight))
            for crossbar, pre, post, forward, _ in self.links
            if pre >= 0
        ]
        return Tangent(self, edges, state, respond_)

    @torch.no_grad()
    def confine_(self) -> None:
        low, high = self.bounds
        for crossbar in self.crossbars:
            weight = crossbar._parameters.get("weight", crossbar._parameters.get("weight_orig"))
            if weight is None or numberless(weight):  # computed from others, which see to it
                continue
            least, most = weight.aminmax()
            if not bool((least >= low) & (most <= high)):  # changed only where it must be: autograd may hold it
                weight.clamp_(low, high)

    @torch.no_grad()
    def certified(self, shape: Sequence[int]) -> Certificate:
        """Every node is drawn to a mean of its neighbours' voltages and of fixed ones, so sweeps settle whatever is learnt."""
        start = self.init_state(next(self.parameters(), torch.empty(())).new_zeros(1, *shape))
        if len(start) == 1:
            return Certificate(((0.0,),), ((0,),))
        circuit = Kirchhoff(self, start[0].new_zeros(1, *shape))
        loads = [circuit.load(layer, start) for layer in range(len(start))]
        spans = [[(self.layer_weight(layer) * end).sqrt().item() for end in load.aminmax()] for layer, load in enumerate(loads)]
        gain = circuit.gain(start)
        return Certificate(
            ((0.0, gain), (gain, 0.0)),
            ((0,), (1,)),
            scales=tuple(most for _, most in spans),
            least=tuple(least for least, _ in spans),
            rows=tuple(layer % 2 for layer in range(len(start))),
        )

    @torch.no_grad()
    def power(self, state: State, x: Tensor) -> Tensor:
        """What resistors and diodes dissipate in these voltages, in watts, for every sample, shape (B,)."""
        shapes, diode = self.layer_shapes(x.shape[1:]), self.diode_in_units
        power = x.new_zeros(len(x))
        for crossbar, pre, post, forward, _ in self.links:
            below, plain = forward * (x if pre < 0 else state[pre]), crossbar.without_bias()
            squares = _half_squares(state[post], crossbar.load_above(tuple(below.shape[1:])))
            squares = squares + _half_squares(below, crossbar.load_below(tuple(below.shape[1:])))
            power = power + 2 * (plain(below, state[post]) + squares)
        for v, shape, leak, rails in zip(state, shapes, self.leaks, self.rails, strict=True):
            power = power + leak * v.square().flatten(1).sum(1)
            if not diode.rigid:  # an ideal one has either no voltage or no current
                power = power - dot(v, diode.current(v, rails.signs(shape, v)))
        return power * self.scale.watts

    @property
    def diode_in_units(self) -> Diode:
        """The diode with its numbers in units of the block."""
        return self.diode.in_units(self.scale)

    def circuit(self, shape: Sequence[int], *, ideal: Junction = Junction(ideality=1e-4)) -> Drawn:
        return schematic(self, shape, ideal)

    def layout(self, shape: Sequence[int]) -> Layout:
        below = [tuple(shape), *self.layer_shapes(shape)] if self.input == "voltage" else self.layer_shapes(shape)
        matrices = [crossbar.matrix(size) for (crossbar, *_), size in zip(self.links, below, strict=False)]
        return Layout(tuple(matrix for matrix in matrices if matrix is not None), len(self.colours()))

    def sweep_macs(self, shape: tuple[int, ...]) -> int | None:
        """Those of crossbars between layers, up and down; the product with voltages that are held is made once."""
        shapes = self.layer_shapes(shape)
        ups = [crossbar.macs(shapes[pre]) for crossbar, pre, *_ in self.links if pre >= 0]
        return None if None in ups else 2 * sum(macs for macs in ups if macs is not None)

    def extra_repr(self) -> str:
        gains = "" if set(self.gains) <= {(1.0, 1.0)} else f", gain={self.gains}"
        return f"input={self.input!r}, rails=[{', '.join(map(str, self.rails))}]{gains}, diode={self.diode}"


def _half_squares(v: Tensor, loads: Tensor) -> Tensor:
    return (v.square() * loads).flatten(1).sum(1) / 2


def _per_layer(name: str, value: Any, count: int, single: bool) -> list[Any]:
    values = [value] * count if single else list(value)
    if len(values) != count:
        raise ValueError(f"`{name}` must be one for all, or one for each of {count}, got {len(values)}: {brief(value)}.")
    return values


def _checked_gain(gain: Gain) -> Gain:
    if len(gain) != 2:
        raise ValueError(f"A `gain` is a pair (A, B), forward and backward, got {brief(gain)}: (4, 1) is a voltage buffer.")
    return _positive("gain", gain[0]), _positive("gain", gain[1])


def _positive(name: str, value: float) -> float:
    if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
        raise ValueError(f"`{name}` must be positive and finite, got {brief(value)}.")
    return float(value)
