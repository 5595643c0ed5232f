"""What a relaxation is given: an energy, its input, the nudge, and where to begin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from ffebm.energy import Energy, Session
from ffebm.errors import block_name
from ffebm.nudge import Nudge
from ffebm.state import State, repeated


@dataclass(frozen=True)
class Problem:
    """An energy to minimise.

    Args:
        start: makes the state to begin with, which then is the relaxation's alone; by default the energy's own.
        copies: how many times the state holds the samples of `x`, one copy after the other, each with a nudge of its own.
        recorded: whether autograd is to follow.
        size: of the output where a nudge begins. Where it is known, no residual is measured: what runs away gets large.
    """

    energy: Energy
    x: Tensor
    nudge: Nudge | None = None
    start: Callable[[], State] | None = None
    copies: int = 1
    recorded: bool = False
    size: Tensor | None = None

    def begin(self) -> State:
        """The state to begin with; raises where it is not one tensor per layer with a sample for each of the input's."""
        state = self.energy.init_state(self.input) if self.start is None else self.start()
        layers, batch = len(self.energy.activations), self.copies * len(self.x)
        if not isinstance(state, tuple) or len(state) != layers or any(s.dim() < 2 or s.shape[0] != batch for s in state):
            got = [tuple(s.shape) for s in state] if isinstance(state, tuple) else type(state).__name__
            raise ValueError(
                f"The state of {block_name()} must be a tuple of {layers} tensors, one per activation, each with the batch of "
                f"{batch} first, got {got}. Check `init_state`, or the `start` given."
            )
        return state

    @cached_property
    def input(self) -> Tensor:
        """The input of every copy."""
        return repeated(self.x, self.copies)

    def prepared(self, start: State) -> Energy | Session:
        """The energy, ready for many sweeps from this state."""
        if self.recorded:
            return self.energy
        return self.energy.session(self.x, start, fresh=self.start is None, copies=self.copies)
