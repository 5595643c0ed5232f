"""Networks: from settings, and the one of the paper's static analysis."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from ffebm.activation import clamp, identity
from ffebm.block import EnergyBlock
from ffebm.builder import ConvLayer, DenseLayer, Layer, build
from ffebm.energy import Exponential, Hopfield, Ideal, Scale, Threshold, Wiring
from ffebm.experiment import settings
from ffebm.experiment.parts import made, part
from ffebm.gradient import (
    AutomaticBeta,
    BackpropThroughTime,
    EquilibriumPropagation,
    GradientEstimator,
    RecurrentBackprop,
    Unrolled,
)
from ffebm.hardware import (
    Converter,
    Device,
    Drift,
    Hardware,
    Levels,
    Mismatch,
    PhaseChange,
    ProgrammingNoise,
    Pulses,
    ReadNoise,
    ResistiveMemory,
    SettleTime,
    StuckCells,
    WireResistance,
)
from ffebm.initialisation import goe_
from ffebm.model import FFEBM
from ffebm.pooling import AveragePool, MaxPool, SoftPool
from ffebm.relaxation import FixedPoint, Relaxed

__all__ = ["SquaredError", "build_estimator", "build_hardware", "build_model", "build_pulses", "static_analysis"]
__dir__ = __all__.copy

POOLS = {"max": MaxPool, "average": AveragePool, "soft": SoftPool}


def build_model(chosen: settings.Settings, input_shape: Sequence[int], classes: int) -> FFEBM:
    """The model that settings describe, for images of a shape. Its weights come from torch's generator."""
    if chosen.parts.model is not None:
        own = made(chosen.parts, "parts.model", chosen.parts.model, FFEBM, chosen, tuple(input_shape), classes)
        hardware = build_hardware(chosen.hardware)
        return _measured(own if hardware is None else own.put_on(hardware), input_shape)
    model = chosen.model
    pool = POOLS[model.pooling]
    skips = {to: tuple(to - start for start, end in model.skips if end == to) for _, to in model.skips}
    strides = model.strides or [1] * len(model.channels)
    layers: list[Layer] = [
        ConvLayer(
            _scaled(size, model.width),
            stride=stride,
            pool=pool() if number in model.pooled else None,
            skip=skips.get(number, ()),
        )
        for number, (size, stride) in enumerate(zip(model.channels, strides, strict=True), 1)
    ]
    widths = [model.width] * len(model.dense)
    if model.readout == "direct":
        widths[-1:] = [1.0]  # its last layer has a unit for each class
    layers += [
        DenseLayer(_scaled(size, width), skip=skips.get(number, ()))
        for number, (size, width) in enumerate(zip(model.dense, widths, strict=True), len(model.channels) + 1)
    ]
    hard = clamp(model.slope)
    # The gain of a convolution grows with the square root of its channels: fewer of them get larger weights.
    weights = None if model.variance is None else partial(goe_, variance=model.variance / model.width)
    free, gradient = chosen.effective
    return build(
        input_shape,
        layers,
        model.split,
        classes,
        activation=hard,
        output_activation=[hard if number in model.clamped else identity() for number in range(1, model.blocks + 1)],
        feedback=model.feedback,
        batch_norm=[model.batch_norm == "all" or (model.batch_norm == "first" and i == 0) for i in range(model.blocks)],
        relax=FixedPoint(free.steps, tolerance=free.tolerance, order=free.order or "odd-even", omega=free.omega),
        estimator=_estimator(chosen, gradient),
        energy=Hopfield if chosen.parts.energy is None else part(chosen.parts, "parts.energy", chosen.parts.energy),
        wiring=[_wiring(chosen.resistive) if chosen.resistive.is_circuit(i) else None for i in range(1, model.blocks + 1)],
        criterion=SquaredError() if model.criterion == "squared" else None,
        readout=model.readout,
        nudge=chosen.nudge,
        weights=weights,
        max_contraction=model.max_contraction if chosen.relaxes else None,
        recompute=chosen.trainer.recompute,
        hardware=build_hardware(chosen.hardware),
    )


def _wiring(circuit: settings.Resistive) -> Wiring:
    diodes = {
        "ideal": Ideal(),
        "threshold": Threshold(circuit.offset, circuit.on, circuit.off),
        "exponential": Exponential(circuit.saturation, circuit.ideality),
    }
    return Wiring(
        input=circuit.input,
        doubled=circuit.doubled,
        gain=(circuit.forward, circuit.backward),
        input_gain=circuit.input_gain,
        diode=diodes[circuit.diode],
        leak=circuit.leak,
        bounds=(circuit.lowest, math.inf if circuit.highest is None else circuit.highest),
        scale=Scale(circuit.siemens, circuit.volts),
    )


class SquaredError(nn.Module):
    r"""$\tfrac12 \lVert o - e_y \rVert^2$, with the unit vector of the class: one loss per sample."""

    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        return (logits - nn.functional.one_hot(y, logits.shape[1])).square().sum(1) / 2


def _measured(model: FFEBM, input_shape: Sequence[int]) -> FFEBM:
    """A model of somebody's own, whose limits have seen their inputs, as those of `build` have: that is part of its weights."""

    def keep(block: EnergyBlock, x: Tensor) -> Relaxed:
        if block.limit is not None:
            block.limit.keep(block.energy, x.shape[1:])
        unknown = x.new_full((len(x),), math.nan)
        return Relaxed(block.system.start(x), unknown, unknown)

    device = next(model.parameters()).device
    with torch.no_grad():
        training = {module: module.training for module in model.modules()}
        deque(model.eval().walk(torch.zeros(1, *input_shape, device=device), keep), maxlen=0)
        for module, was in training.items():
            module.training = was
    return model


def _estimator(chosen: settings.Settings, gradient: settings.Gradient) -> GradientEstimator:
    name = chosen.parts.estimator
    return build_estimator(gradient) if name is None else made(chosen.parts, "parts.estimator", name, GradientEstimator, chosen)


def build_hardware(chosen: settings.Hardware) -> Hardware | None:
    """What blocks run on, by settings; None where everything is off."""
    if chosen.is_ideal:
        return None
    dac = Converter(chosen.dac_bits, chosen.dac_range, chosen.dac_noise, rounding=chosen.rounding)
    adc = Converter(
        chosen.adc_bits,
        chosen.adc_range,
        chosen.adc_noise,
        chosen.adc_offset,
        chosen.adc_gain,
        rounding=chosen.rounding,
        average=chosen.average,
    )
    return Hardware(_unless_ideal(dac), _unless_ideal(adc), _devices(chosen), read=chosen.read, seed=chosen.seed)


def _devices(chosen: settings.Hardware) -> list[Device]:
    """In the order in which a weight meets them: rounded, written, disturbed by what the chip is."""
    seconds = {"second": 1.0, "day": 86400.0, "two days": 172800.0}[chosen.material_age]
    found: list[Device | None] = [
        Levels(chosen.cell_levels) if chosen.cell_levels else None,
        PhaseChange(seconds) if chosen.material == "phase-change" else None,
        ResistiveMemory(chosen.material_age) if chosen.material == "resistive" else None,
        ProgrammingNoise(chosen.programming_noise) if chosen.programming_noise else None,
        Mismatch(chosen.mismatch, chosen.crossbars) if chosen.mismatch else None,
        StuckCells(chosen.stuck_off, chosen.stuck_on) if chosen.stuck_off or chosen.stuck_on else None,
        WireResistance(chosen.wire_resistance) if chosen.wire_resistance else None,
        Drift(chosen.drift, phase=chosen.drift_phase) if chosen.drift else None,
        ReadNoise(chosen.read_noise) if chosen.read_noise else None,
        SettleTime(chosen.settle_sweeps) if chosen.settle_sweeps else None,
    ]
    return [device for device in found if device is not None]


def build_pulses(chosen: settings.Hardware) -> Pulses | None:
    """How devices follow the optimiser, by settings; None where updates are exact."""
    kinds = {"ecram": Pulses.ecram, "oxide-ecram": Pulses.oxide_ecram, "capacitor": Pulses.capacitor, "reram": Pulses.reram}
    return None if chosen.pulses is None else kinds[chosen.pulses](chosen.pulse_range)


def _unless_ideal(converter: Converter) -> Converter | None:
    return None if converter.is_ideal else converter


def build_estimator(gradient: settings.Gradient) -> GradientEstimator:
    if gradient.kind in ("bptt", "bp"):
        return BackpropThroughTime()
    # Backprop runs through sweeps in reverse, so the error enters at the end of a recorded one: there the output is last.
    order = gradient.order or ("output-first" if gradient.kind == "ep" else "output-last")
    relax = FixedPoint(gradient.steps, tolerance=gradient.tolerance, order=order, omega=gradient.omega)
    if gradient.kind == "ep":
        variant = gradient.variant or "centered"
        return EquilibriumPropagation(
            relax,
            beta=gradient.beta,
            automatic=AutomaticBeta() if gradient.automatic_beta else None,
            variant=variant,
            scale=gradient.scale,
            hold_pooling=gradient.hold_pooling,
        )
    return Unrolled(relax) if gradient.kind == "id" else RecurrentBackprop(relax)


def _scaled(size: int, width: float) -> int:
    return max(1, round(width * size))


STATIC_BLOCKS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512), (512, 1024))  # channels
STATIC_POOLED = (2, 3, 4, 5)  # blocks whose stage pools, 1-based


def static_analysis(
    width: float = 1.0, *, variance: float = 5.9e-5, classes: int = 10, estimator: GradientEstimator = EquilibriumPropagation()
) -> FFEBM:
    """The net of the static gradient analysis: 6 blocks, 15 layers, for 3 × 32 × 32 images.

    Args:
        width: scales every channel count, for small machines.
        variance: of the Gaussian orthogonal ensemble, which the paper leaves open here; its value for 12 layers.
            With 1e-5, its value for 15, the cosine between EP and ID falls below 0.999 in some layers at β = 0.02.

    Paper: section 4.2 [subsec:gdd], Fig. [fig:gdd], Fig. [fig:bars]
    """
    layers: list[Layer] = []
    for number, channels in enumerate(STATIC_BLOCKS, 1):
        for position, size in enumerate(channels):
            pooled = position == 0 and number in STATIC_POOLED
            layers.append(ConvLayer(_scaled(size, width), pool=MaxPool() if pooled else None))
    layers.append(DenseLayer(_scaled(4096, width)))
    split = [len(channels) for channels in STATIC_BLOCKS]
    split[-1] += 1  # the dense layer
    weights = partial(goe_, variance=variance)
    return build((3, 32, 32), layers, split, classes, relax=FixedPoint(15), estimator=estimator, weights=weights)
