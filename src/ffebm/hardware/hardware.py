"""Hardware: what an analog block runs on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from ffebm.checks import brief, check_choice, check_size, check_type
from ffebm.hardware.chip import AnalogChip
from ffebm.hardware.converter import Converter
from ffebm.hardware.devices import Device
from ffebm.relaxation import Relaxation
from ffebm.substrate import Equipment, Substrate

__all__ = ["Hardware"]
__dir__ = __all__.copy

Read = Literal["all", "output"]


@dataclass(frozen=True)
class Hardware(Substrate):
    """Converters at a block's borders, and the devices inside: `EnergyBlock(..., hardware=Hardware(...))`.

    Everything is off by default, and a block with everything off is the ideal one, bit for bit. Gradients of weights are taken
    at what devices hold and given to the weights as they are (straight through).

    Args:
        dac: between the digital part and the block's input; None hands numbers over as they are. It converts once a step and
            holds the voltage through all phases.
        adc: at every read-out, of the free and of each nudged phase.
        devices: imperfections of weights and currents, applied one after the other.
        read: which layers converters read: `"all"`, or the `"output"` alone, where the others are contrasted on the chip.
        pairs: whether a weight is the difference of two cells, so that it has a sign; else it is one, as in a resistive net.
        seed: of everything that was decided when the chip was made: mismatch, stuck cells, offsets. Blocks of different names
            are different pieces, also with one seed.
    """

    dac: Converter | None = None
    adc: Converter | None = None
    devices: Sequence[Device] = ()
    read: Read = "all"
    pairs: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("dac", "adc"):
            if getattr(self, name) is not None:
                check_type(name, getattr(self, name), Converter, "Converter(bits=8)")
        if not isinstance(self.devices, Sequence):
            raise TypeError(f"`devices` must be a list of devices such as [ReadNoise(0.01)], got {brief(self.devices)}.")
        for device in self.devices:
            check_type("devices", device, Device, "ReadNoise(0.01)")
        object.__setattr__(self, "devices", tuple(self.devices))
        check_choice("read", self.read, get_args(Read))
        check_size("seed", self.seed, least=0)

    @property
    def is_ideal(self) -> bool:
        """Whether everything is off."""
        converters = [converter for converter in (self.dac, self.adc) if converter is not None]
        return not self.devices and all(converter.is_ideal for converter in converters)

    @property
    def equipment(self) -> Equipment:  # pyright: ignore[reportIncompatibleVariableOverride]
        into, out = (None if converter is None else converter.bits for converter in (self.dac, self.adc))
        repeats = 1 if self.adc is None else self.adc.average
        ways = 2 if any(device.splits for device in self.devices) else 1
        return Equipment(into, out, repeats, self.read == "all", self.pairs, ways)

    def shortened(self, relax: Relaxation) -> Relaxation:
        for device in self.devices:
            relax = device.shortened(relax)
        return relax

    def chip(self, layers: int | None) -> AnalogChip | None:
        return None if self.is_ideal else AnalogChip(self, layers)
