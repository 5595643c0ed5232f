"""Every setting, explained."""

from __future__ import annotations

import json
from collections.abc import Iterator
from textwrap import wrap
from typing import Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ffebm.experiment.settings.sections import Settings

__all__ = ["documented", "fields"]
__dir__ = __all__.copy

WIDTH = 80  # of a terminal


def fields(section: type[BaseModel] = Settings, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every setting, dotted; a section comes before what is in it."""
    for name, info in section.model_fields.items():
        yield prefix + name, info
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from fields(info.annotation, f"{prefix}{name}.")


def documented(part: str = "") -> str:
    """The settings whose name holds `part`, with defaults and comments: a TOML file to start from."""
    lines: list[str] = []
    header = ""
    for key, info in fields():
        name = key.rpartition(".")[2]
        if isinstance(info.default, BaseModel):
            doc = (type(info.default).__doc__ or "").splitlines()[0]
            header = "\n".join(["", *_comment(doc), f"[{key}]"])
        elif part in key and not key.startswith(("paper", "description")):
            lines += [header] if header else []
            header = ""
            lines += _explained(name, info)
    return "\n".join(lines).strip() + "\n" if lines else ""


def _explained(name: str, info: FieldInfo) -> list[str]:
    """The setting and a comment, on one line if they fit."""
    text = f"# {name} = …" if info.default is None else f"{name} = {json.dumps(info.default)}"  # TOML writes these alike
    remark = "; ".join(part for part in (info.description, _values(info)) if part)
    line = f"{text:32}  # {remark}"
    return [line] if len(line) <= WIDTH else [*_comment(remark), text]


def _comment(remark: str) -> list[str]:
    return wrap(remark, WIDTH, initial_indent="# ", subsequent_indent="# ")


def _values(info: FieldInfo) -> str:
    """What a setting may be, where its default does not say."""
    kinds = [get_args(kind) for kind in (info.annotation, *get_args(info.annotation)) if get_origin(kind) is Literal]
    choices = " | ".join(str(choice) for group in kinds for choice in group)
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    limits = [f"{sign} {getattr(part, name)}" for part in info.metadata for name, sign in signs.items() if hasattr(part, name)]
    return choices or ", ".join(limits)
