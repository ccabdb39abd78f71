"""Draw the charts of a page as SVG with matplotlib; colours and font are those of the page, light or dark.

>>> line = Line("A", 0, (Point(0.0, 1.0, "1.00"), Point(1.0, 3.0, "3.00")))
>>> chart = line_chart("ε over rounds", [line], Axis("round", whole=True), Axis("ε"), "Rounded up.")
>>> chart.svg.startswith("<svg"), chart.table.rows
(True, [['0', '1.00'], ['1', '3.00']])
>>> coinciding([line, Line("B", 1, line.points)])
['A and B coincide']
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis as DrawnAxis
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fl_sim.reporting.pages.templates import Table
from fl_sim.reporting.plots import GREY, RUN_COLOURS, finish_axes, looks, plain_label, set_scale

MOST_POINTS = 200
"""Points of a line that are drawn; of more, evenly spaced ones and the last."""

_BLACK = "#000000"
_BOUND = "#B3261E"
THEME = {
    _BLACK: "currentColor",
    _BOUND: "var(--bound)",
    **{colour: f"var(--c{number})" for number, colour in enumerate(RUN_COLOURS) if colour != _BLACK},
}
"""Colours of matplotlib and those of the page, which has a light and a dark style."""

_LOG_FROM = 4.0
_SAME = 0.004


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a line: its figure, the figure in words, and its interval, if it has one."""

    x: float
    y: float
    words: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A line; ``number`` chooses its look, and its points are in the order of x, all finite, at least one."""

    label: str
    number: int
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Axis:
    """What an axis shows.

    Attributes:
        words: its name.
        percent: whether values are shares.
        whole: whether values are whole numbers.
        log: whether equal ratios may have equal lengths, where the values span more than a factor of four.
        zero: whether the axis begins at zero.
        guess: the value of guessing, drawn as a dotted line.
    """

    words: str
    percent: bool = False
    whole: bool = False
    log: bool = False
    zero: bool = False
    guess: float | None = None

    def show(self, value: float) -> str:
        """Return a value in words."""
        return f"{100 * value:.4g}%" if self.percent else f"{value:,.5g}"


@dataclass(frozen=True, slots=True)
class Row:
    """A figure with its interval.

    Attributes:
        label: of the row.
        value, low, high: the figure and its interval.
        words: the figure in words.
        number: chooses its colour.
        bound: the largest figure that is proven possible; None if there is none.
    """

    label: str
    value: float
    low: float
    high: float
    words: str
    number: int = 0
    bound: float | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture with its title, caption, and figures."""

    title: str
    svg: Markup
    caption: str
    table: Table


def line_chart(title: str, lines: Sequence[Line], x: Axis, y: Axis, caption: str) -> Chart:
    """Return a chart of lines; the caption names those that coincide."""
    thinned = [Line(line.label, line.number, _thinned(line.points)) for line in lines]
    figure = Figure(figsize=(5.2, 3.0 + 0.2 * ((len(lines) + 1) // 2)), layout="constrained")
    axes = figure.subplots()
    styles = looks(1 + max(line.number for line in lines))
    for line in thinned:
        look = styles[line.number]
        xs, ys = [point.x for point in line.points], [point.y for point in line.points]
        axes.plot(xs, ys, label=plain_label(line.label), **look.line(len(xs)))
        intervals = [(p.x, p.low, p.high) for p in line.points if p.low is not None and p.high is not None]
        for at, low, high in intervals:
            axes.plot([at, at], [low, high], color=look.colour, linewidth=1.2, label="_")
    finish_axes(axes, x.words, y.words)
    _finish(axes.xaxis, x, [point.x for line in thinned for point in line.points])
    _finish(axes.yaxis, y, [point.y for line in thinned for point in line.points])
    _draw_guess(axes, None, y.guess)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize="small")
    said = " ".join([caption, *(f"{words}." for words in coinciding(thinned))])
    return Chart(title, _svg(figure), said, _table_of_lines(thinned, x))


def interval_chart(title: str, rows: Sequence[Row], x: Axis, caption: str) -> Chart:
    """Return a chart with a dot and its interval per row, and a mark at a row's bound."""
    figure = Figure(figsize=(5.2, 0.8 + 0.3 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(reversed(rows)):
        colour = RUN_COLOURS[row.number % len(RUN_COLOURS)]
        axes.plot([row.low, row.high], [place, place], color=colour, linewidth=2)
        axes.plot([row.value], [place], color=colour, marker="o", markersize=6)
        if row.bound is not None:
            axes.plot([row.bound, row.bound], [place - 0.3, place + 0.3], color=_BOUND, linewidth=2.5)
    axes.set_yticks(range(len(rows)), [plain_label(_short(row.label)) for row in reversed(rows)])
    finish_axes(axes, x.words, "")
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.grid(visible=False, axis="y")
    _finish(axes.xaxis, x, [row.value for row in rows])
    _draw_guess(axes, x.guess, None)
    return Chart(title, _svg(figure), caption, Table(["", x.words], [[row.label, row.words] for row in rows]))


def coinciding(lines: Sequence[Line]) -> list[str]:
    """Return which lines hide each other, being the same within the width of a line."""
    values = [point.y for line in lines for point in line.points]
    width = _SAME * ((max(values) - min(values)) or 1.0)
    groups: list[list[Line]] = []
    for line in lines:
        group = next((group for group in groups if _is_same(group[0], line, width)), None)
        if group is None:
            groups.append([line])
        else:
            group.append(line)
    names = [[line.label for line in group] for group in groups if len(group) > 1]
    return [f"{', '.join(labels[:-1])} and {labels[-1]} coincide" for labels in names]


def _is_same(first: Line, second: Line, width: float) -> bool:
    """Return whether two lines are no further apart than ``width`` wherever both have a point, at least twice."""
    values = {point.x: point.y for point in first.points}
    apart = [abs(values[point.x] - point.y) for point in second.points if point.x in values]
    return len(apart) > 1 and max(apart) <= width


def _thinned(points: Sequence[Point]) -> tuple[Point, ...]:
    every = math.ceil(len(points) / MOST_POINTS)
    return tuple(p for number, p in enumerate(points) if number % every == 0 or number == len(points) - 1)


def _finish(axis: DrawnAxis, wanted: Axis, values: Sequence[float]) -> None:
    """Set scale, ticks and ends of an axis."""
    if wanted.log:
        set_scale(axis, _LOG_FROM, [min(values), max(values)])
    if wanted.zero:
        low, high = axis.get_view_interval()
        axis.set_view_interval(0 if axis.get_scale() == "linear" else low, high, ignore=True)
    if wanted.whole:
        axis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    if wanted.percent:
        axis.set_major_formatter(PercentFormatter(1.0))


def _draw_guess(axes: Axes, x: float | None, y: float | None) -> None:
    """Draw dotted lines at the figures of guessing."""
    if x is not None:
        axes.axvline(x, color=GREY, linestyle=":", linewidth=1, label="_")
    if y is not None:
        axes.axhline(y, color=GREY, linestyle=":", linewidth=1, label="_")


def _table_of_lines(lines: Sequence[Line], x: Axis) -> Table:
    """Return the figures, a row per value of x."""
    words = [{point.x: point.words for point in line.points} for line in lines]
    values = sorted({at for column in words for at in column})
    rows = [[x.show(at), *(column.get(at, "–") for column in words)] for at in values]
    return Table([x.words, *(line.label for line in lines)], rows)


def _short(label: str, most: int = 34) -> str:
    return label if len(label) <= most else f"{label[: most - 1]}…"


def _svg(figure: Figure) -> Markup:
    """Return a figure as inline SVG in the colours of the page; its texts stay texts, escaped by matplotlib."""
    figure.set_facecolor("none")
    for axes in figure.axes:
        axes.set_facecolor("none")
        axes.grid(color="#888888", alpha=0.25, linewidth=0.7)
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "fl_sim"}), np.errstate(all="ignore"):
        figure.savefig(buffer, format="svg", metadata=nothing)
    svg = buffer.getvalue()[buffer.getvalue().index("<svg") :]
    svg = re.sub(r' id="[a-zA-Z0-9.]+_\d+"', "", svg)  # a page has several figures
    for colour, own in THEME.items():
        svg = svg.replace(colour.lower(), own)
    return Markup(svg)
