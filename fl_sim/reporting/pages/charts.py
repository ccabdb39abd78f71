"""Draw charts as inline SVG; colours and fonts are those of the page.

First figures with intervals; then line charts that a reader zooms into and points at, with a legend and the figures as
a table behind.

The picture is drawn here and stands without scripts; ``charts.js`` draws it again for the width of the screen, from the
same figures. Lines differ in colour, dashes and marks, and lines that coincide are named.

>>> row = IntervalRow("first", 0.8, 0.7, 0.9, bound=0.95, bound_words="95%")
>>> chart = interval_chart([row], Scale(0.0, 1.0, (0.0, 0.5, 1.0), "{:.0%}"))
>>> "<title>first: 80% (70% to 90%); at most 95% is possible</title>" in chart
True
>>> series = Series("first", ((1.0, 2.0, 1.5, 2.5), (4.0, 6.0, 5.0, 7.0)))
>>> axes = Scale(1.0, 4.0, (1.0, 2.0, 4.0), log=True), Scale(0.0, 8.0, (0.0, 8.0))
>>> "polyline" in line_chart([series], *axes, "repetitions", "bits")
True

>>> line = Line("A", 0, ((0.0, 1.0, "1.00"), (1.0, 3.0, "3.00")))
>>> chart = live_chart("epsilon", "ε over rounds", [line], Axis("round", whole=True), Axis("ε"), "Rounded up.")
>>> "<polyline" in chart and 'data-zoom="in"' in chart and "<td>3.00</td>" in chart
True
>>> coinciding([line, Line("B", 1, line.points)])
['A and B coincide']
>>> ticks(0.0, 7.0), log_ticks(90.0, 700.0)
((0.0, 2.0, 4.0, 6.0), (100.0, 200.0, 500.0))
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_sim.formats import printable
from fl_sim.reporting.pages.html_page import Markup, markup

_WIDTH = 760
_COLOURS = 6
_LABELS, _RIGHT, _TOP, _ROW, _AXIS = 250, 24, 10, 30, 34
_HEIGHT, _LEFT, _BOTTOM, _LEGEND = 300, 56, 46, 20


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis.

    Attributes:
        low, high: its ends.
        ticks: the values that are written.
        words: the format of a value.
        guess: the value of guessing, drawn as a dotted line.
        log: whether equal ratios have equal lengths.
    """

    low: float
    high: float
    ticks: tuple[float, ...]
    words: str = "{:g}"
    guess: float | None = None
    log: bool = False

    def share(self, value: float) -> float:
        """Return where a value lies, from 0 to 1; what lies outside is moved to the end."""
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return (at - low) / (high - low)


@dataclass(frozen=True, slots=True)
class IntervalRow:
    """A figure with its interval, and the largest one that is possible.

    Attributes:
        label: of the row.
        value, low, high: the figure and its interval.
        bound: the largest figure that is proven possible; None if there is none.
        bound_words: the bound in words, rounded up.
        words: the figure in words, where the axis would round it to the wrong side.
        colour: its number; None for a colour per row.
    """

    label: str
    value: float
    low: float
    high: float
    bound: float | None = None
    bound_words: str = ""
    words: str = ""
    colour: int | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """A line of points (x, value, low, high)."""

    label: str
    points: tuple[tuple[float, float, float, float], ...]


def interval_chart(rows: Sequence[IntervalRow], scale: Scale, whole: int = _WIDTH, labels: int = _LABELS) -> Markup:
    """Return a picture with a line per row: a dot with its interval, and a bar at its bound.

    Args:
        rows: at least one.
        scale: of all figures.
        whole: the width of the picture.
        labels: how much of it is for labels.
    """
    width, bottom = whole - labels - _RIGHT, _TOP + _ROW * len(rows)
    parts = [*_grid(scale, bottom, labels, width)]
    for number, row in enumerate(rows):
        y = _TOP + _ROW * (number + 0.5)
        x, low, high = (labels + width * scale.share(value) for value in (row.value, row.low, row.high))
        colour = f"var(--c{(number if row.colour is None else row.colour) % _COLOURS})"
        said = f"{row.label}: {row.words or _interval_words(row.value, row.low, row.high, scale)}"
        parts.append(f'<text x="0" y="{y + 4:.1f}">{markup(_short(row.label))}</text>')
        mark = (
            f'<line class="mark" x1="{low:.1f}" x2="{high:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}"/>'
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>'
        )
        if row.bound is not None:
            said += f"; at most {row.bound_words} is possible"
            at = labels + width * scale.share(row.bound)
            mark += f'<line class="bound" x1="{at:.1f}" x2="{at:.1f}" y1="{y - 9:.1f}" y2="{y + 9:.1f}"/>'
        parts.append(f'<g class="hit"><title>{markup(said)}</title>{mark}</g>')
    return _svg(parts, bottom + _AXIS, whole)


def line_chart(series: Sequence[Series], x: Scale, y: Scale, x_words: str, y_words: str) -> Markup:
    """Return a picture of lines with an interval at every point, and a legend below."""
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    parts = [*axes_frame(x, y, (_LEFT, _TOP, width, height), (x_words, y_words))]
    for number, line in enumerate(series):
        colour = f"var(--c{number % _COLOURS})"
        path = []
        for at, *figures in line.points:
            across = _LEFT + width * x.share(at)
            value, low, high = (_TOP + height * (1 - y.share(figure)) for figure in figures)
            path.append(f"{across:.1f},{value:.1f}")
            said = f"{line.label}, {x.words.format(at)}: {_interval_words(figures[0], figures[1], figures[2], y)}"
            parts.append(
                f'<g class="hit"><title>{markup(said)}</title>'
                f'<line class="mark" x1="{across:.1f}" x2="{across:.1f}" y1="{low:.1f}" y2="{high:.1f}" '
                f'stroke="{colour}"/><circle cx="{across:.1f}" cy="{value:.1f}" r="4" fill="{colour}"/></g>'
            )
        parts.append(f'<polyline class="mark" fill="none" stroke="{colour}" points="{" ".join(path)}"/>')
        below = _HEIGHT + _LEGEND * number
        parts.append(f'<circle cx="{_LEFT + 5}" cy="{below + 6}" r="5" fill="{colour}"/>')
        parts.append(f'<text x="{_LEFT + 18}" y="{below + 10}">{markup(line.label)}</text>')
    return _svg(parts, _HEIGHT + _LEGEND * len(series))


def _grid(scale: Scale, bottom: float, labels: float, width: float) -> Iterator[str]:
    """Yield the lines and words of the axis below the rows."""
    for tick in scale.ticks:
        at = labels + width * scale.share(tick)
        yield f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{bottom}"/>'
        words = markup(scale.words.format(tick))
        yield f'<text class="soft" x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{words}</text>'
    if scale.guess is not None:
        at = labels + width * scale.share(scale.guess)
        yield f'<line class="guess" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{bottom}"/>'


def axes_frame(x: Scale, y: Scale, box: tuple[float, float, float, float], words: tuple[str, str]) -> Iterator[str]:
    """Yield the grid, the values and the names of two axes.

    Args:
        x, y: the axes.
        box: left, top, width and height of the area between them, in the units of the picture.
        words: their names.
    """
    left, top, width, height = box
    bottom, right = top + height, left + width
    for tick in y.ticks:
        at = top + height * (1 - y.share(tick))
        yield f'<line class="grid" x1="{left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>'
        said = markup(y.words.format(tick))
        yield f'<text class="soft" x="{left - 8}" y="{at + 4:.1f}" text-anchor="end">{said}</text>'
    if y.guess is not None:
        at = top + height * (1 - y.share(y.guess))
        yield f'<line class="guess" x1="{left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>'
    for tick in x.ticks:
        at = left + width * x.share(tick)
        said = markup(x.words.format(tick))
        yield f'<text class="soft" x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{said}</text>'
    yield f'<text class="soft" x="{left + width / 2}" y="{bottom + 34}" text-anchor="middle">{markup(words[0])}</text>'
    middle = top + height / 2
    turned = f'transform="rotate(-90 12 {middle})"'
    yield f'<text class="soft" x="12" y="{middle}" text-anchor="middle" {turned}>{markup(words[1])}</text>'


def _interval_words(value: float, low: float, high: float, scale: Scale) -> str:
    if low == value == high:
        return scale.words.format(value)
    return f"{scale.words.format(value)} ({scale.words.format(low)} to {scale.words.format(high)})"


def _short(label: str, most: int = 40) -> str:
    return label if len(label) <= most else f"{label[: most - 1]}…"


def _svg(parts: Sequence[str], height: float, width: float = _WIDTH) -> Markup:
    return Markup(f'<svg viewBox="0 0 {width} {height:.0f}" role="img">{"".join(parts)}</svg>')


MOST_POINTS = 200
"""Points of a line that are drawn; of more, evenly spaced ones and the last."""

_LINES_WIDTH, _LINES_HEIGHT, _LINES_TOP, _LINES_RIGHT, _LINES_LEFT, _LINES_BOTTOM = 560, 280, 12, 14, 64, 46
_DASHES = ("", "7 4", "2 3", "9 3 2 3", "14 4", "5 2 2 2 2 2")
_MARKS = (
    *("M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0", "M-3.5,-3.5h7v7h-7z", "M0,-4.5L4.5,3.5H-4.5z", "M0,-5L5,0L0,5L-5,0z"),
    *("M0,4.5L4.5,-3.5H-4.5z", "M-1.5,-5h3v3.5H5v3H1.5V5h-3V1.5H-5v-3h3.5z"),
)
_MOST_MARKS = 40
_LOG_FROM = 4.0
_SAME = 0.004


@dataclass(frozen=True, slots=True)
class Axis:
    """What an axis shows.

    Attributes:
        words: its name.
        percent: whether values are shares.
        whole: whether values are whole numbers.
        log: whether equal ratios may have equal lengths, where the values span more than a factor of four.
        zero: whether the axis begins at zero.
        said: the word in front of a value in a tooltip; None leaves the value out.
    """

    words: str
    percent: bool = False
    whole: bool = False
    log: bool = False
    zero: bool = False
    said: str | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A line of points (x, y, y in words).

    Attributes:
        label: in the legend.
        style: number of its colour, dashes and mark.
        points: at least one, in the order of x, all finite.
    """

    label: str
    style: int
    points: tuple[tuple[float, float, str], ...]

    def record(self) -> dict[str, Any]:
        """Return what the script draws."""
        points = [(float(f"{x:.6g}"), float(f"{y:.6g}"), words) for x, y, words in self.points]
        return {"label": printable(self.label), "points": points, **style(self.style)}


def style(number: int) -> dict[str, str]:
    """Return colour, dashes and mark of a line; lines of one colour differ in dashes and marks."""
    look = (number + number // _COLOURS) % len(_DASHES)
    return {"colour": f"var(--c{number % _COLOURS})", "dash": _DASHES[look], "mark": _MARKS[look]}


def script() -> str:
    """Return the script that makes the charts of a page live."""
    return _beside("charts.js")


def style_sheet() -> str:
    """Return the style of a page with such charts."""
    return _beside("live.css")


def _beside(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def live_chart(name: str, title: str, lines: Sequence[Line], x: Axis, y: Axis, caption: str) -> Markup:
    """Return a chart with its title, buttons, legend, caption and table.

    Args:
        name: of the chart on the page, letters alone.
        title: above it.
        lines: at least one.
        x: the axis of the first value of a point; never logarithmic.
        y: of the second.
        caption: below it; lines that coincide, and points left out, are added.
    """
    lines = [Line(line.label, line.style, tuple(_thinned(line.points))) for line in lines]
    scales = _scale(lines, 0, x), _scale(lines, 1, y)
    data = {"x": _axis(x, scales[0]), "y": _axis(y, scales[1]), "lines": [line.record() for line in lines]}
    chart = html.escape(json.dumps(data, ensure_ascii=False, separators=(",", ":")), quote=True)
    said = " ".join([caption, *(f"{words}." for words in coinciding(lines))])
    picture = _picture(title, lines, x, y, *scales)
    return Markup(
        f'<figure class="live" id="{name}" data-chart="{chart}">'
        f'<div class="top"><h3>{markup(title)}</h3>{_BUTTONS}</div><div class="picture">{picture}</div>'
        f'<div class="tip" role="status" hidden></div>{_legend(lines)}'
        f"<figcaption>{markup(said)}</figcaption>{_table(lines, x)}</figure>"
    )


_BUTTONS = (
    '<div class="tools" role="group" aria-label="Zoom">'
    '<button type="button" data-zoom="in" aria-label="Zoom in">+</button>'
    '<button type="button" data-zoom="out" aria-label="Zoom out">−</button>'
    '<button type="button" data-zoom="all" aria-label="Show all">all</button></div>'
)


def coinciding(lines: Sequence[Line]) -> list[str]:
    """Return which lines hide each other, being the same within the width of a line."""
    values = [point[1] for line in lines for point in line.points]
    width = _SAME * ((max(values) - min(values)) or 1.0)
    groups: list[list[Line]] = []
    for line in lines:
        group = next((group for group in groups if _is_same(group[0], line, width)), None)
        if group is None:
            groups.append([line])
        else:
            group.append(line)
    return [f"{_listed([line.label for line in group])} coincide" for group in groups if len(group) > 1]


def _is_same(first: Line, second: Line, width: float) -> bool:
    """Return whether two lines are no further apart than ``width`` wherever both have a point, at least twice."""
    values = {point[0]: point[1] for point in first.points}
    apart = [abs(values[x] - y) for x, y, _ in second.points if x in values]
    return len(apart) > 1 and max(apart) <= width


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"


def ticks(low: float, high: float, count: int = 5) -> tuple[float, ...]:
    """Return about ``count`` round values between two ends."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(part * power for part in (1, 2, 5, 10) if part * power >= 0.999 * rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(float(f"{number * step:.12g}") for number in range(first, last + 1))


def log_ticks(low: float, high: float) -> tuple[float, ...]:
    """Return the values between two ends that are 1, 2 or 5 times a power of ten; round ones where these are few."""
    powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    values = [float(f"{part * 10.0**power:.12g}") for power in powers for part in (1, 2, 5)]
    inside = tuple(value for value in values if low <= value <= high)
    return inside if len(inside) > 2 else ticks(low, high)


def _thinned(points: Sequence[tuple[float, float, str]]) -> Iterator[tuple[float, float, str]]:
    every = math.ceil(len(points) / MOST_POINTS)
    for number, point in enumerate(points):
        if number % every == 0 or number == len(points) - 1:
            yield point


def _scale(lines: Sequence[Line], column: int, axis: Axis) -> Scale:
    """Return the ends and the ticks of an axis."""
    values = [float(point[column]) for line in lines for point in line.points]
    low, high = min(values), max(values)
    form = "{:.0%}" if axis.percent else "{:,.5g}"
    if axis.log and low > 0 and high / low > _LOG_FROM:
        low, high = 0.9 * low, 1.1 * high
        return Scale(low, high, log_ticks(low, high), form, log=True)
    margin = 0.0 if column == 0 else 0.06 * ((high - low) or abs(high) or 1.0)
    low = 0.0 if axis.zero else max(low - margin, 0.0) if low >= 0 else low - margin
    high = high + margin if high + margin > low else low + 1.0
    wanted = ticks(low, high)
    return Scale(low, high, tuple(v for v in wanted if not axis.whole or v.is_integer()), form)


def _axis(axis: Axis, scale: Scale) -> dict[str, Any]:
    """Return what the script needs of an axis."""
    own = {"words": axis.words, "percent": axis.percent, "whole": axis.whole, "said": axis.said}
    return own | {"low": scale.low, "high": scale.high, "log": scale.log}


def _picture(title: str, lines: Sequence[Line], x: Axis, y: Axis, across: Scale, up: Scale) -> str:
    """Return the chart as it is without a script."""
    width, height = _LINES_WIDTH - _LINES_LEFT - _LINES_RIGHT, _LINES_HEIGHT - _LINES_TOP - _LINES_BOTTOM
    frame = "".join(axes_frame(across, up, (_LINES_LEFT, _LINES_TOP, width, height), (x.words, y.words)))
    drawn = []
    for line in lines:
        places = [
            (_LINES_LEFT + width * across.share(point[0]), _LINES_TOP + height * (1 - up.share(point[1])))
            for point in line.points
        ]
        drawn.append("".join(_line(line, places)))
    said = html.escape(f"{title}; the figures are in the table below")
    opened = f'<svg viewBox="0 0 {_LINES_WIDTH} {_LINES_HEIGHT}" role="img" tabindex="0" aria-label="{said}">'
    return f"{opened}{frame}{''.join(drawn)}</svg>"


def _line(line: Line, places: Sequence[tuple[float, float]]) -> Iterator[str]:
    look = style(line.style)
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dash = f' stroke-dasharray="{look["dash"]}"' if look["dash"] else ""
    yield f'<polyline class="mark" fill="none" stroke="{look["colour"]}"{dash} points="{path}"/>'
    if len(places) <= _MOST_MARKS:
        for x, y in places:
            yield f'<path d="{look["mark"]}" fill="{look["colour"]}" transform="translate({x:.1f} {y:.1f})"/>'


def _legend(lines: Sequence[Line]) -> str:
    """Return a button per line, which hides it."""
    buttons = [
        f'<button type="button" data-line="{number}" aria-pressed="true">{_swatch(line)}{markup(line.label)}</button>'
        for number, line in enumerate(lines)
    ]
    return f'<div class="legend" role="group" aria-label="Lines">{"".join(buttons)}</div>'


def _swatch(line: Line) -> str:
    drawn = "".join(_line(line, [(1, 7), (29, 7)])).partition("<path")[0]
    look = style(line.style)
    mark = f'<path d="{look["mark"]}" fill="{look["colour"]}" transform="translate(15 7)"/>'
    return f'<svg class="swatch" viewBox="0 0 30 14" aria-hidden="true">{drawn}{mark}</svg>'


def _table(lines: Sequence[Line], x: Axis) -> str:
    """Return the figures, a row per value of x."""
    by_x: dict[float, dict[int, str]] = {}
    for number, line in enumerate(lines):
        for at, _, words in line.points:
            by_x.setdefault(at, {})[number] = words
    head = "".join(f'<th scope="col">{markup(words)}</th>' for words in (x.words, *(line.label for line in lines)))
    rows = "".join(
        f'<tr><th scope="row">{_x_words(at, x)}</th>'
        + "".join(f"<td>{markup(row.get(number, '–'))}</td>" for number in range(len(lines)))
        + "</tr>"
        for at, row in sorted(by_x.items())
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<details><summary>Figures</summary><div class="wide high" tabindex="0">{table}</div></details>'


def _x_words(value: float, axis: Axis) -> str:
    return f"{100 * value:.4g}%" if axis.percent else f"{value:,.5g}"
