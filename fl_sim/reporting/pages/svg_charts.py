"""Draw figures with intervals as inline SVG; colours and fonts are those of the page.

>>> row = IntervalRow("first", 0.8, 0.7, 0.9, bound=0.95, bound_words="95%")
>>> chart = interval_chart([row], Scale(0.0, 1.0, (0.0, 0.5, 1.0), "{:.0%}"))
>>> "<title>first: 80% (70% to 90%); at most 95% is possible</title>" in chart
True
>>> series = Series("first", ((1.0, 2.0, 1.5, 2.5), (4.0, 6.0, 5.0, 7.0)))
>>> axes = Scale(1.0, 4.0, (1.0, 2.0, 4.0), log=True), Scale(0.0, 8.0, (0.0, 8.0))
>>> "polyline" in line_chart([series], *axes, "repetitions", "bits")
True
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
