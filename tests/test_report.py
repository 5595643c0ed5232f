"""Names that others choose show as they are: in reports no markup, in pictures no formulas."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from matplotlib import cbook
from matplotlib.figure import Figure
from matplotlib.text import Text as Drawn
from PIL import Image

from ffebm.checks import one_line
from ffebm.experiment.benchmark.figure import save_speed
from ffebm.experiment.benchmark.speed import Measurement
from ffebm.experiment.data import Description
from ffebm.experiment.figures import confusion_figure, picture, save_curves, shown
from ffebm.experiment.preset import read_preset
from ffebm.experiment.report import write_report
from ffebm.experiment.report.accuracy_figure import accuracy_figure
from ffebm.experiment.report.document import Chart, Document, Listing, Section, Table, Text
from ffebm.experiment.report.markdown import markdown
from ffebm.experiment.report.outcome import Comparison, Outcome, comparisons_of
from ffebm.experiment.report.page import page
from ffebm.experiment.report.writing import compose
from ffebm.experiment.reproduction import static as analysis
from ffebm.experiment.reproduction.static import Layer, Static
from ffebm.experiment.reproduction.static_figures import bars_figure, transients_figure
from ffebm.experiment.run import Run

HOSTILE = (
    "a | b",
    "one\ntwo\r\n\r\nthree",
    "<script>alert(1)</script>",
    "[x](javascript:alert(1))",
    "![](http://example.org/x.png)",
    "<http://example.org>",
    "[x]: http://example.org",
    "a`b``c",
    "```\nlet me out",
    "$x_{",
    "*a* **b** _c_ __d__ ~~e~~ f_g_h __i",
    "&lt;b&gt; &#60; &copy; R & D",
    "a\\|b \\* \\",
    "# x #",
    "- x",
    "1. x",
    "123) x",
    "> x",
    "---",
    "===",
    "    x",
    "<!-- -->",
)
LETTERS = st.sampled_from(
    [*"ab1 |\\`*_[](){}<>#!&;:$~^+-=./\"'\n\té", "](", "![", "<b", "</", "&lt;", "``", "```", "\x00", "\x1b[31m"]
)
NAMES = st.lists(LETTERS, min_size=1, max_size=14).map("".join).filter(one_line)
CODE = st.lists(st.sampled_from([*"ab `~|\n", "```", "````", "</pre>"]), max_size=14).map("".join)


def tokens(text: str) -> list[Token]:
    """As GitHub reads it: with tables, strikethrough and whatever HTML there is."""
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text)


def content(token: Token) -> str:
    """What a reader sees of a paragraph, a heading or a cell."""
    return " ".join("".join(child.content for child in token.children or []).split())


def document(name: str, listing: str = "a = 1") -> Document:
    parts = [
        Text(name),
        Text(f"Run `ffebm train` for {name}."),
        Table(name, ("net", name), [(name, "1.0"), ("other", name)]),
        Listing(name, listing),
    ]
    return Document(name, [Section(name, parts)], {})


def seen(words: str) -> str:
    """Backticks around commands are not for the reader."""
    return " ".join("".join(Text(one_line(words)).pieces()).split())


@given(NAMES, CODE)
def test_markdown_shows_random_names_literally(name: str, listing: str) -> None:
    check(name, listing)


@pytest.mark.parametrize("name", HOSTILE)
def test_markdown_shows_hostile_names_literally(name: str) -> None:
    check(name, name)


def check(name: str, listing: str) -> None:
    plain = document("name")
    found, expected = tokens(markdown(document(name, listing))), tokens(markdown(plain))
    assert [token.type for token in found] == [token.type for token in expected], "blocks that are not ours"
    kinds = {child.type for token in found for child in token.children or []}
    assert kinds <= {"text", "strong_open", "strong_close", "code_inline"}
    line = " ".join(one_line(name).split())
    command = seen(f"Run `ffebm train` for {name}.")
    inline = [content(token) for token in found if token.type == "inline"]
    assert inline == [line, line, seen(name), command, line, "net", line, line, "1.0", "other", line, f"{line}:"]
    (fenced,) = [token for token in found if token.type == "fence"]
    assert fenced.content.rstrip() == re.sub(r"\r\n?", "\n", listing).rstrip()


def test_markdown_escapes_only_what_needs_it() -> None:
    for words in (
        "blocks.0.energy.hidden_layer.weight (block 1): cosine 0.5; β 0.02, -27.2, R & D, a < b, 3 > 2, C#, 1.5 - x!",
        "CIFAR-10, 12 layers in blocks of 4 (width 0.125, 2 epochs)",
        "Made by `ffebm train a_b_ * $x | <y>`, 2026-11-18.",
    ):
        assert markdown(Document("Title", [Section("One", [Text(words)])], {})) == f"# Title\n\n## One\n\n{words}\n"


def test_commands_are_code_on_the_page_and_in_markdown() -> None:
    made = Document("t", [Section("s", [Text("By `a <b>` or ``c`` or `d")])], {})
    assert "By <code>a &lt;b&gt;</code> or ``c`` or `d" in page(made)
    assert "By `a <b>` or \\`\\`c\\`\\` or \\`d" in markdown(made)


def static(title: str) -> Static:
    layers = [
        Layer("stages.0.connection.weight", 1, 0.9995, 0.01, [[0.0], [0.4]], [[0.0], [0.5]]),
        Layer("blocks.0.energy.interactions.0.weight", 1, 0.9, 0.1, [[0.0], [0.1]], [[0.0], [0.2]]),
    ]
    place = {"command": ["ffebm", "reproduce", title], "commit": "0" * 40, "time": "2026-11-18"}
    return Static(title, title, 0.02, 1, title, layers, place)


@pytest.mark.parametrize("name", HOSTILE)
def test_the_table_of_an_analysis_shows_hostile_names(name: str) -> None:
    found, plain = (tokens(analysis.markdown(static(title))) for title in (name, "name"))
    assert [token.type for token in found] == [token.type for token in plain]
    assert content(found[1]) == f"EP against ID: {one_line(name)}"
    kinds = {child.type for token in found for child in token.children or []}
    assert kinds <= {"text", "softbreak", "code_inline"}


def run(folder: Path, description: str) -> Run:
    made = Run.create(folder, "")
    read_preset("digits", ["trainer.epochs=1"]).model_copy(update={"description": description}).save(made.settings_file)
    losses = {"train_loss": 2.0, "train_accuracy": 0.4, "test_loss": 2.0, "test_accuracy": 0.5, "test_top5": 0.9}
    row = {"epoch": 1, "step": 3, **losses, "residual": 0.1, "seconds": 8.0}
    made.save_metrics([row])
    return made


@pytest.mark.parametrize("name", ["<b>|$x_{`[x](http://example.org)", os.fsdecode(b"caf\xe9"), "a\nb", "😀 שלום"])
def test_a_report_of_hostile_runs_is_written(name: str, tmp_path: Path) -> None:
    runs = [
        run(tmp_path / "runs" / name.replace("/", "-"), ""),
        run(tmp_path / "runs" / "other", name.encode(errors="replace").decode()),
    ]
    write_report(tmp_path / "report", name, runs=runs, words=[name], failures={name: name})
    read = tokens((tmp_path / "report" / "report.md").read_text("utf-8"))
    kinds = {child.type for token in read for child in token.children or []}
    assert kinds <= {"text", "strong_open", "strong_close", "code_inline"}
    assert "<b>|" not in (tmp_path / "report" / "report.html").read_text("utf-8")
    assert json.loads((tmp_path / "report" / "report.json").read_text())["title"] == name
    assert (tmp_path / "report" / "accuracy.svg").read_text().startswith("<?xml")


def settled(folder: Path, *overrides: str) -> Run:
    """A run of one epoch, by a preset with some settings changed."""
    made = run(folder, "")
    read_preset("digits", ["trainer.epochs=1", *overrides]).save(made.settings_file)
    made.save_description(Description("digits", (1, 8, 8), tuple("0123456789"), (0.3,), (0.4,)))
    return made


def test_recipes_of_one_description_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    pair = ["optimiser.learning_rate=0.001", "optimiser.learning_rate=0.01"]
    runs = [settled(tmp_path / name, rate, f"seed={seed}") for name, rate in zip("ab", pair, strict=True) for seed in (0,)]
    assert [row.label for row in comparisons_of(runs)] == ["a", "b"]
    curves = next(part for part in compose("", runs, [], [], [], [], {}).sections[1].parts if isinstance(part, Chart)).curves
    assert [curve.name for curve in curves] == ["a, EP, seed 0", "b, EP, seed 0"]
    assert len({curve.colour for curve in curves}) == 2
    again = settled(tmp_path / "c", pair[0], "seed=1")
    assert [row.label for row in comparisons_of([*runs, again])] == ["a, c", "b"], "seeds of a recipe stay together"
    other = settled(tmp_path / "x" / "a", "optimiser.learning_rate=0.1")
    assert [row.label for row in comparisons_of([runs[0], other])] == [str(tmp_path / "a"), str(tmp_path / "x" / "a")]
    alone = comparisons_of([runs[0], settled(tmp_path / "d", pair[0], "seed=3")])
    assert [row.label for row in alone] == [read_preset("digits").description], "one recipe needs no other name"


def test_a_report_of_one_run_has_its_outcome_and_its_model(tmp_path: Path) -> None:
    only = settled(tmp_path / "mine")
    found = write_report(tmp_path / "report", "Mine", runs=[only])
    tables = [part for section in found.sections for part in section.parts if isinstance(part, Table)]
    outcome, model = tables
    assert ("test accuracy", "50.00 %") in outcome.rows
    assert ("epochs", "1 of 1") in outcome.rows
    assert [row[0] for row in model.rows] == ["stage 1", "block 1", "stage 2", "block 2", "readout", "all"]
    text = (tmp_path / "report" / "report.md").read_text()
    assert "paper" not in text.split("How this was made")[0], "which has no result beside a run of one's own"
    assert not any(all(not row[column] for row in table.rows) for table in tables for column in range(len(table.header)))
    assert not (tmp_path / "report" / "accuracy.png").exists(), "one run is no comparison"


NAMED = (
    "$x_{$",
    "$x_{",
    "$",
    "a$b$c",
    "\\$a$\\",
    "\n",
    "a\tb\x00c\x1b[31m",
    "😀",
    "漢字",
    "שלום العربية",
    "\ud800",
    os.fsdecode(b"caf\xe9"),
    "W" * 5000,
    "two words " * 500,
)


def drawn(figure: Figure) -> list[str]:
    """All text of a figure, none of which may be read as a formula, but for those that are one."""
    texts = [text.get_text() for text in figure.findobj(Drawn)]
    assert not any(cbook.is_math_text(text) for text in texts if not re.fullmatch(r"\$(\\theta|F|\\mathdefault).*\$", text))
    return texts


@pytest.mark.parametrize("name", NAMED)
class TestPicturesOfHostileNames:
    """Warnings are errors here: of letters that no font has, for example."""

    def test_curves_and_confusions(self, name: str, tmp_path: Path) -> None:
        row = {"epoch": 1.0, "residual": 0.1, "train_loss": 1.0, "test_loss": 1.0, "train_accuracy": 0.5, "test_accuracy": 0.5}
        save_curves([row, {**row, "epoch": 2.0, "residual": 0.001}], tmp_path / "curves.png", name)
        confusion = picture(confusion_figure(np.array([[3, 1], [0, 2]]), ["cat", name], f"{name}: 50 %"))
        for file in (tmp_path / "curves.png", io.BytesIO(confusion)):
            with Image.open(file) as image:
                image.verify()

    def test_accuracies(self, name: str) -> None:
        outcomes = {"ep": Outcome(seeds=[0], top1=[50.0]), "id": Outcome(seeds=[0], top1=[51.0])}
        for preset in ("digits", "cifar10-l6-bs3"):
            figure = accuracy_figure([Comparison(label, read_preset(preset), outcomes) for label in (name, "other")])
            assert shown(name) in drawn(figure)
            assert picture(figure).startswith(b"\x89PNG")
            assert b"<svg" in picture(figure, "svg")

    def test_analyses(self, name: str) -> None:
        for figure in (bars_figure([static(name)]), transients_figure(static(name))):
            assert any(shown(name) in text for text in drawn(figure))
            assert any(text.startswith("$\\theta") for text in drawn(figure))  # formulas that are meant
            assert picture(figure).startswith(b"\x89PNG")
            assert b"<svg" in picture(figure, "svg")

    def test_benchmarks(self, name: str, tmp_path: Path) -> None:
        save_speed(
            [Measurement(name, 1.0, 8, "ep, paper", "", 1.0, 1.0, 1.0, 1.0, 1.0, 1, None, "")], tmp_path / "speed.png", name
        )
        assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")


def test_a_name_is_cut_to_a_line_that_keeps_both_ends() -> None:
    assert shown("runs\nof\x00 mine") == "runs of mine"
    assert shown("a" * 72) == "a" * 72  # the longest label of a preset has 70
    assert shown("begin" + "x" * 5000 + "end") == f"begin{'x' * 31}…{'x' * 33}end"
    assert shown("a$b", 3) == "a\\$b"


def test_dollar_signs_are_not_drawn_as_formulas() -> None:
    """The same picture as without any reading of formulas."""
    pictures = []
    for options in ({}, {"parse_math": False}):
        figure = Figure(figsize=(3, 1))
        figure.text(0.1, 0.5, "\\$a$ \\ b$c" if options else shown("\\$a$ \\ b$c"), **options)
        pictures.append(Image.open(io.BytesIO(picture(figure))).tobytes())
    assert pictures[0] == pictures[1]
