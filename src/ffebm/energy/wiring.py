"""Wirings: how a block is made of a circuit, where the layers are given and the rest is not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from ffebm.energy.diode import Diode, Ideal
from ffebm.energy.resistive import Gain, Resistive, Source
from ffebm.energy.scale import Scale
from ffebm.interaction import Interaction

__all__ = ["Wiring"]
__dir__ = __all__.copy

IDEAL, UNITS = Ideal(), Scale()


@final
@dataclass(frozen=True)
class Wiring:
    """What `build` makes a resistive block by: all that is the same for its layers. See `Resistive`.

    Args:
        input: with `"voltage"` the connection into the first layer is a crossbar, too, and nothing of it is left to the digital
            stage but its batch-norm.
        doubled: whether voltages enter as they are and inverted.
    """

    input: Source = "current"
    doubled: bool = True
    gain: Gain = (1.0, 1.0)
    input_gain: float = 1.0
    diode: Diode = IDEAL
    leak: float | None = None
    bounds: tuple[float, float] = (1e-6, math.inf)
    scale: Scale = UNITS

    @property
    def held(self) -> bool:
        """Whether voltages enter."""
        return self.input == "voltage"

    def energy(self, entering: Interaction, chain: Sequence[Interaction]) -> Resistive:
        """The circuit of layers that these connections would tie, the first of them in front of the first layer."""
        crossbars = [entering.as_crossbar(doubled=self.doubled)] if self.held else []
        return Resistive(
            [*crossbars, *(edge.as_crossbar() for edge in chain)],
            input=self.input,
            gain=self.gain,
            input_gain=self.input_gain,
            diode=self.diode,
            leak=self.leak,
            bounds=self.bounds,
            scale=self.scale,
        )
