r"""Energies $E(s, \theta, x)$: what an analog block minimises."""

from ffebm.energy.certificate import Certificate
from ffebm.energy.energy import Energy, Session
from ffebm.energy.graph import Edge
from ffebm.energy.hopfield import Hopfield
from ffebm.energy.wiring import Wiring
from ffebm.state import Colours, State

__all__ = ["Certificate", "Colours", "Edge", "Energy", "Hopfield", "Session", "State", "Wiring"]
__dir__ = __all__.copy
