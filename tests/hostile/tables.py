"""Tables of constants and studies as somebody might damage them, or make them to do harm."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from ffebm.experiment.errors import UserError
from ffebm.experiment.studies import READY
from ffebm.experiment.studies.study import read_study
from ffebm.experiment.technology_files import DEFAULT, read_technology
from hostile import Attack, mutated
from hostile.settings import LONGEST, VALUES

Reader = Callable[[Path], object]


def attacks(chance: random.Random, folder: Path) -> Iterator[Attack]:
    sources: list[tuple[bytes, Reader]] = [(DEFAULT.read_bytes(), read_technology)]
    sources += [(path.read_bytes(), lambda path: read_study(str(path)).trials()) for path in sorted(READY.glob("*.toml"))]
    while True:
        content, read = chance.choice(sources)
        path = folder / "hostile.toml"
        yield partial(_try, read, path, _valued(content, chance) if chance.random() < 0.6 else mutated(content, chance))


def _valued(content: bytes, chance: random.Random) -> bytes:
    """The same with one value that is none."""
    places = list(re.finditer(rb"(?<== )([^#\n]+)", content))
    at = chance.choice(places)
    value = chance.choice(VALUES).encode(errors="surrogatepass")
    return content[: at.start()] + value + content[at.end() :]


def _try(read: Reader, path: Path, content: bytes) -> None:
    path.write_bytes(content)
    try:
        read(path)
    except UserError as error:
        for line in str(error).splitlines():
            assert len(line) <= LONGEST, line[:LONGEST]
        str(error).encode()
        raise
