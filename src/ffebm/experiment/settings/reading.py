"""Settings from TOML files and from the command line, or sentences on what is wrong with them."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from ffebm.checks import brief, brief_name
from ffebm.experiment.errors import UserError
from ffebm.experiment.files import read_regular
from ffebm.experiment.settings.effect import without_effect
from ffebm.experiment.settings.paths import check_writable
from ffebm.experiment.settings.reference import fields
from ffebm.experiment.settings.sections import Settings

__all__ = ["KEYS", "LARGEST", "IdleError", "SettingsError", "closest", "parsed", "read_settings", "read_toml", "settings_from"]
__dir__ = __all__.copy

COMMAND_LINE = "the command line"
KEYS = {key: info for key, info in fields() if not key.startswith("paper.")}
ALIASES = {"lr": "learning_rate", "batch_size": "batch", "max_epochs": "epochs", "gpus": "devices"}
# Settings of earlier versions, with values that did nothing: files that were saved with these are still read.
GONE = {"norm_gain": 1.0, "norm_eps": 1e-5, "bias_gain": 1.0, "readout_gain": 1.0}
LARGEST = 1_000_000  # bytes of a settings file
DOTS, ALL_DOTS = 50, 10_000  # outside of quotes in a line, and in all: keys of many parts take tomllib much time and memory
EXPLAINED = 10  # mistakes; a file of another kind has thousands
LONGEST = 40  # characters of a name that may be a known one misspelt


class SettingsError(UserError):
    """Settings that cannot be used."""


class IdleError(SettingsError):
    """Settings that were given, and that nothing uses."""

    def __init__(self, idle: Sequence[tuple[str, str]]) -> None:
        super().__init__("\n".join(f"`{key}` has no effect here: {reason}, or leave {key} out." for key, reason in idle))
        self.keys = {key for key, _ in idle}


def read_settings(path: Path, overrides: Iterable[str] = ()) -> Settings:
    """The settings in a TOML file, with some of them overridden."""
    return settings_from(read_toml(path), overrides, brief_name(path.name))


def read_toml(path: Path) -> dict[str, Any]:
    """What a TOML file of settings says, whether or not they can be used."""
    name = brief_name(str(path), 200)
    try:
        return _toml(read_regular(path, LARGEST).decode())
    except FileNotFoundError:
        raise SettingsError(f"There is no file {name}.") from None
    except OSError as error:
        raise SettingsError(f"{name} is not a readable TOML file: {error.strerror or error}.") from None
    except ValueError as error:
        raise SettingsError(f"{name} is not a readable TOML file: {brief_name(str(error), 200)}.") from None


def _toml(text: str) -> dict[str, Any]:
    """What TOML text says; a ValueError where it says nothing, or what no settings can mean."""
    quoted = re.compile(r"""\"[^"]*\"|'[^']*'""")
    bare = (quoted.sub("x", line).partition("#")[0] for line in text.split("\n") if len(line) > 2 * DOTS)
    if any(line.count(".") > DOTS for line in bare) or text.count(".") > ALL_DOTS:
        raise ValueError(f"a line of it has more than {DOTS} dots, or all {ALL_DOTS:,}; no key has as many parts")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise ValueError("its brackets are nested too deep") from None
    except ValueError:  # Python reads no longer numbers
        raise ValueError("a number in it has thousands of digits") from None


def settings_from(content: Mapping[str, Any], overrides: Iterable[str] = (), source: str = "the settings") -> Settings:
    """Check what a TOML file held. Overrides are `section.key=value`, with the value as in TOML, or bare text."""
    merged = {key: dict(value) if isinstance(value, Mapping) else value for key, value in content.items()}
    if isinstance(model := merged.get("model"), dict):
        merged["model"] = {key: value for key, value in model.items() if not (key in GONE and value == GONE[key])}
    overridden: set[str] = set()
    for override in overrides:
        key, value = _split(override)
        *sections, last = key
        table: dict[str, Any] = merged
        for section in sections:
            if not isinstance(table.get(section), dict):
                table[section] = {}  # where a value belongs, the check will say so
            table = table[section]
        table[last] = value
        overridden |= {".".join(key), key[0]}
    try:
        settings = Settings.model_validate(merged)
    except ValidationError as error:
        raise SettingsError(_explain_all(error, source, overridden)) from None
    if idle := without_effect(settings, overridden):  # files and presets list settings of all kinds
        raise IdleError(idle)
    return settings


def _split(override: str) -> tuple[list[str], Any]:
    """The sections and the key that an override names, and the value that it gives."""
    key, sign, text = override.partition("=")
    if not sign:
        hint = "for example model.width=0.5"
        if override.endswith((",", "]")):
            hint = "a list must be quoted, for example 'model.split=[2, 2]'"
        raise SettingsError(f"`{brief_name(override)}` is no setting: write key=value; {hint}.")
    try:
        check_writable(override)
        return key.strip().split("."), parsed(text.strip())
    except ValueError as error:
        raise SettingsError(f"`{brief_name(override)}` cannot be used: {error}.") from None


def parsed(text: str) -> Any:
    """A value as TOML writes it; `none` for no value; any other text stands for itself."""
    if text.lower() == "none":
        return None
    try:
        found = _toml(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return found["value"] if len(found) == 1 else text  # more lines than one value


def _explain_all(error: ValidationError, source: str, overridden: Collection[str]) -> str:
    """A sentence on each of the first mistakes, one for every key, and how many more there are."""
    found: dict[tuple[str | int, ...], Mapping[str, Any]] = {}
    for item in error.errors(include_url=False, include_context=False):
        place = item["loc"] if item["type"] == "extra_forbidden" else item["loc"][:2]
        found.setdefault(place, dict(item))
    sentences = dict.fromkeys(_explain(item, source, overridden) for item in list(found.values())[:EXPLAINED])
    more = len(found) - EXPLAINED
    return "\n".join([*sentences, *([f"… and {more:,} more."] if more > 0 else [])])


def _explain(error: Mapping[str, Any], source: str, overridden: Collection[str]) -> str:
    """A sentence on one finding of pydantic."""
    path = [str(part) for part in error["loc"]]
    if error["type"] == "extra_forbidden":
        where = COMMAND_LINE if ".".join(path) in overridden else source
        section = f" in [{brief_name('.'.join(path[:-1]))}]" if path[:-1] else ""
        return f"Unknown key `{brief_name(path[-1])}`{section} of {where}{_suggestion(path)}"
    key = ".".join(path[:2]) if ".".join(path[:2]) in KEYS else path[0] if path else "settings"
    where = COMMAND_LINE if key in overridden else source
    got = error["input"]
    shown = "" if isinstance(got, dict | BaseModel) else f", got {brief(got)}"
    return f"`{brief_name(key)}` of {where}: {_wanted(key, path, error)}{shown}."


def _wanted(key: str, path: list[str], error: Mapping[str, Any]) -> str:
    """What a value should be, in words."""
    info = KEYS.get(key)
    if error["type"] == "model_type":
        return f"this is a section, not a value; write {key}.KEY=VALUE"
    kind = "" if info is None else str(info.annotation)
    if "list" in kind and (len(path) > 2 or error["type"] == "list_type"):
        alone = "a whole number or " if "int |" in kind else '"all", "max-pooled" or ' if "all" in kind else ""
        several = "pairs of whole numbers such as [[1, 3]]" if "list[list" in kind else "whole numbers such as [2, 2]"
        return f"input should be {alone}a list of {several}"
    message = error["msg"].removeprefix("Value error, ").removesuffix(".")  # the library's are sentences
    return message[0].lower() + message[1:]


def _suggestion(path: list[str]) -> str:
    """The known key that comes closest: in the same section first, then anywhere; else all that the section has."""
    if path[-1] in GONE:
        return ": earlier versions had it. Leave it out, and let `model.start=0.5` scale initial weights by data."
    prefix, last = ".".join(path[:-1]), ALIASES.get(path[-1], path[-1])
    siblings = [key for key in KEYS if key.rpartition(".")[0] == prefix and key not in ("paper", "description")]
    names = [key.rpartition(".")[2] for key in siblings]
    if close := closest(last, names):
        return f"; did you mean `{close}`?"
    ends = {key.rpartition(".")[2]: key for key in reversed(KEYS) if "." in key}
    if close := closest(last, list(ends), cutoff=0.75):
        return f"; did you mean `{ends[close]}`?"
    return f"; there are {', '.join(f'`{name}`' for name in names)}." if names else "."


def closest(name: str, known: Sequence[str], cutoff: float = 0.6) -> str | None:
    """What was meant, perhaps. Comparing takes long for long names, which resemble none of ours."""
    found = difflib.get_close_matches(name, known, n=1, cutoff=cutoff) if len(name) <= LONGEST else []
    return found[0] if found else None
