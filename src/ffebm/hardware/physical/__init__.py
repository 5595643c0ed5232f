"""Devices in place of blocks: drivers that work them, and the system that torch sees."""

from ffebm.hardware.physical.driver import Currents, Driver
from ffebm.hardware.physical.ngspice_driver import NgspiceDriver
from ffebm.hardware.physical.physical import Physical
from ffebm.hardware.physical.process_driver import ProcessDriver, serve
from ffebm.hardware.physical.recording import Recorder, Replay, ReplayError
from ffebm.hardware.physical.simulated_driver import SimulatedDriver

__all__ = [
    "Currents",
    "Driver",
    "NgspiceDriver",
    "Physical",
    "ProcessDriver",
    "Recorder",
    "Replay",
    "ReplayError",
    "SimulatedDriver",
    "serve",
]
__dir__ = __all__.copy
