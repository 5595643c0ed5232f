"""Electrical circuits as plain data: what an energy hands over to a circuit simulator, or to whoever builds it."""

from ffebm.circuit.circuit import Circuit, Port, Section
from ffebm.circuit.parts import (
    GROUND,
    THERMAL_VOLTAGE,
    Amplifier,
    CurrentSource,
    Diode,
    DiodeModel,
    Junction,
    Node,
    Part,
    Resistor,
    StraightLines,
    VoltageSource,
)

__all__ = [
    "GROUND",
    "THERMAL_VOLTAGE",
    "Amplifier",
    "Circuit",
    "CurrentSource",
    "Diode",
    "DiodeModel",
    "Junction",
    "Node",
    "Part",
    "Port",
    "Resistor",
    "Section",
    "StraightLines",
    "VoltageSource",
]
__dir__ = __all__.copy
