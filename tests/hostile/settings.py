"""Settings and arguments that no one should type: generated, and run to see that a sentence answers every one of them."""

from __future__ import annotations

import io
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal
from unittest import mock

from ffebm.experiment import command_line
from ffebm.experiment.errors import UserError
from ffebm.experiment.preset import preset_names, read_preset_or_file
from ffebm.experiment.settings import Settings, read_settings
from ffebm.experiment.settings.reading import KEYS
from hostile import Attack

LONGEST = 400  # characters of a line of a message
NAMES = [key for key in KEYS if "." in key or key in ("seed", "sweeps")]
VALUES = [
    *(
        "0",
        "-1",
        "1",
        "1e308",
        "-1e308",
        "1e-320",
        "1e30",
        "nan",
        "inf",
        "-inf",
        "true",
        "none",
        '"none"',
        "[]",
        "{}",
        '""',
        "''",
    ),
    *("1" + "0" * 20, "9" * 400, "9" * 5000, "2147483648", "-9223372036854775809", "0x" + "f" * 6000, "1979-05-27", "07:32:00"),
    *("[1, [2]]", "[" * 2000 + "]" * 2000, "[" * 50, "{a = " * 300 + "1" + "}" * 300, "[" + "1, " * 3000 + "]", "[1e400]"),
    *("~nosuchuser", "~", "a\0b", "\udcff", "\ud800", "\x1b[31mred", "x" * 20_000, '"' + "x" * 20_000 + '"', "1\nseed = 2"),
    *(
        "all",
        "adam",
        "sgd",
        "plain",
        "calibrated",
        "bptt",
        "digits",
        "/dev/null",
        "[[a]]",
        "{" + "a." * 3000 + "a=1}",
        "=",
        "\\",
    ),
]
WORDS = [
    "",
    " ",
    ".",
    "..",
    "=",
    "a.b.c",
    "*",
    "[",
    "[bold]",
    "%s",
    "{}",
    "~nosuchuser/x",
    "\udcff\udcfe",
    "\x1b]0;x\x07",
    "-",
    "--",
]
WORDS += [
    "nowhere",
    "nowhere.toml",
    "/dev/zero",
    "/",
    "x" * 300,
    "x" * 20_000,
    "x" * 1_000_000,
    "9" * 5000,
    "1" + "0" * 30,
    "é" * 50,
]
COMMANDS = [
    *(("settings",), ("presets",), ("evaluate",), ("predict", "nowhere"), ("report", "nowhere", "--sample")),
    *(("report", "nowhere", "--title", "x", "--output"), ("predict", "nowhere", "x.png", "--top"), ("train", "--resume")),
    *(("train", "nothing=1", "--output"), ("train", "nothing=1", "--data"), ("train", "nothing=1"), ("data", "check")),
    *(
        ("bench", "nothing:1:1", "--rounds"),
        ("bench", "nothing", "--threads"),
        ("bench", "nothing", "--data"),
        ("reproduce", "static", "--scale", "tiny", "--data", "x", "--seed"),
    ),
    *(
        ("reproduce", "split", "nothing=1", "--seeds"),
        ("reproduce", "split", "--row"),
        ("reproduce", "split", "nothing=1", "--jobs"),
    ),
    *(("cost",), ("cost", "nowhere"), ("cost", "digits"), ("study", "nowhere"), ("study", "bits", "--dry-run", "--seeds")),
    *((), ("data",), ("reproduce",), ("train", "nothing=1", "--")),
]


@dataclass(frozen=True)
class Case:
    """A settings file, overrides of a preset, or what follows `ffebm`; none of them makes anything begin to train."""

    kind: Literal["file", "overrides", "arguments"]
    parts: tuple[str, ...]


def attacks(chance: random.Random, _folder: Path) -> Iterator[Attack]:
    while True:
        for case in cases(chance, 100):
            yield partial(_refuse, case)


def _refuse(case: Case) -> None:
    if answer := check(case):
        raise UserError(answer)


def cases(chance: random.Random, n: int) -> Iterator[Case]:
    for _ in range(n):
        kind = chance.choice(("file", "overrides", "overrides", "arguments"))
        if kind == "file":
            yield Case(kind, (_text(chance),))
        elif kind == "overrides":
            yield Case(
                kind, (chance.choice([*preset_names(), *WORDS]), *(_override(chance) for _ in range(chance.randint(1, 3))))
            )
        else:
            yield Case(kind, (*chance.choice(COMMANDS), chance.choice([*WORDS, *VALUES])))


def check(case: Case) -> str:
    """What it is answered by: nothing, or lines that a person can read. Anything but a sentence is raised."""
    answer = {"file": _answer_to_file, "overrides": _answer_to_overrides, "arguments": _answer_to_arguments}[case.kind](
        case.parts
    )
    for line in answer.splitlines():
        assert len(line) <= LONGEST, (case.kind, line[:LONGEST])
    assert "Traceback" not in answer
    answer.encode()  # it can be shown
    return answer


def _text(chance: random.Random) -> str:
    """A settings file: lines that may be right, with some damage."""
    lines = [chance.choice((f"[{chance.choice(WORDS[:12])}]", _override(chance))) for _ in range(chance.randint(1, 20))]
    text = "\n".join(lines)
    damage = chance.randrange(6)
    if damage == 0:
        return "".join(chance.choice("[]{}=.,\"'#\n ax1\\") for _ in range(chance.randint(1, 3000)))
    if damage == 1:
        return "\n".join(f"{chance.choice('abc')}{number} = 1" for number in range(chance.choice((11, 5000))))
    if damage == 2:
        return "a." * chance.choice((50, 5000, 100_000)) + "a = 1"
    if damage == 3:
        return f"[model]\n{'x' * 900_000} = 1" if chance.random() < 0.5 else "# " + "x" * 1_100_000
    return text


def _override(chance: random.Random) -> str:
    key = chance.choice((*NAMES, chance.choice(NAMES)[:-1], chance.choice(WORDS), "a." * chance.choice((1, 200, 3000)) + "a"))
    return f"{key}={chance.choice(VALUES)}"


def _answer_to_file(parts: tuple[str, ...]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "hostile.toml"
        path.write_bytes(parts[0].encode(errors="surrogatepass"))
        try:
            _save(read_settings(path), Path(folder))
        except UserError as error:
            return str(error)
    return ""


def _answer_to_overrides(parts: tuple[str, ...]) -> str:
    source, *overrides = parts
    with tempfile.TemporaryDirectory() as folder:
        try:
            _save(read_preset_or_file(source, overrides), Path(folder))
        except UserError as error:
            return str(error)
    return ""


def _save(settings: Settings, folder: Path) -> None:
    """What is accepted can be saved, and read again."""
    settings.save(folder / "settings.toml")
    assert read_settings(folder / "settings.toml") == settings


def _answer_to_arguments(parts: tuple[str, ...]) -> str:
    """What `ffebm` prints, in a folder where there is nothing."""
    shown, results = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["ffebm", *parts]),
        mock.patch.dict("os.environ", {"FFEBM_DATA": "", "COLUMNS": "200"}),
        redirect_stderr(shown),
        redirect_stdout(results),
        suppress(SystemExit),  # main() ends like this
    ):
        command_line.main()
    return shown.getvalue()
