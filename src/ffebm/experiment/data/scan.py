"""The pictures below a folder, by class, and those that nothing reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ffebm.checks import brief_name

__all__ = ["Scan", "folders_in", "passed_over", "scan"]
__dir__ = __all__.copy

SUFFIXES = (".png", ".jpg", ".jpeg")
OTHERS = (".webp", ".bmp", ".gif", ".tif", ".tiff", ".heic", ".heif", ".avif", ".jp2", ".jfif", ".ppm", ".pgm")  # not read


@dataclass(frozen=True)
class Scan:
    """What the class folders in a folder hold."""

    folder: Path
    pictures: list[tuple[Path, str]] = field(default_factory=list)  # with their classes
    foreign: list[str] = field(default_factory=list)  # suffixes of pictures in formats that are not read
    loose: int = 0  # pictures beside the class folders
    empty: list[str] = field(default_factory=list)  # class folders without a picture that is read


def folders_in(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith((".", "__"))]


def scan(folder: Path, classes: Sequence[Path] | None = None) -> Scan:
    """Look at the names of all files.

    Args:
        classes: the folders in it, if they are known.
    """
    found = Scan(folder, loose=sum(_is_picture(path) for path in folder.iterdir()))
    for below in folders_in(folder) if classes is None else classes:
        files = [path for path in sorted(below.rglob("*")) if _is_picture(path)]
        read = [(path, below.name) for path in files if path.suffix.lower() in SUFFIXES]
        found.pictures.extend(read)
        found.foreign.extend(path.suffix.lower() for path in files if path.suffix.lower() in OTHERS)
        if not read:
            found.empty.append(below.name)
    return found


def passed_over(used: Sequence[Scan], unused: Sequence[Scan]) -> Iterable[str]:
    """Sentences on what is not read, for those who think it is."""
    foreign = [suffix for each in used for suffix in each.foreign]
    loose = sum(each.loose for each in used)
    elsewhere = {each.folder.name: count for each in unused if (count := len(each.pictures) + len(each.foreign) + each.loose)}
    reasons: list[str] = []
    if foreign:
        reasons.append(f"{len(foreign):,} in formats other than PNG and JPEG ({', '.join(sorted(set(foreign)))})")
    if loose:
        reasons.append(f"{loose:,} beside the folders of the classes")
    if elsewhere:
        names = brief_name(", ".join(elsewhere), 200)
        of = " and ".join(brief_name(each.folder.name) for each in used if each.pictures)
        reasons.append(f"{sum(elsewhere.values()):,} in {names}, where those in {of} are used")
    if reasons:
        count = len(foreign) + loose + sum(elsewhere.values())
        yield f"{count:,} picture{'s are' if count > 1 else ' is'} passed over: {'; '.join(reasons)}."
    empty = [name for each in used if each.pictures for name in each.empty]
    if empty:
        yield f"no PNG or JPEG file is in {brief_name(', '.join(empty), 200)}."


def _is_picture(path: Path) -> bool:
    """By its name."""
    return path.suffix.lower() in (*SUFFIXES, *OTHERS) and not path.name.startswith(".") and not path.is_dir()
