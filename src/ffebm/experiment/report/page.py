"""A document as one HTML file that needs nothing else: styles, scripts, charts and pictures are all inside."""

from __future__ import annotations

import base64
import json
import math
from functools import cache, singledispatch
from html import escape
from importlib import resources
from typing import Any

from plotly.offline import get_plotlyjs

from ffebm.experiment.report.document import Chart, Curve, Document, Listing, Part, Picture, Section, Table, Text

__all__ = ["page"]
__dir__ = __all__.copy


def page(document: Document) -> str:
    """The whole file."""
    charts = [plot for section in document.sections for part in section.parts for plot in _plots(part)]
    body = "\n".join(map(_section, document.sections))
    contents = "".join(f'<a href="#{_anchor(section)}">{escape(section.title)}</a>' for section in document.sections)
    library = f"<script>{get_plotlyjs()}</script>" if charts else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(document.title)}</title>\n<style>\n{_asset('page.css')}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escape(document.title)}</h1>\n<nav>{contents}</nav>\n{body}\n</main>\n{library}\n"
        f'<script type="application/json" id="charts">{_json(charts)}</script>\n<script>\n{_asset("page.js")}</script>\n'
        "</body>\n</html>\n"
    )


def _section(section: Section) -> str:
    parts = "\n".join(map(_part, section.parts))
    return f'<section id="{_anchor(section)}">\n<h2>{escape(section.title)}</h2>\n{parts}\n</section>'


@singledispatch
def _part(part: Part) -> str:
    """A part as HTML; page.js plots the charts into their places, in turn."""
    raise TypeError(f"A page has no {type(part).__name__}.")


@_part.register
def _(part: Text) -> str:
    pieces = map(escape, part.pieces())
    inline = "".join(f"<code>{piece}</code>" if number % 2 else piece for number, piece in enumerate(pieces))
    return f"<p>{inline}</p>"


@_part.register
def _(part: Chart) -> str:
    return f'<figure><figcaption>{escape(part.title)}</figcaption><div class="chart"></div></figure>'


@_part.register
def _(part: Picture) -> str:
    source = base64.b64encode(part.content).decode()
    return (
        f"<figure><figcaption>{escape(part.title)}</figcaption>"
        f'<img alt="{escape(part.title)}" src="data:image/png;base64,{source}"></figure>'
    )


@_part.register
def _(part: Listing) -> str:
    return f"<details><summary>{escape(part.title)}</summary><pre>{escape(part.text)}</pre></details>"


@_part.register
def _(part: Table) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in part.header)
    rows = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>'
        for row in part.rows
    )
    return (
        f'<div class="scrolls"><table><caption>{escape(part.title)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


@singledispatch
def _plots(_: Part) -> list[dict[str, Any]]:
    """What page.js hands to Plotly; colours are numbers there, which a theme turns into colours."""
    return []


@_plots.register
def _(chart: Chart) -> list[dict[str, Any]]:
    traces = [
        {
            "name": escape(curve.name, quote=False),  # Plotly reads some HTML in names, links among it
            "x": [escape(x, quote=False) if isinstance(x, str) else x for x in curve.x],
            "y": [value if math.isfinite(value) and (value > 0 or not chart.log) else None for value in curve.y],
            "colour": curve.colour,
            **_besides(curve),
            **({"type": "bar"} if chart.bars else _line(curve)),
        }
        for curve in chart.curves
    ]
    return [
        {
            "traces": traces,
            "x": escape(chart.x, quote=False),
            "y": escape(chart.y, quote=False),
            "log": chart.log,
            "steps": chart.steps,
        }
    ]


def _besides(curve: Curve) -> dict[str, Any]:
    """Error bars, and what hovering says."""
    found: dict[str, Any] = {}
    if curve.errors:
        found["error_y"] = {"type": "data", "array": [error if math.isfinite(error) else 0 for error in curve.errors]}
    if curve.notes:
        found["text"] = [escape(note, quote=False).replace("\n", "<br>") for note in curve.notes]
        found["hovertemplate"] = "%{text}<extra></extra>"
    return found


def _line(curve: Curve) -> dict[str, Any]:
    mode = "markers" if curve.points else "lines+markers" if len(curve.x) < 30 else "lines"
    return {"type": "scatter", "mode": mode, "line": {"dash": "dot" if curve.dashed else "solid", "width": 2}}


def _anchor(section: Section) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in section.title.lower())


def _json(value: object) -> str:
    """Inside a script element: nothing in it may look like the element's end."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")


@cache
def _asset(name: str) -> str:
    return (resources.files("ffebm.experiment.report") / name).read_text(encoding="utf-8")
