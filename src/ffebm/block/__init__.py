"""Analog blocks: modules whose forward is a relaxation and whose backward is equilibrium propagation."""

from ffebm.block.analog_block import AnalogBlock, Unsettled
from ffebm.block.energy_block import EnergyBlock
from ffebm.block.system_block import SystemBlock

__all__ = ["AnalogBlock", "EnergyBlock", "SystemBlock", "Unsettled"]
__dir__ = __all__.copy
