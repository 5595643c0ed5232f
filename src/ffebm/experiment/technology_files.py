"""Tables of constants as TOML files: the one that comes with the package, and those of users over it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from importlib import resources
from pathlib import Path
from typing import Any

from ffebm.checks import brief, brief_name
from ffebm.experiment.errors import UserError
from ffebm.experiment.settings.reading import closest, parsed, read_toml
from ffebm.hardware.cost import CONSTANTS, Constant, Design, Quantity, Technology

__all__ = ["DEFAULT", "TechnologyError", "read_technology"]
__dir__ = __all__.copy

DEFAULT = Path(str(resources.files("ffebm.experiment") / "technologies" / "crossbar-32nm.toml"))
TABLE = ("description", "node", "design", "constants")
OF_CONSTANT = ("value", "unit", "node", "source")
DESIGN = tuple(choice.name for choice in fields(Design))


class TechnologyError(UserError):
    """A table of constants that cannot be used."""


def read_technology(path: Path | None = None, overrides: Iterable[str] = ()) -> Technology:
    """The table that comes with the package, or a user's own, which needs only what differs.

    Args:
        overrides: choices of the design, as `rows=256`.
    """
    table = read_toml(DEFAULT)
    constants = {name: _constant(name, entry, DEFAULT.name) for name, entry in table["constants"].items()}
    name = DEFAULT.name
    if path is not None:
        name = brief_name(path.name)
        own = read_toml(path)
        _check_keys(own, TABLE, f"of {name}")
        given = _section(own, "constants", name)
        _check_keys(given, CONSTANTS, f"in [constants] of {name}")
        constants |= {key: _constant(key, entry, name) for key, entry in given.items()}
        table |= {"design": {**table["design"], **_section(own, "design", name)}}
        table |= {key: own[key] for key in ("description", "node") if key in own}
    design = table["design"] | dict(map(_override, overrides))
    _check_keys(design, DESIGN, f"in [design] of {name}")
    try:
        return Technology(str(table["description"]), _number(table["node"], "node"), constants, Design(**design))
    except ValueError as error:
        raise TechnologyError(f"{name}: {error}") from None


def _section(table: Mapping[str, Any], key: str, name: str) -> Mapping[str, Any]:
    found = table.get(key, {})
    if not isinstance(found, Mapping):
        raise TechnologyError(f"`{key}` of {name} is a section, got {brief(found)}: write [{key}] and its keys below.")
    return found


def _override(text: str) -> tuple[str, Any]:
    key, sign, value = text.partition("=")
    if not sign:
        raise TechnologyError(f"`{brief_name(text)}` is no choice: write KEY=VALUE, for example rows=256.")
    return key.strip(), parsed(value.strip())


def _constant(name: str, entry: Any, where: str) -> Constant:
    """One line of the table, whole: a value, a unit, a source, and the node where there is one."""
    place = f"`{brief_name(name)}` in [constants] of {where}"
    if not isinstance(entry, Mapping):
        raise TechnologyError(f'{place} needs {{ value = …, unit = "…", source = "…" }}, got {brief(entry)}.')
    _check_keys(entry, OF_CONSTANT, f"of {place}")
    if not isinstance(source := entry.get("source"), str) or not source.strip():
        raise TechnologyError(f"{place} needs a `source`, such as a paper: a number without one cannot be checked.")
    unit, (needed, meaning) = entry.get("unit", ""), CONSTANTS[name]
    if not isinstance(unit, str):
        raise TechnologyError(f"`unit` of {place} is a text such as pJ, got {brief(unit)}.")
    try:
        quantity = Quantity.of(_number(entry.get("value"), "value"), unit)
        quantity.to(needed)
    except ValueError as error:
        raise TechnologyError(f"{place} ({meaning}): {error}.") from None
    node = entry.get("node")
    try:
        return Constant(quantity, unit, source, None if node is None else _number(node, "node"))
    except ValueError as error:
        raise TechnologyError(f"{place}: {error}.") from None


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"`{name}` must be a number that is not negative, got {brief(value)}")
    return float(value)


def _check_keys(table: Mapping[str, Any], known: Collection[str], where: str) -> None:
    for key in table:
        if key not in known:
            close = closest(key, list(known))
            hint = f"did you mean `{close}`?" if close else f"there are {', '.join(known)}."
            raise TechnologyError(f"Unknown key `{brief_name(key)}` {where}; {hint}")
