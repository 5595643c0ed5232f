"""Sweeps that move layers, colour by colour, to where their neighbours draw them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Self, get_args

from torch import Tensor

from ffebm.checks import check_choice
from ffebm.energy import Colours, Energy, Session
from ffebm.nudge import Nudge
from ffebm.relaxation.relaxation import Relaxation
from ffebm.rules import Order
from ffebm.state import State

__all__ = ["FixedPoint"]
__dir__ = __all__.copy


@dataclass(frozen=True)
class FixedPoint(Relaxation):
    r"""Sweeps of the fixed-point iteration $s_\ell \leftarrow \sigma_\ell(\partial_\ell \Phi - \beta\, \partial_\ell C)$.

    Args:
        order: which layers move together. `"odd-even"` and `"even-odd"` update half of the layers, then the other half from the
            new values: faster than `"synchronous"`, which moves all layers at once, and without max or soft pooling they
            never raise the energy. `"output-first"` and `"output-last"` are whichever of the two starts or ends with the last
            layer. With skip connections there may be more groups than two, each of layers without an edge between them:
            `"odd-even"` takes them from the input on, `"even-odd"` from the end. `"upward"` moves one layer after the other,
            from the input on, and `"downward"` from the end: a signal crosses the block in a single sweep. In blocks of two
            layers they are the same as `"odd-even"` and `"output-first"`.
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

    def sweep(self, energy: Energy | Session, state: State, x: Tensor, nudge: Nudge | None = None) -> State:
        for colour in _in_turn(energy.colours(), self.order, energy.output_layer):
            moved = list(state)
            for layer in colour:
                force = None if nudge is None else nudge.force(state, layer)
                moved[layer] = energy.minimise(layer, state, x, force, self.omega)
            state = tuple(moved)
        return state

    @property
    def transposed(self) -> Self:
        """The same groups of layers in reverse order.

        Nudged sweeps in the order opposite to the tracked ones give EP(t) = ID(t) at every t.
        """
        return replace(self, order=_REVERSED[self.order])

    def tuned(self, steps: int, omega: float | None = None) -> Self:
        return replace(self, steps=steps, omega=self.omega if omega is None else omega, tolerance=None)

    def crossing(self, layers: int) -> int:
        return 0 if self.order in ("upward", "downward") else super().crossing(layers)

    @property
    def over_relaxes(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.order != "synchronous"


@cache
def _in_turn(colours: Colours, order: Order, output: int) -> Colours:
    """The layers (0-based) that move together, in turn."""
    if order == "synchronous":
        return (tuple(sorted(layer for colour in colours for layer in colour)),)
    if order in ("odd-even", "even-odd"):
        return colours if order == "odd-even" else colours[::-1]
    layers = sum(map(len, colours))
    if order in ("upward", "downward"):
        one_by_one = tuple((layer,) for layer in range(layers))
        return one_by_one if order == "upward" else one_by_one[::-1]
    last = next(colour for colour in colours if output % layers in colour)
    output_last = (*(colour for colour in colours if colour is not last), last)
    return output_last if order == "output-last" else output_last[::-1]


_REVERSED: dict[Order, Order] = {
    "odd-even": "even-odd",
    "even-odd": "odd-even",
    "output-first": "output-last",
    "output-last": "output-first",
    "upward": "downward",
    "downward": "upward",
    "synchronous": "synchronous",
}
