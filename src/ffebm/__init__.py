"""Feedforward-tied energy-based models: backprop through the digital parts, equilibrium propagation through the analog ones."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ffebm.activation import Activation, clamp, identity, sigmoid, tanh
    from ffebm.block import AnalogBlock, EnergyBlock, SystemBlock
    from ffebm.builder import ConvLayer, DenseLayer, build
    from ffebm.calibration import Calibration, calibrate
    from ffebm.energy import Edge, Energy, Hopfield, Session, State
    from ffebm.errors import DivergenceError, UnsettledError, UnsettledWarning
    from ffebm.feedforward import Feedforward
    from ffebm.gradient import (
        BackpropThroughTime,
        EquilibriumPropagation,
        GradientEstimator,
        Gradients,
        ImplicitEstimator,
        RecurrentBackprop,
        Stencil,
        Unrolled,
    )
    from ffebm.initialisation import Gains, goe_, initialise
    from ffebm.interaction import Convolution, Dense, Interaction
    from ffebm.model import FFEBM
    from ffebm.nonreciprocal import NonReciprocal
    from ffebm.nudge import Nudge
    from ffebm.pooling import AveragePool, MaxPool, SoftPool
    from ffebm.relaxation import FixedPoint, Relaxation, Relaxed
    from ffebm.system import Phase, Simulated, System, SystemWrapper

__all__ = [
    "FFEBM",
    "Activation",
    "AnalogBlock",
    "AveragePool",
    "BackpropThroughTime",
    "Calibration",
    "ConvLayer",
    "Convolution",
    "Dense",
    "DenseLayer",
    "DivergenceError",
    "Edge",
    "Energy",
    "EnergyBlock",
    "EquilibriumPropagation",
    "Feedforward",
    "FixedPoint",
    "Gains",
    "GradientEstimator",
    "Gradients",
    "Hopfield",
    "ImplicitEstimator",
    "Interaction",
    "MaxPool",
    "NonReciprocal",
    "Nudge",
    "Phase",
    "RecurrentBackprop",
    "Relaxation",
    "Relaxed",
    "Session",
    "Simulated",
    "SoftPool",
    "State",
    "Stencil",
    "System",
    "SystemBlock",
    "SystemWrapper",
    "Unrolled",
    "UnsettledError",
    "UnsettledWarning",
    "build",
    "calibrate",
    "clamp",
    "goe_",
    "identity",
    "initialise",
    "sigmoid",
    "tanh",
]

# Names are imported when they are first used: torch takes seconds to load, and `ffebm --help` has no need of it.
_HOMES = {
    "activation": "Activation clamp identity sigmoid tanh",
    "block": "AnalogBlock EnergyBlock SystemBlock",
    "builder": "ConvLayer DenseLayer build",
    "calibration": "Calibration calibrate",
    "energy": "Edge Energy Hopfield Session State",
    "errors": "DivergenceError UnsettledError UnsettledWarning",
    "feedforward": "Feedforward",
    "gradient": "BackpropThroughTime EquilibriumPropagation GradientEstimator Gradients ImplicitEstimator RecurrentBackprop "
    "Stencil Unrolled",
    "initialisation": "Gains goe_ initialise",
    "interaction": "Convolution Dense Interaction",
    "model": "FFEBM",
    "nonreciprocal": "NonReciprocal",
    "nudge": "Nudge",
    "pooling": "AveragePool MaxPool SoftPool",
    "relaxation": "FixedPoint Relaxation Relaxed",
    "system": "Phase Simulated System SystemWrapper",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'ffebm' has no attribute {name!r}")
    value = getattr(import_module(f"ffebm.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
