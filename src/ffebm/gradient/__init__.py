"""Gradient estimators: how the derivative of an equilibrium is computed. Interchangeable, block by block."""

from ffebm.derivative import Gradients
from ffebm.gradient.automatic import AutomaticBeta
from ffebm.gradient.equilibrium_propagation import EquilibriumPropagation
from ffebm.gradient.estimator import GradientEstimator, ImplicitEstimator
from ffebm.gradient.recurrent_backprop import RecurrentBackprop
from ffebm.gradient.stencil import Stencil
from ffebm.gradient.unrolled import BackpropThroughTime, Unrolled

__all__ = [
    "AutomaticBeta",
    "BackpropThroughTime",
    "EquilibriumPropagation",
    "GradientEstimator",
    "Gradients",
    "ImplicitEstimator",
    "RecurrentBackprop",
    "Stencil",
    "Unrolled",
]
__dir__ = __all__.copy
