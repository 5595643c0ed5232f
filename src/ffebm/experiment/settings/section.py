"""What every section of the settings is: a table of the TOML file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator, model_validator

from ffebm.experiment.settings.paths import check_writable

__all__ = ["Section"]
__dir__ = __all__.copy

SMALLEST, LARGEST = 1e-30, 1e30  # sizes of numbers: what 32-bit floats hold, with room for products of them
MOST = 2**31 - 1  # of anything that is counted


class Section(BaseModel):
    """A table of the TOML file. Keys that do not exist are refused, and nothing changes once it is made."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _nothing(cls, table: Any) -> Any:
        """TOML has no word for nothing; "none" stands for it."""
        return {key: None if value == "none" else value for key, value in table.items()} if isinstance(table, dict) else table

    @field_validator("*")
    @classmethod
    def _check_storable(cls, value: Any) -> Any:
        """Nothing passes that a tensor, a counter or the saved file could not hold."""
        for part in _parts(value):
            if isinstance(part, float) and part != 0 and not SMALLEST <= abs(part) <= LARGEST:
                raise ValueError(
                    f"a number must be 0 or between {SMALLEST:g} and {LARGEST:g} in size, as 32-bit floats hold it"
                )
            if isinstance(part, int) and abs(part) > MOST:
                raise ValueError(f"a whole number may be {MOST:,} at most")
            if isinstance(part, str):
                check_writable(part)
        return value

    def as_toml(self) -> dict[str, Any]:
        """What TOML can hold; nothing is left out where it is the default, and named where it is not."""
        values = self.model_dump(mode="json")
        for name, info in type(self).model_fields.items():
            value = getattr(self, name)
            if isinstance(value, Section):
                values[name] = value.as_toml()
            elif value is None:
                values.pop(name) if info.default is None else values.update({name: "none"})
        return values


def _parts(value: Any) -> Iterator[Any]:
    """A value, or those in a list, however deep."""
    if isinstance(value, list):
        for part in value:
            yield from _parts(part)
    else:
        yield value
