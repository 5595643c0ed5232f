"""Hardware that blocks run on: converters at their borders, and imperfect devices inside."""

from ffebm.hardware.converter import Converter
from ffebm.hardware.devices import (
    Device,
    Drift,
    Levels,
    Mismatch,
    PhaseChange,
    ProgrammingNoise,
    ReadNoise,
    ResistiveMemory,
    SettleTime,
    StuckCells,
    WireResistance,
)
from ffebm.hardware.hardware import Hardware
from ffebm.hardware.meter import BlockFidelity, block_fidelities
from ffebm.hardware.pulses import Pulses

__all__ = [
    "BlockFidelity",
    "Converter",
    "Device",
    "Drift",
    "Hardware",
    "Levels",
    "Mismatch",
    "PhaseChange",
    "ProgrammingNoise",
    "Pulses",
    "ReadNoise",
    "ResistiveMemory",
    "SettleTime",
    "StuckCells",
    "WireResistance",
    "block_fidelities",
]
__dir__ = __all__.copy
