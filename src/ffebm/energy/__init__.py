r"""Energies $E(s, \theta, x)$: what an analog block minimises."""

from ffebm.energy.certificate import Certificate
from ffebm.energy.diode import Diode, Exponential, Ideal, Threshold
from ffebm.energy.energy import Energy, Session
from ffebm.energy.graph import Edge
from ffebm.energy.hopfield import Hopfield
from ffebm.energy.layout import Layout
from ffebm.energy.rails import Rails
from ffebm.energy.resistive import Link, Resistive
from ffebm.energy.scale import Scale
from ffebm.energy.wiring import Wiring
from ffebm.state import Colours, State

__all__ = [
    "Certificate",
    "Colours",
    "Diode",
    "Edge",
    "Energy",
    "Exponential",
    "Hopfield",
    "Ideal",
    "Layout",
    "Link",
    "Rails",
    "Resistive",
    "Scale",
    "Session",
    "State",
    "Threshold",
    "Wiring",
]
__dir__ = __all__.copy
