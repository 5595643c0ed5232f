"""What a relaxation is given: an energy, its input, the nudge of every phase, and where to begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ffebm.energy import Energy, Session
from ffebm.errors import block_name
from ffebm.nudge import Nudge
from ffebm.state import State

__all__ = ["Problem"]
__dir__ = __all__.copy


@dataclass(frozen=True)
class Problem:
    """An energy to minimise.

    Args:
        nudges: one for each phase, None for a free one.
        start: the state that all phases begin with; by default the energy's own, which nobody else then holds.
        recorded: whether autograd is to follow.
        size: of the output where nudges begin. Where it is known, no residual is measured: what runs away gets large.
    """

    energy: Energy
    x: Tensor
    nudges: Sequence[Nudge | None] = (None,)
    start: State | None = None
    recorded: bool = False
    size: Tensor | None = None

    @property
    def nudged(self) -> bool:
        """Whether a phase is."""
        return any(nudge is not None for nudge in self.nudges)

    def begin(self) -> State:
        """The state to begin with; raises where it is not one tensor per layer with a sample for each of the input's."""
        state = self.energy.init_state(self.x) if self.start is None else self.start
        layers, batch = len(self.energy.activations), self.x.shape[0]  # `len` would fix it in an exported program
        if not isinstance(state, tuple) or len(state) != layers or any(s.dim() < 2 or s.shape[0] != batch for s in state):
            got = [tuple(s.shape) for s in state] if isinstance(state, tuple) else type(state).__name__
            raise ValueError(
                f"The state of {block_name()} must be a tuple of {layers} tensors, one per activation, each with the batch of "
                f"{batch} first, got {got}. Check `init_state`, or the `start` given."
            )
        return state

    def prepared(self, start: State) -> Energy | Session:
        """The energy, ready for many sweeps from this state."""
        return self.energy if self.recorded else self.energy.session(self.x, start, fresh=self.start is None)
