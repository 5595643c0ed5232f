"""Relaxations: how a block finds the minimum of its energy."""

from ffebm.relaxation.fixed_point import FixedPoint, Order
from ffebm.relaxation.relaxation import Relaxation
from ffebm.relaxation.stopping import Observer, PhasesObserver, Relaxed

__all__ = ["FixedPoint", "Observer", "Order", "PhasesObserver", "Relaxation", "Relaxed"]
__dir__ = __all__.copy
