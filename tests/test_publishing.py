"""`make reproduce`: its commands are ones that exist, and what the docs show is what its tables left."""

from __future__ import annotations

import runpy
import shlex
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from test_command_line import call

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "results" / "reproduce"
REPRODUCE = SimpleNamespace(**runpy.run_path(str(ROOT / "benchmarks" / "reproduce.py")))


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """What the commands leave: whole runs and reports of tables below runs/, static analyses below results/."""
    for table in REPRODUCE.TABLES:
        for name in (
            "report.md",
            "report.json",
            "report.html",
            "accuracy.png",
            "accuracy.svg",
            "epochs.png",
            "epochs.svg",
            "one-ep-seed0.log",
            "queue.lock",
        ):
            write(tmp_path / "runs" / table.runs / name, f"{name} of {table.name}\n\n## Results\n\n{table.name}\n\n## More\n")
    for folder in ("static", "static-trained", "static-trained-bs4"):
        for name in ("transients.png", "cosines.png", "static.md", "report.html"):
            write(tmp_path / "results" / folder / name, f"{name} of {folder}")
    return tmp_path


def test_reports_and_numbers_are_kept_and_megabytes_are_not(place: Path) -> None:
    REPRODUCE.publish_all(place / "runs", place / "results", place / "images")
    report = {"report.md", "report.json", "results.md"}
    figures = {f"{name}.{kind}" for name in ("accuracy", "epochs") for kind in ("png", "svg")}
    assert files(place / "results" / "split") == files(place / "results" / "scaling") == report | figures
    assert files(place / "results" / "imagenet32-path") == report
    assert files(place / "results" / "static") == {"transients.png", "cosines.png", "static.md"}
    for table in REPRODUCE.TABLES:
        kept = place / "results" / table.name
        assert (kept / "results.md").read_text() == f"\n{table.name}\n\n"
        for name in files(kept) - {"results.md"}:
            assert (kept / name).read_bytes() == (place / "runs" / table.runs / name).read_bytes()


def test_the_docs_get_their_figures(place: Path) -> None:
    for _ in range(2):  # a second time replaces them
        REPRODUCE.publish_all(place / "runs", place / "results", place / "images")
    pages = "".join((ROOT / "docs" / f"{name}.md").read_text() for name in ("reproduce", "found"))
    shown = {text.partition(")")[0] for text in pages.split("(images/")[1:]}
    assert len(shown) >= 3
    assert shown == files(place / "images") & files(ROOT / "docs" / "images")  # a table that is not made yet has no figure
    assert (place / "images" / "static-trained-cosines.png").read_text() == "cosines.png of static-trained"
    assert (place / "images" / "scaling-accuracy.png").read_text().startswith("accuracy.png of scaling")


def test_a_table_that_lacks_its_numbers_is_not_published(place: Path) -> None:
    (place / "runs" / "split-converged" / "report.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"report\.json"):
        REPRODUCE.publish_all(place / "runs", place / "results", place / "images")


def test_what_is_made_so_far_is_published_alone(place: Path) -> None:
    for path in (place / "runs" / "scaling-converged").glob("report.*"):
        path.unlink()
    (place / "runs" / "split-converged" / "epochs.png").unlink()
    REPRODUCE.publish_all(place / "runs", place / "results", place / "images")
    assert not (place / "results" / "scaling").exists()
    assert (place / "images" / "split-accuracy.png").exists()
    assert not (place / "images" / "split-epochs.png").exists()


def test_the_results_are_cut_out_of_a_report() -> None:
    assert (
        REPRODUCE.results_section("# T\n\n## Before\n\na\n\n## Results\n\nb\n\n### Of it\n\nc\n\n## After\n")
        == "\nb\n\n### Of it\n\nc\n\n"
    )
    assert REPRODUCE.results_section("# T\n\n## Results\n\nto the end\n") == "\nto the end\n"
    with pytest.raises(ValueError, match="`# T` has no section Results"):
        REPRODUCE.results_section("# T\n\n## Results of another\n\nb\n")


@pytest.mark.parametrize(
    "table", [table for table in REPRODUCE.TABLES if (KEPT / table.name / "report.md").exists()], ids=lambda table: table.name
)
def test_what_is_kept_is_what_it_publishes(table: SimpleNamespace) -> None:
    folder = KEPT / table.name
    there = {path.name for path in folder.iterdir()} - {"runs"}
    assert {*REPRODUCE.REPORT, "results.md"} <= there <= {*REPRODUCE.REPORT, *table.figures, "results.md"}
    assert (folder / "results.md").read_text() == REPRODUCE.results_section((folder / "report.md").read_text())


def test_every_command_can_be_given_and_fills_a_folder_that_is_published(tmp_path: Path) -> None:
    outputs = set()
    for command in REPRODUCE.COMMANDS:
        name, *arguments = shlex.split(command)
        outputs.add(arguments[-1])
        if name == "static":
            assert {argument for argument in arguments if argument.startswith("--")} <= {"--run", "--output"}
        else:  # the last --output counts
            shown = call("reproduce", name, *arguments, "--print", "--data", tmp_path, "--output", tmp_path)
            assert shown.count("ffebm train --resume") >= 2
    made = {f"runs/{table.runs}" for table in REPRODUCE.TABLES}
    assert outputs == made | {f"results/reproduce/static{name}" for name in ("", "-trained", "-trained-bs4")}


def test_a_command_that_fails_ends_it_and_says_how_to_go_on() -> None:
    REPRODUCE.run(sys.executable, "-c", "")
    with pytest.raises(SystemExit, match="ended with exit code 3; `make reproduce` goes on"):
        REPRODUCE.run(sys.executable, "-c", "raise SystemExit(3)")


def test_an_interruption_waits_for_what_the_command_has_to_save(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, signal, sys, time\n"
        "def save(*_):\n"
        "    time.sleep(0.5)\n"
        "    pathlib.Path(sys.argv[1]).touch()\n"
        "    sys.exit(130)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "os.kill(os.getppid(), signal.SIGINT)\n"
        "time.sleep(60)\n"
    )
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have programs in the background ignore it
    try:
        with pytest.raises(SystemExit, match="exit code 130"):
            REPRODUCE.run(sys.executable, "-c", code, str(tmp_path / "saved"))
    finally:
        signal.signal(signal.SIGINT, before)
    assert (tmp_path / "saved").exists()
