"""Devices that are not alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from ffebm.checks import check_choice
from ffebm.hardware.checks import check_not_negative
from ffebm.hardware.devices.device import Cells, Device
from ffebm.hardware.draws import Draws

__all__ = ["Crossbars", "Mismatch"]
__dir__ = __all__.copy

Crossbars = Literal["shared", "separate"]


@dataclass(frozen=True)
class Mismatch(Device):
    r"""Every cell has a gain of its own: $g \mapsto (1 + \sigma \xi)\, g$, decided when the chip was made.

    Args:
        deviation: σ.
        crossbars: `"shared"`: currents up and back go through the same cells. The block is another one than its weights say,
            but it has an energy, and equilibrium propagation on it is exact. `"separate"`: they go through two crossbars
            with a mismatch of their own. The block is then not reciprocal, and its contrast is no gradient of anything.

    Source: device-to-device variation as aihwkit has it, a normal spread that stays (`dw_min_dtod` and its like).
    """

    writes: ClassVar[bool] = True

    deviation: float
    crossbars: Crossbars = "shared"

    def check(self) -> None:
        check_not_negative("deviation", self.deviation, "the standard deviation of a relative gain")
        check_choice("crossbars", self.crossbars, get_args(Crossbars))

    @property
    def splits(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.crossbars == "separate"

    def written(self, cells: Cells, draws: Draws, name: str) -> Cells:
        spread = [draws.made(g, name, "mismatch", sign) for g, sign in zip(cells, "+-", strict=True)]
        return Cells(*((1 + self.deviation * xi).clamp(min=0) * g for xi, g in zip(spread, cells, strict=True)))
