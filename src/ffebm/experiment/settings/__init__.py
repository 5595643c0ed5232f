"""All settings of a training run: read from TOML, overridden by `key=value`, checked, and saved as they were used."""

from ffebm.experiment.settings.reading import IdleError, SettingsError, read_settings, settings_from
from ffebm.experiment.settings.reference import documented
from ffebm.experiment.settings.resistive import Resistive
from ffebm.experiment.settings.sections import Gradient, Hardware, Model, Score, Settings, Trainer

__all__ = [
    "Gradient",
    "Hardware",
    "IdleError",
    "Model",
    "Resistive",
    "Score",
    "Settings",
    "SettingsError",
    "Trainer",
    "documented",
    "read_settings",
    "settings_from",
]
__dir__ = __all__.copy
