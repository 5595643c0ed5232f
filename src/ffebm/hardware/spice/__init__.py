"""Netlists, and the simulator that judges them."""

from ffebm.hardware.spice.netlist import netlist
from ffebm.hardware.spice.ngspice import find_ngspice, solve

__all__ = ["find_ngspice", "netlist", "solve"]
__dir__ = __all__.copy
