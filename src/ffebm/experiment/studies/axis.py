"""What a study varies."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Axis", "Level"]
__dir__ = __all__.copy


@dataclass(frozen=True)
class Level:
    """One value of an axis: how it is called, and the settings that it changes."""

    name: str
    changes: tuple[str, ...]  # as for `ffebm train`
    plain: bool = True  # a value of the axis's key, rather than a name of its own


@dataclass(frozen=True)
class Axis:
    """Levels from the roughest to the reference, which comes last.

    Args:
        label: what is varied.
        phrase: a level in sentences, such as "{} bits".
    """

    label: str
    levels: tuple[Level, ...]
    phrase: str = "{}"

    @property
    def reference(self) -> Level:
        return self.levels[-1]

    def named(self, level: Level) -> str:
        """A level in a sentence."""
        return self.phrase.replace("{}", level.name) if level.plain else level.name
