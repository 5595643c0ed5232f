"""Refusals of bad arguments, at construction: what, got, why, what to do instead."""

from __future__ import annotations

import re
import reprlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "brief",
    "brief_name",
    "check_choice",
    "check_samples_stay_apart",
    "check_size",
    "check_type",
    "one_line",
    "refuse_old_names",
]
__dir__ = __all__.copy

# torch is imported where it is needed: settings are checked, and quoted, before it is loaded.


_CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]")  # but for what counts as a space
_HALF = re.compile("[\ud800-\udfff]")  # surrogates: what Python makes of a file name that is not UTF-8


def brief(value: object, width: int = 80) -> str:
    """A value as Python writes it, on one line of at most `width` characters: messages quote what they were given."""
    text = _Brief(width).repr(value)
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: width + 1])
    return shown if len(shown) <= width else f"{shown[: width - 1]}…"


def brief_name(text: str, width: int = 80) -> str:
    """A key, a name or a path in the middle of a sentence: itself, unless it is long or cannot be shown."""
    return text if len(text) <= width and text.isprintable() else brief(text, width + 2)[1:-1]


def one_line(words: str) -> str:
    """Words without line breaks and control characters, which neither a picture nor a table can show."""
    return " ".join(_HALF.sub("\ufffd", _CONTROL.sub("", words)).split())


class _Brief(reprlib.Repr):
    """Looks at no more of a value than it shows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.maxlevel = 3
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdeque = self.maxarray = self.maxdict = (
            width // 3
        )
        self.fillvalue = "…"

    def repr_int(self, x: int, level: int) -> str:
        digits = int(x.bit_length() * 0.30103) + 1
        return repr(x) if digits <= self.width else f"a whole number of about {digits:,} digits"  # Python writes none so long

    def repr_instance(self, x: object, level: int) -> str:
        try:
            return " ".join(repr(x).split())
        except Exception:  # whatever it does, it must not hide the message that it is quoted in
            return f"a {type(x).__name__}"

    def repr_str(self, x: str | bytes, level: int) -> str:
        """Both ends of a text, between its quotes."""
        whole = repr(x[: self.width])
        if len(x) <= self.width and len(whole) <= self.width:
            return whole
        head, half = len(whole) - len(whole.lstrip("b")) + 1, (self.width - 4) // 2
        return f"{whole[: head + half]}…{repr(x[-half:])[-half - 1 :]}"

    repr_bytes = repr_str


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"Unknown {name} {brief(value)}; choose one of {', '.join(map(repr, choices))}.")


def check_type(name: str, value: object, kind: type, example: str) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"`{name}` must be a {kind.__name__} such as {example}, got {brief(value)}.")


def check_size(name: str, size: int, least: int = 1) -> None:
    if isinstance(size, bool) or not isinstance(size, int) or size < least:
        raise ValueError(f"`{name}` must be a whole number of at least {least}, got {brief(size)}: it is a count.")


def check_samples_stay_apart(what: str, module: nn.Module, instead: str) -> None:
    """Refuse batch-norm and dropout in a part that runs at every sweep."""
    from torch.nn.modules.batchnorm import _BatchNorm
    from torch.nn.modules.dropout import _DropoutNd

    for name, part in module.named_modules():
        if isinstance(part, _BatchNorm | _DropoutNd):
            raise ValueError(
                f"{what} holds {type(part).__name__} ({name or 'itself'}), and runs at every sweep: samples would interact, "
                f"or the energy change under way. {instead}"
            )


def refuse_old_names(cls: type, **names: str) -> None:
    """Refuse a subclass with a method that has another name by now: under the old one, nobody would call it."""
    for old, new in names.items():
        if old in vars(cls):
            raise TypeError(
                f"`{cls.__name__}.{old}` would never be called: that method is called `{new}` now. See CHANGELOG.md."
            )
