"""Devices: imperfections of what stores a block's weights, and of what carries its currents."""

from ffebm.hardware.devices.device import Cells, Device
from ffebm.hardware.devices.drift import Drift
from ffebm.hardware.devices.levels import Levels
from ffebm.hardware.devices.materials import PhaseChange, ResistiveMemory
from ffebm.hardware.devices.mismatch import Mismatch
from ffebm.hardware.devices.programming import ProgrammingNoise
from ffebm.hardware.devices.read_noise import ReadNoise
from ffebm.hardware.devices.settle_time import SettleTime
from ffebm.hardware.devices.stuck import StuckCells
from ffebm.hardware.devices.wires import WireResistance

__all__ = [
    "Cells",
    "Device",
    "Drift",
    "Levels",
    "Mismatch",
    "PhaseChange",
    "ProgrammingNoise",
    "ReadNoise",
    "ResistiveMemory",
    "SettleTime",
    "StuckCells",
    "WireResistance",
]
__dir__ = __all__.copy
