"""The settings of hardware that blocks run on."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from ffebm.experiment.settings.section import Section

__all__ = ["Hardware"]
__dir__ = __all__.copy

MOST_BITS = 24


class Hardware(Section):
    """What blocks run on; everything is off by default."""

    dac_bits: int | None = Field(default=None, ge=1, le=MOST_BITS, description="of converters at blocks' inputs; none: exact")
    dac_range: float | None = Field(default=None, gt=0, description="their largest voltage; none: learned")
    dac_noise: float = Field(default=0.0, ge=0, description="deviation of their thermal noise")
    adc_bits: int | None = Field(default=None, ge=1, le=MOST_BITS, description="of converters at read-outs; none: exact")
    adc_range: float | None = Field(default=None, gt=0, description="their largest voltage; none: learned")
    adc_noise: float = Field(default=0.0, ge=0, description="deviation of their thermal noise, anew at every read-out")
    adc_offset: float = Field(default=0.0, ge=0, description="deviation of their offsets, which stay")
    adc_gain: float = Field(default=0.0, ge=0, description="deviation of their relative gains, which stay")
    rounding: Literal["nearest", "stochastic"] = Field(default="nearest", description="of converters")
    average: int = Field(default=1, ge=1, le=10_000, description="conversions that each read-out is the mean of")
    read: Literal["all", "output"] = Field(default="all", description="layers that are read out; others stay on the chip")
    settle_sweeps: int | None = Field(default=None, ge=1, description="after which every phase is read; none: as it takes")
    read_noise: float = Field(default=0.0, ge=0, description="deviation of noise in every current, at every sweep")
    cell_levels: int | None = Field(default=None, ge=2, description="conductances that a cell can have; a weight is two cells")
    material: Literal["phase-change", "resistive"] | None = Field(default=None, description="measured cells; none: ideal ones")
    material_age: Literal["second", "day", "two days"] = Field(default="second", description="of what was written to those")
    programming_noise: float = Field(default=0.0, ge=0, description="deviation of writing, in parts of the largest weight")
    mismatch: float = Field(default=0.0, ge=0, description="deviation of the cells' gains, which stay")
    crossbars: Literal["shared", "separate"] = Field(default="shared", description="of mismatch, for currents up and back")
    stuck_off: float = Field(default=0.0, ge=0, le=1, description="share of cells stuck at zero")
    stuck_on: float = Field(default=0.0, ge=0, le=1, description="share of cells stuck at the largest conductance")
    wire_resistance: float = Field(default=0.0, ge=0, description="of a cell's wire, times the largest conductance")
    drift: float = Field(default=0.0, ge=0, description="exponent by which conductances fall from phase to phase")
    drift_phase: float = Field(default=1e-3, ge=0, description="seconds from one phase to the next; the first is 20 s old")
    pulses: Literal["ecram", "oxide-ecram", "capacitor", "reram"] | None = Field(
        default=None, description="devices whose pulses change weights; none: exact updates"
    )
    pulse_range: float = Field(default=1.0, gt=0, description="largest weight that those hold")
    seed: int = Field(default=0, ge=0, lt=2**31, description="of what was decided when the chip was made")

    @model_validator(mode="after")
    def _tells_apart(self) -> Self:
        for name in ("dac", "adc"):
            if getattr(self, f"{name}_bits") == 1:
                raise ValueError(f"`{name}_bits` is 1, two levels that cannot hold both signs and zero; take 2 bits or more")
        if self.stuck_off + self.stuck_on > 1:
            raise ValueError(f"`stuck_off` and `stuck_on` are {self.stuck_off:g} and {self.stuck_on:g}, more than all cells")
        return self

    @property
    def is_ideal(self) -> bool:
        """Whether nothing is disturbed."""
        # They say how, and there is nothing to be done; pulses are the optimiser's.
        neutral = {"rounding", "average", "read", "seed", "material_age", "crossbars", "drift_phase", "pulses", "pulse_range"}
        return all(getattr(self, name) == info.default for name, info in type(self).model_fields.items() if name not in neutral)
