"""Faults of code that settings name: by which of them it came, what was raised, in which file and on which line."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from types import CodeType

from ffebm.checks import brief_name, one_line
from ffebm.errors import DivergenceError, UnsettledError
from ffebm.experiment.errors import UserError
from ffebm.experiment.settings import SettingsError
from ffebm.experiment.settings.sections import Parts

__all__ = ["PartError", "blamed", "faults_of"]
__dir__ = __all__.copy

LONGEST = 300  # characters of what an error says
OURS = str(Path(__file__).parents[1])
INSTALLED = tuple({OURS, "<frozen", *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))})

Named = tuple[str, str]  # a setting, and what it names


class PartError(SettingsError):
    """Something went wrong in code that settings name."""


@contextmanager
def faults_of(key: str, name: str) -> Iterator[None]:
    """Whatever goes wrong inside is the fault of what this setting names."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        raise PartError(_sentence([(key, name)], error)) from error


def blamed(error: BaseException, parts: Parts, objects: Sequence[tuple[Named, object]] = ()) -> str:
    """A sentence on an error that came through code of these parts; nothing, where it did not.

    Args:
        objects: what parts have made, each with its setting; their methods may be written elsewhere.
    """
    if isinstance(error, UserError | MemoryError | DivergenceError | UnsettledError) or not isinstance(error, Exception):
        return ""  # which say already whose they are
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    acting = [named for named, made in objects if any(frame.f_locals.get("self") is made for frame in frames)]
    near = [named for named in parts.named() if any(_is_in_file_of(frame.f_code, named[1]) for frame in frames)]
    exact = [named for named in near if any(_is_of(frame.f_code, named[1]) for frame in frames)]
    whose = acting or exact or near
    return _sentence(whose, error) if whose else ""


def _sentence(whose: list[Named], error: BaseException) -> str:
    parts = " or ".join(f"`{key}` ({brief_name(name)})" for key, name in whose)
    words = brief_name(one_line(str(error)), LONGEST).rstrip(".")
    return f"{parts} raised {type(error).__name__} at {_place(error)}{f': {words}' if words else ''}."


def _place(error: BaseException) -> str:
    """The last step in code that is neither installed nor ours; where all is, the last step."""
    if isinstance(error, SyntaxError) and error.filename is not None:  # which no step has reached
        return f"{_shown(error.filename)}:{error.lineno}"
    steps = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    own = [step for step in steps if not step[0].startswith(INSTALLED)]
    file, line = (own or steps)[-1]
    return f"{_shown(file)}:{line}"


def _is_in_file_of(code: CodeType, name: str) -> bool:
    return code.co_filename == getattr(sys.modules.get(name.partition(":")[0]), "__file__", None)


def _is_of(code: CodeType, name: str) -> bool:
    """Whether it is the function that is named, or one of the class that is."""
    named = name.partition(":")[2]
    return _is_in_file_of(code, name) and f"{code.co_qualname}.".startswith(f"{named}.")


def _shown(file: str) -> str:
    """From where one is, as far as it lies below."""
    path = Path(file)
    here = Path.cwd()
    return brief_name(str(path.relative_to(here) if path.is_relative_to(here) else path), 200)
