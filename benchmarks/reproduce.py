"""The paper's figures and tables at the scale `converged`: make what is missing, and publish what the docs show.

Every table goes on where it was stopped, so this does as well. Needs CIFAR-10 and CIFAR-100 (FFEBM_DATA). Runs go to runs/, and
what is to be kept of them to results/reproduce as soon as each is finished: those that are there already are not made again.
Writes reports and figures there, too, and figures into docs/images.

    python benchmarks/reproduce.py            # all of it
    python benchmarks/reproduce.py --publish  # only what has been made so far, be it in part
"""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
FFEBM = str(Path(sys.executable).with_name("ffebm"))  # not `python -m ffebm`: reports repeat the name of the command
COMMANDS = (
    "static --output results/reproduce/static",
    "split --scale converged --keep results/reproduce/split/runs --output runs/split-converged",
    "static --run runs/split-converged/cifar10-l12-bs2-ep-seed0 --output results/reproduce/static-trained",
    "static --run runs/split-converged/cifar10-l12-bs4-ep-seed0 --output results/reproduce/static-trained-bs4",
    "scaling --scale converged --keep results/reproduce/scaling/runs --output runs/scaling-converged",
    "scaling --scale tiny --row imagenet32-l12 --row imagenet32-l15 --output runs/imagenet32-path",
)
REPORT = ("report.md", "report.json")  # report.html has Plotly's source and all figures: megabytes
FIGURES = ("accuracy.png", "accuracy.svg", "epochs.png", "epochs.svg")
IN_DOCS = (
    "split/accuracy.png",
    "split/epochs.png",
    "scaling/accuracy.png",
    "static/transients.png",
    "static/cosines.png",
    "static-trained/cosines.png",
    "static-trained-bs4/cosines.png",
)


class Table(NamedTuple):
    """What is published of a table."""

    name: str
    runs: str  # where it was made
    figures: tuple[str, ...] = ()


TABLES = (
    Table("split", "split-converged", FIGURES),
    Table("scaling", "scaling-converged", FIGURES),
    Table("imagenet32-path", "imagenet32-path"),  # generated images: only the path matters
)


def run(*command: str) -> None:
    """Wait for a command to end; when we are to stop, so is it, and it saves how far it has come."""
    with subprocess.Popen(command, cwd=ROOT) as process:
        while process.poll() is None:
            try:
                process.wait()
            except KeyboardInterrupt:
                process.terminate()  # Ctrl-C has reached it already, which does no harm; SIGTERM has not
    if process.returncode:
        sys.exit(f"`{shlex.join(command)}` ended with exit code {process.returncode}; `make reproduce` goes on from here.")


def publish_table(table: Table, runs: Path, results: Path) -> None:
    """Keep a table's report, and its results as the docs include them. Its runs are kept already."""
    made, kept = runs / table.runs, results / table.name
    for name in REPORT:
        copy(made / name, kept / name)
    for name in table.figures:
        if (made / name).exists():  # there is none where nothing is compared yet
            copy(made / name, kept / name)
    (kept / "results.md").write_text(results_section((made / "report.md").read_text()))


def results_section(report: str) -> str:
    """What a report has below its heading Results."""
    found = re.search(r"^## Results\n(.*?)(?=^## |\Z)", report, re.DOTALL | re.MULTILINE)
    if found is None:
        raise ValueError(f"`{report.partition(chr(10))[0]}` has no section Results, as if nothing had been run: run it again.")
    return found[1]


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def publish_all(runs: Path, results: Path, images: Path) -> None:
    """Of what has been made so far."""
    for table in TABLES:
        if (runs / table.runs / "report.md").exists():
            publish_table(table, runs, results)
    for figure in IN_DOCS:
        if (results / figure).exists():
            copy(results / figure, images / figure.replace("/", "-"))
    for page in results.glob("*/report.html"):  # of the static analyses, which are made there
        page.unlink()


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C
    for number, command in enumerate(COMMANDS if sys.argv[1:] != ["--publish"] else (), 1):
        print(f"{number} of {len(COMMANDS)}: ffebm reproduce {command}", flush=True)
        run(FFEBM, "reproduce", *shlex.split(command))
    print("Publishing results/reproduce and docs/images", flush=True)
    publish_all(ROOT / "runs", ROOT / "results" / "reproduce", ROOT / "docs" / "images")


if __name__ == "__main__":
    main()
