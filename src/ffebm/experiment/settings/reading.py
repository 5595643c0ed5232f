"""Settings from TOML files and from the command line, or sentences on what is wrong with them."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from ffebm.experiment.errors import UserError
from ffebm.experiment.settings.reference import fields
from ffebm.experiment.settings.sections import Settings

COMMAND_LINE = "the command line"
KEYS = {key: info for key, info in fields() if not key.startswith("paper.")}
ALIASES = {"lr": "learning_rate", "batch_size": "batch", "max_epochs": "epochs", "gpus": "devices"}


class SettingsError(UserError):
    """Settings that cannot be used."""


def read_settings(path: Path, overrides: Iterable[str] = ()) -> Settings:
    """The settings in a TOML file, with some of them overridden."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"There is no file {path}.") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path} is not a readable TOML file: {error}.") from None
    return settings_from(content, overrides, path.name)


def settings_from(content: Mapping[str, Any], overrides: Iterable[str] = (), source: str = "the settings") -> Settings:
    """Check what a TOML file held. Overrides are `section.key=value`, with the value as in TOML, or bare text."""
    merged = {key: dict(value) if isinstance(value, Mapping) else value for key, value in content.items()}
    overridden: set[str] = set()
    for override in overrides:
        key, sign, value = override.partition("=")
        if not sign:
            hint = (
                "a list must be quoted, for example 'model.split=[2, 2]'"
                if override.endswith((",", "]"))
                else "for example model.width=0.5"
            )
            raise SettingsError(f"`{override}` is no setting: write key=value; {hint}.")
        *sections, last = key.strip().split(".")
        table: dict[str, Any] = merged
        for section in sections:
            if not isinstance(table.get(section), dict):
                table[section] = {}  # where a value belongs, the check will say so
            table = table[section]
        table[last] = _parsed(value.strip())
        overridden |= {key.strip(), sections[0] if sections else last}
    try:
        return Settings.model_validate(merged)
    except ValidationError as error:
        sentences = dict.fromkeys(_explain(dict(item), source, overridden) for item in error.errors())
        raise SettingsError("\n".join(sentences)) from None


def _parsed(text: str) -> Any:
    """A value as TOML writes it; `none` for no value; any other text stands for itself."""
    if text.lower() == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _explain(error: Mapping[str, Any], source: str, overridden: set[str]) -> str:
    """A sentence on one finding of pydantic."""
    path = [str(part) for part in error["loc"]]
    if error["type"] == "extra_forbidden":
        where = COMMAND_LINE if ".".join(path) in overridden else source
        section = f" in [{'.'.join(path[:-1])}]" if path[:-1] else ""
        return f"Unknown key `{path[-1]}`{section} of {where}{_suggestion(path)}"
    key = ".".join(path[:2]) if ".".join(path[:2]) in KEYS else path[0] if path else "settings"
    where = COMMAND_LINE if key in overridden else source
    got = error["input"]
    shown = "" if isinstance(got, dict | BaseModel) else f", got {got!r}"
    return f"`{key}` of {where}: {_wanted(key, path, error)}{shown}."


def _wanted(key: str, path: list[str], error: Mapping[str, Any]) -> str:
    """What a value should be, in words."""
    info = KEYS.get(key)
    if error["type"] == "model_type":
        return f"this is a section, not a value; write {key}.KEY=VALUE"
    if info is not None and "list" in str(info.annotation) and (len(path) > 2 or error["type"] == "list_type"):
        alone = (
            "a whole number or " if "int |" in str(info.annotation) else '"all" or ' if "all" in str(info.annotation) else ""
        )
        return f"input should be {alone}a list of whole numbers such as [2, 2]"
    message = error["msg"].removeprefix("Value error, ")
    return message[0].lower() + message[1:]


def _suggestion(path: list[str]) -> str:
    """The known key that comes closest: in the same section first, then anywhere; else all that the section has."""
    prefix, last = ".".join(path[:-1]), ALIASES.get(path[-1], path[-1])
    siblings = [key for key in KEYS if key.rpartition(".")[0] == prefix and key not in ("paper", "description")]
    names = [key.rpartition(".")[2] for key in siblings]
    if close := difflib.get_close_matches(last, names, n=1):
        return f"; did you mean `{close[0]}`?"
    ends = {key.rpartition(".")[2]: key for key in reversed(KEYS) if "." in key}
    if close := difflib.get_close_matches(last, ends, n=1, cutoff=0.75):
        return f"; did you mean `{ends[close[0]]}`?"
    return f"; there are {', '.join(f'`{name}`' for name in names)}." if names else "."
