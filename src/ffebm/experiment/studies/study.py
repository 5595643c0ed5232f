"""Studies as TOML files: those that come with the package, and those of users."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from ffebm.checks import brief, brief_name
from ffebm.experiment.errors import UserError
from ffebm.experiment.settings.overrides import as_overrides, written
from ffebm.experiment.settings.reading import closest, read_toml
from ffebm.experiment.studies.axis import Axis, Level
from ffebm.experiment.studies.names import READY, study_names
from ffebm.experiment.studies.trial import Trial

__all__ = ["Study", "StudyError", "read_study"]
__dir__ = __all__.copy

TABLE = ("title", "question", "preset", "seeds", "tolerance", "minutes", "settings", "axis")
OF_AXIS = ("label", "phrase", "key", "values")
OF_LEVEL = ("name", "settings")
AXES, LEVELS, SEEDS = 2, 50, 100  # at most
LONGEST = 60  # characters of the name of a level


class StudyError(UserError):
    """A study that cannot be made."""


@dataclass(frozen=True)
class Study:
    """A question, and the runs that answer it.

    Args:
        tolerance: points of accuracy that a level may lose against the last of its axis, and still suffice.
        minutes: that all runs take on two cores, about, where somebody knows.
    """

    name: str
    title: str
    question: str
    preset: str
    axes: tuple[Axis, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    changes: tuple[str, ...] = ()
    tolerance: float = 1.0
    minutes: float | None = None

    def trials(self, seeds: int | None = None, more: Sequence[str] = ()) -> list[Trial]:
        """All runs, seed by seed, so that an early end leaves a whole study of fewer seeds.

        Args:
            more: settings of every run besides the study's own.
        """
        chosen = self.seeds if seeds is None else range(seeds)
        levels = list(product(*(axis.levels for axis in self.axes)))
        return [Trial(self.preset, each, seed, (*self.changes, *more)) for seed in chosen for each in levels]


def read_study(source: str) -> Study:
    """A study by its name, or from a TOML file."""
    if source.endswith(".toml") or "/" in source:
        path = Path(source)
    else:
        if source not in (names := study_names()):
            close = closest(source, names)
            hint = f"did you mean `{close}`?" if close else f"there are {', '.join(names)}."
            raise StudyError(f"Unknown study `{brief_name(source)}`; {hint} A file of your own must end in .toml.")
        path = READY / f"{source}.toml"
    return _study(read_toml(path), path.stem, brief_name(path.name))


def _study(table: Mapping[str, Any], name: str, where: str) -> Study:
    _check_keys(table, TABLE, f"of {where}")
    entries = table.get("axis")
    if not isinstance(entries, list) or not 0 < len(entries) <= AXES:
        raise StudyError(f"{where} needs one or two axes, each under [[axis]], with `key` and `values`: what it varies.")
    tolerance, minutes = table.get("tolerance", 1.0), table.get("minutes")
    for key, number in (("tolerance", tolerance), ("minutes", minutes)):
        if isinstance(number, bool) or not (number is None or (isinstance(number, int | float) and 0 < number < 1e6)):
            raise StudyError(f"`{key}` of {where} must be a positive number, got {brief(number)}.")
    texts = {key: table.get(key, default) for key, default in (("title", name), ("question", ""), ("preset", "digits"))}
    for key, text in texts.items():
        if not isinstance(text, str):
            raise StudyError(f"`{key}` of {where} must be a text, got {brief(text)}.")
    axes = tuple(_axis(entry, where) for entry in entries)
    changes = tuple(as_overrides(_section(table.get("settings", {}), "settings", where)))
    seeds = _seeds(table.get("seeds", 3), where)
    study = Study(name, texts["title"], texts["question"], texts["preset"], axes, seeds, changes, tolerance, minutes)
    names = [trial.name for trial in study.trials(1)]
    if twice := next((each for each in names if names.count(each) > 1), None):
        raise StudyError(f"Two runs of {where} would be called {twice}: give levels other names.")
    for trial in study.trials(1):
        _ = trial.settings  # says what is wrong with one
    return study


def _seeds(found: Any, where: str) -> tuple[int, ...]:
    """Those in a list, or as many as a number says."""
    if isinstance(found, int) and not isinstance(found, bool) and 0 < found <= SEEDS:
        return tuple(range(found))
    several = found if isinstance(found, list) else []
    if not 0 < len(several) <= SEEDS or len(set(map(str, several))) < len(several) or not all(type(s) is int for s in several):
        raise StudyError(
            f"`seeds` of {where} must be a whole number from 1 to {SEEDS}, or a list of different seeds, got {brief(found)}."
        )
    return tuple(several)


def _axis(entry: Any, where: str) -> Axis:
    place = f"[[axis]] of {where}"
    entry = _section(entry, "axis", where)
    _check_keys(entry, OF_AXIS, f"in {place}")
    keys = entry.get("key", [])
    keys = [keys] if isinstance(keys, str) else keys
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise StudyError(f"`key` in {place} must be a setting, or a list of some, got {brief(entry.get('key'))}.")
    values = entry.get("values")
    if not isinstance(values, list) or not 1 < len(values) <= LEVELS:
        raise StudyError(
            f"`values` in {place} must be a list of 2 to {LEVELS}, the roughest first and last what all are compared with; "
            f"got {brief(values)}."
        )
    label, phrase = entry.get("label", " = ".join(keys)), entry.get("phrase", f"{' = '.join(keys)} {{}}")
    if not isinstance(label, str) or not isinstance(phrase, str) or "{}" not in phrase:
        raise StudyError(f'`label` in {place} must be a text, and `phrase` one with {{}} for a value, such as "{{}} bits".')
    return Axis(label, tuple(_level(value, keys, place) for value in values), phrase)


def _level(value: Any, keys: Sequence[str], place: str) -> Level:
    """A value of the axis's key, or a name with settings of its own."""
    if isinstance(value, Mapping):
        _check_keys(value, OF_LEVEL, f"of a value in {place}")
        if not isinstance(name := value.get("name"), str) or not name.strip():
            raise StudyError(f"A value in {place} that is a table needs a `name`, got {brief(value)}.")
        changes = as_overrides(_section(value.get("settings", {}), "settings", place))
        return Level(_short(name, place), tuple(changes), plain=False)
    if not keys:
        raise StudyError(f"{place} has the value {brief(value)} and no `key`: name the setting that it is of.")
    text = _short(written(value), place)
    return Level(text, tuple(f"{key}={text}" for key in keys))


def _short(name: str, place: str) -> str:
    """A name that a folder can have, with others beside it."""
    if len(name) > LONGEST:
        raise StudyError(f"A value in {place} is called {brief(name)}, and {LONGEST} characters are the most: name it shorter.")
    return name


def _section(found: Any, key: str, where: str) -> Mapping[str, Any]:
    if not isinstance(found, Mapping):
        raise StudyError(f"`{key}` of {where} is a section, got {brief(found)}.")
    return found


def _check_keys(table: Mapping[str, Any], known: Collection[str], where: str) -> None:
    for key in table:
        if key not in known:
            close = closest(key, list(known))
            hint = f"did you mean `{close}`?" if close else f"there are {', '.join(known)}."
            raise StudyError(f"Unknown key `{brief_name(key)}` {where}; {hint}")
