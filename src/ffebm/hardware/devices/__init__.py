"""Devices: imperfections of what stores a block's weights, and of what carries its currents."""

from ffebm.hardware.devices.device import Cells, Device
from ffebm.hardware.devices.read_noise import ReadNoise

__all__ = ["Cells", "Device", "ReadNoise"]
__dir__ = __all__.copy
