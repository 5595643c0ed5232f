"""Hardware that blocks run on: converters at their borders, and imperfect devices inside."""

from ffebm.hardware.converter import Converter
from ffebm.hardware.devices import Device, ReadNoise
from ffebm.hardware.hardware import Hardware

__all__ = ["Converter", "Device", "Hardware", "ReadNoise"]
__dir__ = __all__.copy
