"""The settings of blocks that are circuits."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from ffebm.experiment.settings.section import Section

__all__ = ["Resistive"]
__dir__ = __all__.copy


class Resistive(Section):
    """Blocks that are circuits of resistors, diodes and amplifiers."""

    blocks: Literal["all"] | list[int] = Field(default=[], description="numbers of those blocks, from 1")
    input: Literal["current", "voltage"] = Field(
        default="current",
        description="what a digital stage drives; voltage: the connection into the block is a crossbar, too",
    )
    doubled: bool = Field(default=True, description="voltages enter as they are and inverted")
    input_gain: float = Field(default=1.0, gt=0, description="of voltages that enter")
    forward: float = Field(default=1.0, gt=0, description="A, gain of the amplifiers between layers for voltages upward")
    backward: float = Field(default=1.0, gt=0, description="B, their gain for currents downward")
    leak: float | None = Field(
        default=None, ge=0, description="conductance to ground at every node; none: 1 where currents enter, 0 elsewhere"
    )
    lowest: float = Field(default=1e-6, gt=0, description="conductance")
    highest: float | None = Field(default=None, gt=0, description="conductance; none: no bound")
    diode: Literal["ideal", "threshold", "exponential"] = Field(default="ideal", description="at every hidden node")
    saturation: float = Field(default=1e-12, gt=0, description="current of exponential diodes, in amperes")
    ideality: float = Field(default=1.0, gt=0, description="of exponential diodes")
    offset: float = Field(default=0.0, ge=0, description="of threshold diodes, in volts")
    on: float = Field(default=10.0, gt=0, description="conductance of threshold diodes beyond it, in siemens")
    off: float = Field(default=0.0, ge=0, description="conductance of threshold diodes everywhere, in siemens")
    siemens: float = Field(default=1.0, gt=0, description="what a conductance of 1 stands for")
    volts: float = Field(default=1.0, gt=0, description="what a voltage of 1 stands for")

    @field_validator("blocks")
    @classmethod
    def _counts(cls, value: Literal["all"] | list[int]) -> Literal["all"] | list[int]:
        if isinstance(value, list) and min(value, default=1) < 1:
            raise ValueError("blocks are numbered from 1")
        return value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.highest is not None and self.highest <= self.lowest:
            raise ValueError(f"`highest` must be more than `lowest`, {self.lowest:g}, got {self.highest:g}")
        if self.input == "current" and self.leak == 0:
            raise ValueError("currents that enter need a way to ground: take a `leak` above 0, or none")
        return self

    def is_circuit(self, block: int) -> bool:
        """Whether the block of this number, from 1, is one."""
        return self.blocks == "all" or block in self.blocks
