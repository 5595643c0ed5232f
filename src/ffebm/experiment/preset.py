"""The settings that come with the package: TOML files, one for every row of the paper's tables, and the digits."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

from ffebm.checks import brief_name
from ffebm.experiment.settings import Settings, SettingsError, read_settings
from ffebm.experiment.settings.reading import closest

__all__ = ["DEFAULT", "FOLDER", "preset_names", "read_preset", "read_preset_or_file"]
__dir__ = __all__.copy

FOLDER = Path(str(resources.files("ffebm.experiment") / "presets"))
DEFAULT = "digits"


def preset_names() -> list[str]:
    """By data set and size: as the tables of the paper have them."""
    return sorted((path.stem for path in FOLDER.glob("*.toml")), key=_rank)


def read_preset(name: str, overrides: Iterable[str] = ()) -> Settings:
    names = preset_names()
    if name not in names:
        close = closest(name, names)
        hint = f"did you mean `{close}`?" if close else f"there are {', '.join(names)}."
        raise SettingsError(f"Unknown preset `{brief_name(name)}`; {hint} A file of your own must end in .toml.")
    return read_settings(FOLDER / f"{name}.toml", overrides)


def read_preset_or_file(source: str | None, overrides: Iterable[str] = ()) -> Settings:
    """What `ffebm train` is given first: a preset, a TOML file, or nothing for the default preset."""
    if source is not None and (source.endswith(".toml") or "/" in source):
        return read_settings(Path(source), overrides)
    return read_preset(source or DEFAULT, overrides)


def _rank(name: str) -> tuple[int, int, int, str]:
    """Small data sets and nets first; large blocks before small ones; then by name."""
    data, *_ = name.split("-")
    depth, size = (int(found[1]) if (found := re.search(rf"-{letter}(\d+)", name)) else 0 for letter in ("l", "bs"))
    order = ("digits", "mnist", "cifar10", "cifar100", "imagenet32")
    return order.index(data) if data in order else len(order), depth, -size, name
