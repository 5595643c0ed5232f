r"""Energies $E(s, \theta, x)$: what an analog block minimises."""

from ffebm.energy.energy import Colours, Energy, Session
from ffebm.energy.graph import Edge
from ffebm.energy.hopfield import Hopfield
from ffebm.state import State

__all__ = ["Colours", "Edge", "Energy", "Hopfield", "Session", "State"]
