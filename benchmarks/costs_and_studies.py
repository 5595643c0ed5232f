"""What hardware costs, and the studies that come along: make what is missing, and publish what the docs show.

Studies go on where they were stopped, so this does as well. Runs go to runs/. Writes results/cost and results/studies, and
figures into docs/images.

    python benchmarks/costs_and_studies.py [STUDY…]
"""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FFEBM = str(Path(sys.executable).with_name("ffebm"))  # not `python -m ffebm`: reports repeat the name of the command
STUDIES = ("bits", "noise", "settle-time", "split")
REPORT = ("report.md", "report.json", "study.png", "study.svg")  # report.html has Plotly's source: megabytes
COSTS = {
    "digits": "digits",
    "cifar10-l12-bs2": "cifar10-l12-bs2",
    "cifar10-l12-bs4": "cifar10-l12-bs4",
    "cifar10-l12-bs4-outer-product": "cifar10-l12-bs4 design.update=outer-product",
    "cifar10-l12-bs4-converted": "cifar10-l12-bs4 design.settle=converted",
    "cifar10-l12-bs4-at-once": "cifar10-l12-bs4 design.at_once=true",
}
FIGURE = "cifar10-l12-bs4"  # that the docs show


def run(*command: str) -> str:
    """What a command prints; when we are to stop, so is it."""
    with subprocess.Popen([FFEBM, *command], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            text, _ = process.communicate()
        except KeyboardInterrupt:
            process.terminate()
            raise
    if process.returncode:
        sys.exit(f"`ffebm {shlex.join(command)}` ended with exit code {process.returncode}; `make studies` goes on from here.")
    return text


def publish_costs() -> None:
    folder = ROOT / "results" / "cost"
    folder.mkdir(parents=True, exist_ok=True)
    for name, words in COSTS.items():
        figure = ["--figure", str(ROOT / "docs" / "images" / "cost.png")] if name == FIGURE else []
        text = run("cost", *shlex.split(words), *figure)
        kept = [line.rstrip() for line in text.splitlines() if not line.startswith("Figure: ")]
        (folder / f"{name}.txt").write_text("\n".join([f"$ ffebm cost {words}", *kept, ""]))


def publish_study(name: str) -> None:
    made, kept = ROOT / "runs" / f"study-{name}", ROOT / "results" / "studies" / name
    print(run("study", name), flush=True)
    kept.mkdir(parents=True, exist_ok=True)
    for file in REPORT:
        shutil.copyfile(made / file, kept / file)
    (answer,) = re.findall(r"^## Answer\n\n(.*?)(?=^## |\Z)", (made / "report.md").read_text(), re.DOTALL | re.MULTILINE)
    (kept / "results.md").write_text(answer)
    shutil.copyfile(made / "study.png", ROOT / "docs" / "images" / f"study-{name}.png")


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C
    chosen = sys.argv[1:] or STUDIES
    publish_costs()
    for name in chosen:
        publish_study(name)


if __name__ == "__main__":
    main()
