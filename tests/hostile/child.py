"""Tries attacks in a process of its own, with a limit on its memory: `python -m hostile.child KIND SEED COUNT FOLDER`.

Prints a line of JSON in the end: how many were tried, how many ended in a sentence, the memory they took above that of the
imports, and what went wrong. The number of the attack under way is in FOLDER.attack, for the case that nothing is printed.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import sys
import traceback
import warnings
from collections import Counter
from contextlib import suppress
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from ffebm.errors import UnsettledWarning
from ffebm.experiment.errors import UserError

ROOM = 2 << 30  # bytes of addresses that may be taken besides those of the imports
SECONDS = 30  # that an attack may take
MODULES = {
    "pickles": ("pickles", "attacks"),
    "archives": ("archives", "attacks"),
    "pictures": ("pictures", "attacks"),
    "runs": ("runs", "attacks"),
    "checkpoints": ("runs", "checkpoint_attacks"),
    "settings": ("settings", "attacks"),
    "tables": ("tables", "attacks"),
}


class TooSlowError(Exception):
    pass


def main(kind: str, seed: str, count: str, place: str) -> None:
    torch.set_num_threads(1)
    folder = Path(place)
    folder.mkdir()
    module, name = MODULES[kind] if kind in MODULES else kind.split(":")
    supply = getattr(import_module(f"hostile.{module}"), name)(random.Random(f"{kind}-{seed}"), folder)
    if ":" not in kind:
        with suppress(UserError):
            next(supply)()  # whatever is imported or kept once
    signal.signal(signal.SIGALRM, _too_slow)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    answers: Counter[str] = Counter()
    faults: list[str] = []
    for number, attack in enumerate(islice(supply, int(count))):
        Path(f"{place}.attack").write_text(str(number))
        answers[_answer(attack, number, faults)] += 1
        if len(faults) > 20:
            break
    taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(json.dumps({"tried": sum(answers.values()), **answers, "megabytes": round(taken), "faults": faults}))


def _answer(attack: Any, number: int, faults: list[str]) -> str:
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", UnsettledWarning)  # which is a sentence
            attack()
    except UserError as error:
        if not str(error) or max(map(len, str(error).splitlines())) > 1000:
            faults.append(f"attack {number}: a message of {len(str(error))} characters")
        return "refused"
    except BaseException:
        faults.append(f"attack {number}: {traceback.format_exc()[-1500:]}")
        return "failed"
    finally:
        signal.alarm(0)
    return "accepted"


def _too_slow(*_: object) -> None:
    raise TooSlowError


if __name__ == "__main__":
    main(*sys.argv[1:])
