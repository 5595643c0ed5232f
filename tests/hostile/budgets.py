"""Files as large as a reader takes, made of what takes most memory: each supply repeats one attack."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import partial
from itertools import repeat
from pathlib import Path

from PIL import Image

from ffebm.experiment import packing, run
from ffebm.experiment.data.unpickling import INSTRUCTIONS, read_pickle
from ffebm.experiment.packing import STRUCTURE, unpacked
from ffebm.experiment.pictures import PIXELS, read_image
from ffebm.experiment.reproduction import static
from ffebm.experiment.run import COLUMNS, Run
from ffebm.experiment.sealed import SealError, seal
from ffebm.experiment.settings.reading import LARGEST, read_settings
from hostile import Attack


def pickles(_: random.Random, folder: Path) -> Iterator[Attack]:
    (folder / "batch").write_bytes(b"\x80\x02" + b"]" * (INSTRUCTIONS - 2))
    return repeat(partial(read_pickle, folder / "batch"))


def pictures(_: random.Random, folder: Path) -> Iterator[Attack]:
    side = int(PIXELS**0.5)
    Image.new("RGBA", (side, side)).save(folder / "x.png", compress_level=1)
    return repeat(partial(read_image, folder / "x.png", (3, 32, 32)))


def settings(_: random.Random, folder: Path) -> Iterator[Attack]:
    (folder / "x.toml").write_text("".join(f"a{number} = 1\n" for number in range(LARGEST // 14)))
    return repeat(partial(read_settings, folder / "x.toml"))


def metrics(_: random.Random, folder: Path) -> Iterator[Attack]:
    row = ",0" * (len(COLUMNS) - 1) + "\n"
    rows = "".join(f"{number}{row}" for number in range(1, run.LARGEST // (len(row) + 6)))
    (folder / "metrics.csv").write_text(",".join(COLUMNS) + "\n" + rows)
    return repeat(Run(folder).metrics)


def logs(_: random.Random, folder: Path) -> Iterator[Attack]:
    (folder / "environment.json").write_text("[" + "{}," * (run.LARGEST // 3 - 2) + "{}]")
    return repeat(Run(folder).environments)


def checkpoints(_: random.Random, folder: Path) -> Iterator[Attack]:
    text = "[" + "{}," * (packing.LARGEST // 3 - 2) + "{}]"
    (folder / "x").write_bytes(seal({}, {STRUCTURE: text}))

    def read() -> None:
        try:
            unpacked(folder / "x")
        except SealError as error:
            raise run.RunError(str(error)) from None

    return repeat(read)


def analyses(_: random.Random, folder: Path) -> Iterator[Attack]:
    layer = json.dumps({"name": "x", "block": 1, "cosine": 1, "deviation": 0, "ep": [[0]] * 1000, "id": []})
    count = static.LARGEST // (len(layer) + 2) - 1
    (folder / "x.json").write_text('{"layers": [' + ", ".join([layer] * count) + "]}")
    return repeat(partial(static.read_static, folder / "x.json"))
