"""Hardware that blocks run on: chips with their flaws, circuits and their simulator, and devices in place of blocks."""

from ffebm.hardware.agreement import Agreement, agreement_of
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
from ffebm.hardware.physical import (
    Driver,
    NgspiceDriver,
    Physical,
    ProcessDriver,
    Recorder,
    Replay,
    SimulatedDriver,
    serve,
)
from ffebm.hardware.pulses import Pulses
from ffebm.hardware.spice import find_ngspice, netlist, solve

__all__ = [
    "Agreement",
    "BlockFidelity",
    "Converter",
    "Device",
    "Drift",
    "Driver",
    "Hardware",
    "Levels",
    "Mismatch",
    "NgspiceDriver",
    "PhaseChange",
    "Physical",
    "ProcessDriver",
    "ProgrammingNoise",
    "Pulses",
    "ReadNoise",
    "Recorder",
    "Replay",
    "ResistiveMemory",
    "SettleTime",
    "SimulatedDriver",
    "StuckCells",
    "WireResistance",
    "agreement_of",
    "block_fidelities",
    "find_ngspice",
    "netlist",
    "serve",
    "solve",
]
__dir__ = __all__.copy
