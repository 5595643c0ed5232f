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
    read_noise: float = Field(default=0.0, ge=0, description="deviation of noise in every current, at every sweep")
    seed: int = Field(default=0, ge=0, lt=2**31, description="of what was decided when the chip was made")

    @model_validator(mode="after")
    def _tells_apart(self) -> Self:
        for name in ("dac", "adc"):
            if getattr(self, f"{name}_bits") == 1:
                raise ValueError(f"`{name}_bits` is 1, two levels that cannot hold both signs and zero; take 2 bits or more")
        return self

    @property
    def is_ideal(self) -> bool:
        """Whether nothing is disturbed."""
        neutral = {"rounding", "average", "read", "seed"}  # they say how, and there is nothing to be done
        return all(getattr(self, name) == info.default for name, info in type(self).model_fields.items() if name not in neutral)
