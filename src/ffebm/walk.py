"""The walk along a chain of digital stages and analog blocks, from the input on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from ffebm.block import EnergyBlock
from ffebm.relaxation import Relaxed

__all__ = ["Chain", "Run", "Settle", "Visit", "walk"]
__dir__ = __all__.copy

Chain = Sequence[tuple[nn.Module, EnergyBlock]]  # every stage with the block behind it
Run = Callable[[nn.Module, Tensor], Tensor]  # how a stage is run
Settle = Callable[[EnergyBlock, Tensor], Relaxed]  # how a block settles at an input


class Visit(NamedTuple):
    """A stage and the block behind it, with what went through them."""

    number: int  # from 1
    stage: nn.Module
    block: EnergyBlock
    s: Tensor  # into the stage
    x: Tensor  # out of the stage, into the block
    relaxed: Relaxed  # where the block settled

    @property
    def output(self) -> Tensor:
        return self.relaxed.state[self.block.output_layer]


def walk(chain: Chain, s: Tensor, run: Run, settle: Settle, last: Settle | None = None) -> Iterator[Visit]:
    """Go through all stages and blocks, and see what goes into each and where it settles.

    Args:
        last: how the last block settles, if otherwise than the others.
    """
    for number, (stage, block) in enumerate(chain, 1):
        x = run(stage, s)
        block.check_samples(x)
        relaxed = last(block, x) if last is not None and number == len(chain) else settle(block, x)
        visit = Visit(number, stage, block, s, x, relaxed)
        yield visit
        s = visit.output
