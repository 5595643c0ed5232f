"""Gradient estimators: how the derivative of an equilibrium is computed. Interchangeable, block by block."""

from ffebm.gradient.equilibrium_propagation import EquilibriumPropagation
from ffebm.gradient.estimator import GradientEstimator, Gradients
from ffebm.gradient.recurrent_backprop import RecurrentBackprop
from ffebm.gradient.unrolled import BackpropThroughTime, Unrolled

__all__ = [
    "BackpropThroughTime",
    "EquilibriumPropagation",
    "GradientEstimator",
    "Gradients",
    "RecurrentBackprop",
    "Unrolled",
]
