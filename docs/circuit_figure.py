"""Draws docs/images/circuit.svg: a small resistive network as a schematic.

Run it with

python docs/circuit_figure.py [--output docs/images/circuit.svg]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Circle, Rectangle

INK, RAIL, AMPLIFIER, SOURCE = "#202124", "#b3261e", "#1a5fb4", "#26734d"
Point = tuple[float, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("docs/images/circuit.svg"))
    output = parser.parse_args().output
    with mpl.rc_context({"svg.hashsalt": "ffebm", "svg.fonttype": "path", "font.size": 11, "mathtext.fontset": "cm"}):
        figure, axes = plt.subplots(figsize=(11, 5.2))
        draw(axes)
        axes.set(xlim=(-0.2, 13.3), ylim=(-1.1, 6.4), aspect="equal")
        axes.axis("off")
        figure.tight_layout(pad=0.2)
        figure.savefig(output, facecolor="white", metadata={} if output.suffix == ".png" else {"Date": None})


def draw(axes: Axes) -> None:
    pen = Pen(axes)
    columns, rows = (0.7, 1.7, 2.7, 3.7), (3.6, 1.6)
    names = ("$x_1$", "$-x_1$", "$x_2$", "$-x_2$")
    for x, name in zip(columns, names, strict=True):
        pen.source((x, 4.9), name, SOURCE)
        pen.wire((x, 4.65), (x, 1.1))
        for y in rows:
            pen.resistor((x, y + 0.5), (x + 0.55, y))
    for y in rows:
        pen.wire((0.4, y), (6.9, y))
    for number, (y, up) in enumerate(zip(rows, (True, False), strict=True), 1):
        pen.dot((5.0, y))
        axes.text(5.0, y + 0.2, f"$h_{number}$", ha="center")
        pen.diode((5.0, y), up)
        pen.amplifier((6.9, y))
        pen.wire((7.9, y), (11.9, y))
    for number, x in enumerate((9.0, 10.8), 1):
        pen.wire((x, 4.2), (x, 0.3))
        for y in rows:
            pen.resistor((x - 0.6, y), (x, y - 0.5))
        pen.dot((x, 0.55))
        axes.text(x + 0.18, 0.48, f"$y_{number}$", ha="left")
        pen.current((x, 0.3), f"$-\\beta\\,\\delta_{number}$")
    for x, y, color, words in (
        (2.2, 6.0, SOURCE, "the input, held as voltages,\nas it is and inverted"),
        (2.2, 0.45, INK, "a crossbar: at every crossing\na conductance, a weight"),
        (5.0, 0.1, RAIL, "rails: a diode keeps\na node on its side of 0 V"),
        (7.4, 4.9, AMPLIFIER, "amplifiers: voltages forward × A,\ncurrents backward × B"),
        (11.1, 4.9, INK, "the next crossbar"),
        (12.3, -0.65, SOURCE, "the nudge:\ntwo currents"),
        (12.3, 0.75, INK, "the output"),
    ):
        axes.text(x, y, words, ha="center", va="center", color=color, fontsize=10)


class Pen:
    """Symbols of circuits, drawn on axes."""

    def __init__(self, axes: Axes) -> None:
        self.axes = axes
        self.color = INK

    @contextmanager
    def colored(self, color: str) -> Iterator[None]:
        before, self.color = self.color, color
        yield
        self.color = before

    def line(self, points: list[Point], width: float = 1.3) -> None:
        self.axes.plot(*zip(*points, strict=True), color=self.color, lw=width, solid_capstyle="round", solid_joinstyle="round")

    def wire(self, start: Point, end: Point) -> None:
        self.line([start, end])

    def dot(self, at: Point) -> None:
        self.axes.plot(*at, "o", color=self.color, ms=5, zorder=3)

    def resistor(self, start: Point, end: Point) -> None:
        """A zigzag between two wires, with a joint at each end."""
        a, b = np.array(start), np.array(end)
        along, across = b - a, np.array([-(b - a)[1], (b - a)[0]]) / np.linalg.norm(b - a) * 0.075
        stops = np.linspace(0.2, 0.8, 8)
        teeth = [a + t * along + (0 if i in (0, 7) else across * (-1) ** i) for i, t in enumerate(stops)]
        self.line([start, *(tuple(point) for point in teeth), end])
        for point in (start, end):
            self.axes.plot(*point, "o", color=self.color, ms=2.6)

    def source(self, at: Point, name: str, color: str) -> None:
        """A voltage that is held."""
        with self.colored(color):
            self.axes.add_patch(Circle(at, 0.25, fill=False, color=color, lw=1.3))
            x, y = at
            self.axes.text(x, y, "+", ha="center", va="center", color=color, fontsize=9)
        self.axes.text(x, y + 0.42, name, ha="center")

    def diode(self, node: Point, up: bool) -> None:
        """Between a node and ground below it; `up` leads from ground to the node."""
        x, y = node
        middle = y - 0.55
        with self.colored(RAIL):
            self.line([(x, y), (x, y - 0.95)])
            base, tip = (middle - 0.17, middle + 0.17) if up else (middle + 0.17, middle - 0.17)
            self.axes.fill([x - 0.2, x + 0.2, x], [base, base, tip], color=RAIL, zorder=3)
            self.line([(x - 0.2, tip), (x + 0.2, tip)], 1.8)
            self.ground((x, y - 0.95))

    def ground(self, at: Point) -> None:
        x, y = at
        for half, down in ((0.2, 0.0), (0.13, 0.08), (0.06, 0.16)):
            self.line([(x - half, y - down), (x + half, y - down)])

    def amplifier(self, at: Point) -> None:
        """Two triangles: A forward, B back."""
        x, y = at
        with self.colored(AMPLIFIER):
            self.axes.add_patch(Rectangle((x, y - 0.42), 1.0, 0.84, fill=True, facecolor="white", edgecolor=AMPLIFIER, lw=1.3))
            for level, begin, tip, name in ((0.2, 0.3, 0.72, "A"), (-0.2, 0.72, 0.3, "B")):
                xs = [x + begin, x + begin, x + tip]
                self.axes.fill(xs, [y + level - 0.16, y + level + 0.16, y + level], color=AMPLIFIER, alpha=0.9)
                self.axes.text(
                    x + 0.16 if name == "A" else x + 0.85,
                    y + level,
                    name,
                    ha="center",
                    va="center",
                    color=AMPLIFIER,
                    fontsize=9,
                )

    def current(self, top: Point, name: str) -> None:
        """A current source between a wire above and ground."""
        x, y = top
        with self.colored(SOURCE):
            self.axes.add_patch(Circle((x, y - 0.45), 0.27, fill=False, color=SOURCE, lw=1.3))
            self.line([(x, y), (x, y - 0.18)])
            self.axes.annotate(
                "",
                (x, y - 0.24),
                (x, y - 0.68),
                arrowprops={"arrowstyle": "-|>", "color": SOURCE, "lw": 1.3, "shrinkA": 0, "shrinkB": 0},
            )
            self.line([(x, y - 0.72), (x, y - 0.95)])
            self.ground((x, y - 0.95))
        self.axes.text(x - 0.36, y - 0.45, name, ha="right", va="center")


if __name__ == "__main__":
    main()
