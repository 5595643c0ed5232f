"""Files and command lines made to do harm: every one ends in a sentence, in little memory, and none is executed.

A few of each kind are tried with every test run, thousands by `make test-hostile`. See `hostile/`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# How many to try, quickly and at length, and the memory in MB that one may take. A picture of all the pixels that are allowed
# takes 760, an idx file 256; most of what checkpoints take is a training run.
KINDS = {
    "pickles": (400, 12_000, 200),
    "archives": (200, 12_000, 300),
    "pictures": (200, 12_000, 800),
    "settings": (200, 12_000, 200),
    "tables": (150, 3_000, 200),
    "runs": (12, 600, 300),
    "checkpoints": (6, 250, 300),
}


def survive(kind: str, count: int, seed: int, megabytes: int, folder: Path) -> None:
    command = [sys.executable, "-m", "hostile.child", kind, str(seed), str(count), str(folder / "attacked")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "COLUMNS": "200"}
    found = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    under_way = folder / "attacked.attack"
    where = f"at attack {under_way.read_text()}" if under_way.exists() else "before the first attack"
    assert found.returncode == 0, f"crashed with {found.returncode} {where}: {found.stderr[-3000:]}"
    result = json.loads(found.stdout.splitlines()[-1])
    assert result["faults"] == [], "\n".join(result["faults"])
    assert result["tried"] == count
    assert result.get("refused", 0) > 0 or kind == "checkpoints" or ":" in kind, "nothing was hostile"
    assert result["megabytes"] < megabytes, result


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited and measured as Linux does it")
@pytest.mark.parametrize("kind", KINDS)
def test_a_few_of_every_kind_end_in_a_sentence(kind: str, tmp_path: Path) -> None:
    quick, _, megabytes = KINDS[kind]
    survive(kind, quick, 0, megabytes, tmp_path)


# The memory in MB that a reader takes for the largest file that it accepts, as docs/data.md has it.
BUDGETS = {
    "pickles": 300,
    "pictures": 1000,
    "settings": 200,
    "metrics": 200,
    "logs": 200,
    "checkpoints": 400,
    "analyses": 800,
}


@pytest.mark.hostile
@pytest.mark.parametrize("reader", BUDGETS)
def test_the_largest_file_takes_no_more_memory_than_the_docs_say(reader: str, tmp_path: Path) -> None:
    survive(f"budgets:{reader}", 1, 0, BUDGETS[reader], tmp_path)


@pytest.mark.hostile
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [1, 2])
def test_thousands_end_in_a_sentence(kind: str, seed: int, tmp_path: Path) -> None:
    _, long, megabytes = KINDS[kind]
    survive(kind, long // 2, seed, megabytes, tmp_path)
