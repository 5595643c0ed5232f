"""Which settings have an effect only together with others: one that is given and does nothing is a mistake."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ffebm.experiment.settings.resistive import Resistive
from ffebm.experiment.settings.sections import Settings

__all__ = ["Condition", "without_effect"]
__dir__ = __all__.copy


@dataclass(frozen=True)
class Condition:
    """When some settings are used, and why they are not otherwise."""

    keys: tuple[str, ...]
    used: Callable[[Settings], bool]
    reason: str


PLAIN = "plain sweeps have neither tolerance nor over-relaxation; take sweeps=settle"
OFFICIAL = "it is for data of your own; take data.name=folder"
ALONE = "in blocks of one layer nothing comes back; take a larger model.split"
THROUGH_TIME = "backprop through time has no phase of its own, it goes back through the sweeps of relaxation.steps"

# Not those that ep alone uses, gradient.beta, variant, scale and hold_pooling, nor those that plain backprop has no use for:
# tables train the same settings by all of them.
CONDITIONS = (
    Condition(
        ("data.size", "data.colours", "data.test_part"),
        lambda s: s.data.name in ("folder", "given"),
        OFFICIAL,
    ),
    Condition(
        ("data.test_seed",),
        lambda s: s.data.name in ("folder", "given") or s.data.validation > 0,
        "nothing is drawn to test on; take data.validation",
    ),
    Condition(("optimiser.momentum",), lambda s: s.optimiser.kind == "sgd", "Adam has its own; take optimiser.kind=sgd"),
    Condition(("gradient.quality",), lambda s: s.sweeps == "calibrated", "it chooses the sweeps; take sweeps=calibrated"),
    Condition(("relaxation.tolerance", "relaxation.omega", "gradient.omega"), lambda s: s.sweeps != "plain", PLAIN),
    Condition(("gradient.omega",), lambda s: s.sweeps != "calibrated", "calibration chooses it; take sweeps=settle"),
    Condition(("gradient.tolerance",), lambda s: s.sweeps == "settle", "the number of sweeps is fixed; take sweeps=settle"),
    Condition(("model.feedback",), lambda s: max(s.model.block_sizes) > 1, ALONE),
    Condition(
        tuple(f"resistive.{key}" for key in Resistive.model_fields if key != "blocks"),
        lambda s: bool(s.resistive.blocks),
        "no block is a circuit; name some in resistive.blocks",
    ),
    Condition(
        ("model.max_contraction", "model.feedback", "model.slope", "model.clamped_outputs"),
        lambda s: not all(map(s.resistive.is_circuit, range(1, s.model.blocks + 1))),
        "all blocks are circuits, which have rails, amplifiers of their own, and settle by themselves",
    ),
    Condition(
        ("resistive.doubled", "resistive.input_gain"),
        lambda s: not s.resistive.blocks or s.resistive.input == "voltage",
        "it is of voltages that enter; take resistive.input=voltage",
    ),
    Condition(
        ("resistive.saturation", "resistive.ideality"),
        lambda s: not s.resistive.blocks or s.resistive.diode == "exponential",
        "it is of exponential diodes; take resistive.diode=exponential",
    ),
    Condition(
        ("resistive.offset", "resistive.on", "resistive.off"),
        lambda s: not s.resistive.blocks or s.resistive.diode == "threshold",
        "it is of threshold diodes; take resistive.diode=threshold",
    ),
    Condition(("model.pooling",), lambda s: bool(s.model.pooled), "no layer is pooled; name some in model.pooled"),
    Condition(("gradient.beta",), lambda s: not s.gradient.automatic_beta, "it is chosen; take gradient.automatic_beta=false"),
    Condition(("hardware.material_age",), lambda s: s.hardware.material is not None, "there is none; take hardware.material"),
    Condition(("hardware.crossbars",), lambda s: s.hardware.mismatch > 0, "they are alike; take hardware.mismatch"),
    Condition(("hardware.drift_phase",), lambda s: s.hardware.drift > 0, "nothing drifts; take hardware.drift"),
    Condition(("hardware.pulse_range",), lambda s: s.hardware.pulses is not None, "there are none; take hardware.pulses"),
    Condition(
        ("hardware.rounding",),
        lambda s: s.hardware.adc_bits is not None or s.hardware.dac_bits is not None,
        "there is nothing to round; take hardware.adc_bits",
    ),
    Condition(
        ("hardware.average",),
        lambda s: s.hardware.adc_noise > 0 or s.hardware.rounding == "stochastic",
        "repeated read-outs are alike; take hardware.adc_noise or hardware.rounding=stochastic",
    ),
    Condition(
        ("gradient.steps", "gradient.tolerance", "gradient.order", "gradient.omega"),
        lambda s: s.gradient.kind != "bptt",
        THROUGH_TIME,
    ),
    Condition(
        ("parts.model", "parts.estimator"),
        lambda s: s.relaxes,
        "plain backprop is by the library's own layers; take another gradient.kind",
    ),
)


def without_effect(settings: Settings, keys: Iterable[str]) -> list[tuple[str, str]]:
    """Those of these keys that change nothing, and why."""
    given, idle = set(keys), [condition for condition in CONDITIONS if not condition.used(settings)]
    return [(key, condition.reason) for condition in idle for key in condition.keys if key in given]
