"""The fast path: the currents of a Hopfield network while it relaxes and nobody records it."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ffebm.energy.energy import Energy, Session
from ffebm.energy.graph import Edge
from ffebm.interaction import Contact
from ffebm.state import State

__all__ = ["Currents"]
__dir__ = __all__.copy


class Currents(Session):
    """`minimise` for one relaxation, with the same numbers and less work.

    Weights and input stand still during a relaxation, so what one half-sweep computed serves the next:

    - the image that an edge convolved and pooled on the way up, and the pooling's positions, serve its way down;
    - layers that are still at their start send nothing down where that start is zero;
    - and where several phases begin at one state, the currents there are computed once.

    And because no graph remembers them, currents are summed in place.

    Args:
        start: the state that every phase starts from. States are never changed in place, so a layer that is the same tensor
            still is where it was.
        blank: whether that is zero in every layer.
        biased: whether edges send a current up from a layer that is zero.
    """

    def __init__(
        self, energy: Energy, edges: Sequence[Edge], start: State, *, blank: bool = False, biased: bool = True
    ) -> None:
        super().__init__(energy)
        self._into = [[edge for edge in edges if edge.post == layer] for layer in range(len(start))]
        self._out_of = [[edge for edge in edges if edge.pre == layer] for layer in range(len(start))]
        self._start = start
        self._blank = blank
        self._biased = biased
        self._at_start: dict[int, Tensor] = {}  # the current into a layer, while all layers are there
        self._contacts: dict[Edge, MutableMapping[Tensor, Contact]] = {}  # each as long as somebody holds the state below it

    def minimise(self, layer: int, state: State, x: Tensor, force: Tensor | None = None, omega: float = 1.0) -> Tensor:
        current = self.current(state, x, layer)
        if force is not None:
            current.sub_(self.energy.as_current(force, layer))
        return self.energy.activations[layer].step_(current, state[layer], omega)

    def current(self, state: State, x: Tensor, layer: int) -> Tensor:
        """`drive`, in a tensor of its own that the caller may overwrite."""
        begun = [s is start for s, start in zip(state, self._start, strict=True)] if self._start else [False]
        if not any(begun):
            self._start, self._at_start = (), {}  # long past, for other phases too, which sweep in turn: let their memory go
        if self._blank or not all(begun):
            return self._with_input(self.arriving(state, layer), x, layer)
        if layer not in self._at_start:
            self._at_start[layer] = self._with_input(self.arriving(state, layer), x, layer)
        return self._at_start[layer].clone()

    def _with_input(self, total: Tensor | None, x: Tensor, layer: int) -> Tensor:
        if layer == 0:
            return x.clone() if total is None else total.add_(x)
        assert total is not None, "an edge reaches every other layer"
        return total

    def arriving(self, state: State, layer: int) -> Tensor | None:
        """What other layers send, in a tensor of its own; None where nothing is sent."""
        total: Tensor | None = None
        for edge in self._out_of[layer]:
            if not self._is_zero(state, edge.post):
                down = self._contact(edge, state).down(state[edge.post])
                weight = self.energy.layer_weight(edge.post) / self.energy.layer_weight(layer)
                down = down if weight == 1 else down.mul_(weight)
                total = down if total is None else total.add_(down)
        for edge in self._into[layer]:
            if self._biased or not self._is_zero(state, edge.pre):
                up = self._contact(edge, state).up()
                total = up if total is None else total.add_(up)
        return total

    def _is_zero(self, state: State, layer: int) -> bool:
        """Whether a layer is known to be, because it has not moved from there."""
        return self._blank and bool(self._start) and state[layer] is self._start[layer]

    def _contact(self, edge: Edge, state: State) -> Contact:
        pre, known = state[edge.pre], self._contacts.get(edge)
        contact = None if known is None else known.get(pre)
        if contact is None:
            contact = edge.interaction.contact(pre)
            if contact.lasting:
                self._contacts.setdefault(edge, WeakTensorKeyDictionary())[pre] = contact
        return contact
