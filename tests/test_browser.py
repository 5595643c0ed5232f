"""A report in a real browser: nothing fetched, charts that can be hovered and zoomed, phone, night and paper."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from ffebm.experiment.figures import picture
from ffebm.experiment.report.document import Chart, Curve, Document, Listing, Picture, Section, Table, Text
from ffebm.experiment.report.page import page as rendered
from ffebm.experiment.reproduction.static import Layer, Static
from ffebm.experiment.reproduction.static_figures import bars_figure

pytestmark = pytest.mark.browser
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    assert chromium is not None, "Debian's Chromium is needed: apt-get install chromium"
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    curves = [Curve(f"net {i}, a name of some length", [1, 2, 3], [50 + i, 60 + i, 65 + i], i, i % 2 == 1) for i in range(6)]
    charts = [
        Chart("Accuracy", "epoch", "%", curves),
        Chart("Residual", "sweep", "residual", [Curve("block 1", list(range(40)), [0.7**i for i in range(40)])], log=True),
        Chart("Sweeps", "sweeps", "images", [Curve("block 1", [4, 5, 6], [10, 30, 5])], bars=True),
    ]
    layers = [Layer(f"blocks.{i}.energy.interactions.0.weight", i, 0.9995, 0.01, [[0.0]], [[0.0]]) for i in range(1, 7)]
    static = Static("six blocks", "noise", 0.02, 20, "15 sweeps", layers, {})
    wide = Table("Top-1", ("net", *[f"column {i}" for i in range(9)]), [("CIFAR-10, 12 layers", *["91.70 ± 0.20"] * 9)] * 4)
    parts = [
        Text("Words."),
        wide,
        *charts,
        Picture("Bars", picture(bars_figure([static]))),
        Listing("Settings", "a = 1\n" * 20),
    ]
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(rendered(Document("A report", [Section("Results", parts)], {})))
    return path


def opened(browser: Browser, report: Path, **options: object) -> tuple[Page, list[str]]:
    """The page, and all that it asked for or complained about."""
    page = browser.new_context(**options).new_page()
    heard: list[str] = []
    page.on("request", lambda request: heard.append(request.url))
    page.on("console", lambda message: heard.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.goto(report.as_uri())
    page.wait_for_selector(".chart .main-svg")
    return page, [item for item in heard if not item.startswith(("file:", "data:", "blob:"))]


def test_it_asks_for_nothing_and_complains_of_nothing(browser: Browser, report: Path) -> None:
    page, heard = opened(browser, report)
    assert heard == []
    assert page.locator(".chart .plot-container").count() == 3


def test_points_answer_to_hovering(browser: Browser, report: Path) -> None:
    page, _ = opened(browser, report)
    chart = page.locator(".chart").first
    chart.scroll_into_view_if_needed()
    box = chart.locator("path.point").nth(4).bounding_box()  # the second curve's second point
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector(".hovertext")
    assert "net 1" in page.locator(".hovertext").first.text_content()


def test_dragging_zooms_and_a_double_click_comes_back(browser: Browser, report: Path) -> None:
    page, _ = opened(browser, report)
    chart = page.locator(".chart").first
    chart.scroll_into_view_if_needed()
    axis = "document.querySelector('.chart').layout.xaxis.range"
    before = page.evaluate(axis)
    box = chart.locator(".nsewdrag").first.bounding_box()
    assert box is not None
    left, top = box["x"] + 0.4 * box["width"], box["y"] + 0.4 * box["height"]
    page.mouse.move(left, top)
    page.mouse.down()
    page.mouse.move(left + 0.3 * box["width"], top + 0.3 * box["height"], steps=5)
    page.mouse.up()
    zoomed = page.evaluate(axis)
    assert zoomed[1] - zoomed[0] < 0.5 * (before[1] - before[0])
    page.mouse.dblclick(left, top)
    page.wait_for_function(f"Math.abs({axis}[0] - ({before[0]})) < 1e-6")


def test_a_phone_scrolls_tables_not_the_page(browser: Browser, report: Path) -> None:
    page, _ = opened(browser, report, viewport={"width": 390, "height": 844}, device_scale_factor=2, is_mobile=True)
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert page.evaluate("(e => e.scrollWidth > e.clientWidth)(document.querySelector('.scrolls'))")
    assert page.evaluate("[...document.querySelectorAll('.chart')].every(e => e.clientWidth <= 390)")


def test_night_has_dark_ground_and_light_ink_in_charts_too(browser: Browser, report: Path) -> None:
    page, _ = opened(browser, report, color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    ink = "getComputedStyle(document.querySelector('.chart .xtick text')).fill"
    assert page.evaluate(ground) == "rgb(20, 24, 30)"
    assert page.evaluate(ink) == "rgb(228, 232, 238)"
    page.emulate_media(color_scheme="light")
    page.wait_for_function(f"{ink} === 'rgb(28, 36, 48)'")
    assert page.evaluate(ground) == "rgb(255, 255, 255)"


def test_it_prints_in_black_on_white_even_at_night(browser: Browser, report: Path) -> None:
    page, _ = opened(browser, report, color_scheme="dark")
    page.emulate_media(media="print")
    page.wait_for_function("getComputedStyle(document.querySelector('.chart .xtick text')).fill === 'rgb(28, 36, 48)'")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert page.pdf().startswith(b"%PDF")


def test_names_of_curves_are_only_shown(browser: Browser, tmp_path: Path) -> None:
    """Plotly makes links and bold letters of what looks like them."""
    names = ['<a href="https://example.org">a</a>', "<b>bold</b> &amp; $x$", "<img src=x onerror=alert(1)>"]
    chart = Chart("Names", "x", "y", [Curve(name, [1, 2], [1, 2], i) for i, name in enumerate(names)])
    path = tmp_path / "report.html"
    path.write_text(rendered(Document("A report", [Section("Results", [chart])], {})))
    page, heard = opened(browser, path)
    assert heard == []
    assert [item.text_content() for item in page.locator(".legendtext").all()] == names
    assert page.locator(".chart a[href*=example]").count() == 0
