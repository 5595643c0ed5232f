"""Feedforward-tied energy-based models: backprop through the digital parts, equilibrium propagation through the analog ones."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ffebm.activation import (
        Activation as Activation,
        clamp as clamp,
        identity as identity,
        sigmoid as sigmoid,
        tanh as tanh,
    )
    from ffebm.block import AnalogBlock as AnalogBlock, EnergyBlock as EnergyBlock, SystemBlock as SystemBlock
    from ffebm.builder import ConvLayer as ConvLayer, DenseLayer as DenseLayer, build as build
    from ffebm.calibration import Calibration as Calibration, calibrate as calibrate
    from ffebm.energy import (
        Edge as Edge,
        Energy as Energy,
        Exponential as Exponential,
        Hopfield as Hopfield,
        Ideal as Ideal,
        Rails as Rails,
        Resistive as Resistive,
        Scale as Scale,
        Session as Session,
        State as State,
        Threshold as Threshold,
        Wiring as Wiring,
    )
    from ffebm.errors import (
        DeviceError as DeviceError,
        DeviceTimeoutError as DeviceTimeoutError,
        DivergenceError as DivergenceError,
        UnsettledError as UnsettledError,
        UnsettledWarning as UnsettledWarning,
    )
    from ffebm.feedforward import Feedforward as Feedforward
    from ffebm.gradient import (
        AutomaticBeta as AutomaticBeta,
        BackpropThroughTime as BackpropThroughTime,
        EquilibriumPropagation as EquilibriumPropagation,
        GradientEstimator as GradientEstimator,
        Gradients as Gradients,
        ImplicitEstimator as ImplicitEstimator,
        RecurrentBackprop as RecurrentBackprop,
        Stencil as Stencil,
        Unrolled as Unrolled,
    )
    from ffebm.hardware import (
        Converter as Converter,
        Device as Device,
        Drift as Drift,
        Driver as Driver,
        Hardware as Hardware,
        Levels as Levels,
        Mismatch as Mismatch,
        NgspiceDriver as NgspiceDriver,
        PhaseChange as PhaseChange,
        Physical as Physical,
        ProcessDriver as ProcessDriver,
        ProgrammingNoise as ProgrammingNoise,
        Pulses as Pulses,
        ReadNoise as ReadNoise,
        Recorder as Recorder,
        Replay as Replay,
        ResistiveMemory as ResistiveMemory,
        SettleTime as SettleTime,
        SimulatedDriver as SimulatedDriver,
        StuckCells as StuckCells,
        WireResistance as WireResistance,
        netlist as netlist,
    )
    from ffebm.initialisation import goe_ as goe_, initialise as initialise
    from ffebm.interaction import (
        Conductance as Conductance,
        ConvConductance as ConvConductance,
        Convolution as Convolution,
        Convolution1d as Convolution1d,
        Dense as Dense,
        Interaction as Interaction,
    )
    from ffebm.loading import load as load
    from ffebm.model import FFEBM as FFEBM
    from ffebm.nonreciprocal import NonReciprocal as NonReciprocal
    from ffebm.nudge import Nudge as Nudge
    from ffebm.pooling import AveragePool as AveragePool, MaxPool as MaxPool, SoftPool as SoftPool
    from ffebm.relaxation import FixedPoint as FixedPoint, Relaxation as Relaxation, Relaxed as Relaxed
    from ffebm.start import start_from_data as start_from_data
    from ffebm.system import Phase as Phase, Simulated as Simulated, System as System, SystemWrapper as SystemWrapper

# Names are imported when they are first used: torch takes seconds to load, and `ffebm --help` has no need of it.
_HOMES = {
    "activation": "Activation clamp identity sigmoid tanh",
    "block": "AnalogBlock EnergyBlock SystemBlock",
    "builder": "ConvLayer DenseLayer build",
    "calibration": "Calibration calibrate",
    "energy": "Edge Energy Exponential Hopfield Ideal Rails Resistive Scale Session State Threshold Wiring",
    "errors": "DeviceError DeviceTimeoutError DivergenceError UnsettledError UnsettledWarning",
    "feedforward": "Feedforward",
    "gradient": "AutomaticBeta BackpropThroughTime EquilibriumPropagation GradientEstimator Gradients ImplicitEstimator "
    "RecurrentBackprop Stencil Unrolled",
    "hardware": "Converter Device Drift Driver Hardware Levels Mismatch NgspiceDriver PhaseChange Physical ProcessDriver "
    "ProgrammingNoise Pulses ReadNoise Recorder Replay ResistiveMemory SettleTime SimulatedDriver StuckCells WireResistance "
    "netlist",
    "initialisation": "goe_ initialise",
    "interaction": "Conductance ConvConductance Convolution Convolution1d Dense Interaction",
    "loading": "load",
    "model": "FFEBM",
    "nonreciprocal": "NonReciprocal",
    "nudge": "Nudge",
    "pooling": "AveragePool MaxPool SoftPool",
    "relaxation": "FixedPoint Relaxation Relaxed",
    "start": "start_from_data",
    "system": "Phase Simulated System SystemWrapper",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}
__all__ = sorted(_HOME_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name == "__version__":
        return version("ffebm")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'ffebm' has no attribute {name!r}")
    value = getattr(import_module(f"ffebm.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
