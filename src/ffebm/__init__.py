"""Feedforward-tied energy-based models: backprop through the digital parts, equilibrium propagation through the analog ones."""

from ffebm.activation import Activation, clamp, identity, sigmoid, tanh
from ffebm.block import EnergyBlock
from ffebm.builder import ConvLayer, DenseLayer, build
from ffebm.energy import Energy, Hopfield, State
from ffebm.errors import DivergenceError
from ffebm.feedforward import Feedforward
from ffebm.gradient import (
    BackpropThroughTime,
    EquilibriumPropagation,
    GradientEstimator,
    RecurrentBackprop,
    Unrolled,
)
from ffebm.initialisation import goe_, initialise
from ffebm.interaction import Convolution, Dense, Interaction
from ffebm.model import FFEBM
from ffebm.pooling import AveragePool, MaxPool, SoftPool
from ffebm.relaxation import FixedPoint, Relaxation

__all__ = [
    "FFEBM",
    "Activation",
    "AveragePool",
    "BackpropThroughTime",
    "ConvLayer",
    "Convolution",
    "Dense",
    "DenseLayer",
    "DivergenceError",
    "Energy",
    "EnergyBlock",
    "EquilibriumPropagation",
    "Feedforward",
    "FixedPoint",
    "GradientEstimator",
    "Hopfield",
    "Interaction",
    "MaxPool",
    "RecurrentBackprop",
    "Relaxation",
    "SoftPool",
    "State",
    "Unrolled",
    "build",
    "clamp",
    "goe_",
    "identity",
    "initialise",
    "sigmoid",
    "tanh",
]
