"""Which settings have an effect only together with others: one that is given and does nothing is a mistake."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ffebm.experiment.settings.sections import Settings


@dataclass(frozen=True)
class Condition:
    """When a setting is used, and why it is not otherwise."""

    key: str
    used: Callable[[Settings], bool]
    reason: str

    def __str__(self) -> str:
        return f"`{self.key}` has no effect here: {self.reason}, or leave {self.key} out."


PLAIN = "plain sweeps have neither tolerance nor over-relaxation; take sweeps=settle"
THROUGH_TIME = "backprop through time has no phase of its own, it goes back through the sweeps of relaxation.steps"

# Not those that ep alone uses, gradient.beta, variant, scale and hold_pooling: tables train the same settings by EP and ID.
CONDITIONS = (
    Condition("optimiser.momentum", lambda s: s.optimiser.kind == "sgd", "Adam has its own; take optimiser.kind=sgd"),
    Condition("gradient.quality", lambda s: s.sweeps == "calibrated", "it chooses the sweeps; take sweeps=calibrated"),
    *(
        Condition(key, lambda s: s.sweeps != "plain", PLAIN)
        for key in ("relaxation.tolerance", "relaxation.omega", "gradient.omega")
    ),
    Condition("gradient.omega", lambda s: s.sweeps != "calibrated", "calibration chooses it; take sweeps=settle"),
    Condition("gradient.tolerance", lambda s: s.sweeps == "settle", "the number of sweeps is fixed; take sweeps=settle"),
    *(
        Condition(key, lambda s: s.model.batch_norm != "off", "there is no batch-norm; take model.batch_norm=all")
        for key in ("model.norm_gain", "model.norm_eps")
    ),
    Condition(
        "model.feedback",
        lambda s: max(s.model.block_sizes) > 1,
        "in blocks of one layer nothing comes back; take a larger model.split",
    ),
    Condition("model.pooling", lambda s: bool(s.model.pooled), "no layer is pooled; name some in model.pooled"),
    *(
        Condition(f"gradient.{name}", lambda s: s.gradient.kind != "bptt", THROUGH_TIME)
        for name in ("steps", "tolerance", "order", "omega")
    ),
)


def without_effect(settings: Settings, keys: Iterable[str]) -> list[Condition]:
    """Those of these keys that change nothing, and why."""
    given = set(keys)
    return [condition for condition in CONDITIONS if condition.key in given and not condition.used(settings)]
