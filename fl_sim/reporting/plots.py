"""Charts of runs: as a picture in a file, or as SVG with a table of the figures on a page.

A :class:`Chart` is data, which :func:`draw` draws the same way everywhere. Every figure is that of the run's facts
(:mod:`fl_sim.reporting.run_facts`): a run without a proven ε is never drawn at one, and the legend says why instead.
Figures are drawn anew (Agg, no pyplot state), so that runs, tests and notebooks are independent.

>>> line = Line("A", 0, (Point(0.0, 1.0, "1.00"), Point(1.0, 3.0, "3.00")))
>>> chart = Chart("ε over rounds", ROUND, Axis("ε"), "Rounded up.", lines=(line,))
>>> chart.svg.startswith("<svg"), chart.table.rows
(True, [['0', '1.00'], ['1', '3.00']])
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis as DrawnAxis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from fl_sim.formats import format_delta, format_epsilon, printable
from fl_sim.reporting.bootstrap import Figure as Measured
from fl_sim.reporting.held_out import HeldOutFigures, interval, metric_words
from fl_sim.reporting.model_card import card_of
from fl_sim.reporting.report import full_report_text
from fl_sim.reporting.run_facts import NO_GUARANTEE, NO_GUARANTEE_WORDS, UNITS, UNTRUSTED, RunFacts, read_facts
from fl_sim.reporting.without_privacy import WithoutPrivacy
from fl_sim.storage.model_files import CARD
from fl_sim.storage.run_folder import DIVERGED, ResultsError, RunFolder, replace_file
from fl_sim.strategies.accounting.paper_model import AS_PUBLISHED

EPSILON_FILE = "epsilon_against_steps.png"
UTILITY_FILE = "utility_against_epsilon.png"
# Okabe and Ito's palette, which colour-blind readers can tell apart, without its yellow (too pale on white).
_BLACK, _ORANGE, _SKY, _GREEN, _BLUE, _VERMILION, _PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
BOUND = "#B3261E"
GREY = "#666666"
RUN_COLOURS = (_BLUE, _VERMILION, _GREEN, _PURPLE, _BLACK, _SKY, _ORANGE)  # the alike ones far from each other
MARKERS = "os^vDPX*"
"""A mark per curve besides its colour, for readers and printers without colours."""

THEME = {
    _BLACK: "currentColor",
    BOUND: "var(--bound)",
    **{colour: f"var(--c{number})" for number, colour in enumerate(RUN_COLOURS) if colour != _BLACK},
}
"""Colours of matplotlib and those of a page, which has a light and a dark style."""

WIDEST = 420
"""Pixels that a chart takes on a page at most."""

MOST_POINTS = 200
"""Points of a line that are drawn; of more, evenly spaced ones and the last."""

_WIDEST, _THINNEST = 2.6, 1.2
_LETTERS_PER_INCH, _KEY = 16.5, 8  # of a legend's font, and what the mark before a label takes of them
_MOST_IN_A_COLUMN = 5
_LONGEST_ROW = 30
_DENSE = 12  # rows, from which on they stand closer
_MARKS = 8  # on a curve, at most, so that its dashes stay visible


@dataclass(frozen=True)
class Look:
    """The look of one of several curves: later ones are thinner and marked elsewhere, so that none hides another."""

    colour: str
    dash: str
    marker: str
    width: float
    number: int

    def line(self, points: int) -> dict[str, Any]:
        """Return matplotlib's settings of a line of so many points."""
        step = max(1, math.ceil(points / _MARKS))
        return {
            "color": self.colour, "linestyle": self.dash, "linewidth": self.width, "marker": self.marker,
            "markersize": 3.5 + self.width, "fillstyle": "none", "markevery": (self.number % step, step),
        }  # fmt: skip


def styles() -> Iterator[tuple[str, str]]:
    """Yield pairs of colour and dash without end: all colours, then the same colours with other dashes."""
    return cycle([(colour, dash) for dash in ("-", "--", "-.", ":") for colour in RUN_COLOURS])


def looks(curves: int) -> list[Look]:
    """Return a look per curve, the widest first, with another mark and, while they last, another colour for each."""
    widths = [1.8] if curves == 1 else [float(width) for width in np.linspace(_WIDEST, _THINNEST, curves)]
    shown = zip(styles(), cycle(MARKERS), widths, range(curves), strict=False)
    return [Look(colour, dash, marker, width, number) for (colour, dash), marker, width, number in shown]


class Point(NamedTuple):
    """A point of a line: its figure, the figure in words, and its interval, if it has one."""

    x: float
    y: float
    words: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A line; ``number`` chooses its look. Its points are finite and in the order of x; without any, a legend alone."""

    label: str
    number: int
    points: tuple[Point, ...]
    dashed: bool = False


class Level(NamedTuple):
    """A line across a chart at a value, with its label in the legend; ``number`` chooses its colour, None is grey."""

    label: str
    value: float
    number: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A figure with its interval.

    Attributes:
        value, low, high: the figure and its interval.
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
class Axis:
    """What an axis shows.

    Attributes:
        percent, whole: whether values are shares, or whole numbers.
        log_from: the ratio between the ends of curves above which equal ratios have equal lengths: a linear axis would
            flatten the small ones.
        zero: whether the axis begins at zero.
        guess: the value of guessing, drawn as a dotted line.
        epsilon: whether values are ε, which is rounded up.
    """

    words: str
    percent: bool = False
    whole: bool = False
    log_from: float = math.inf
    zero: bool = False
    guess: float | None = None
    epsilon: bool = False

    def show(self, value: float) -> str:
        """Return a value in words."""
        if self.epsilon:
            return format_epsilon(value)
        return f"{100 * value:.4g}%" if self.percent else f"{value:,.5g}"


ROUND = Axis("training steps (rounds)", whole=True, zero=True)


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over x, or a row per figure along x, with what a page says about them.

    ``bound_words`` is what the legend calls the bounds of rows.
    """

    title: str
    x: Axis
    y: Axis
    caption: str
    lines: tuple[Line, ...] = ()
    rows: tuple[Row, ...] = ()
    levels: tuple[Level, ...] = ()
    bound_words: str = "the most that is proven possible"

    @property
    def empty(self) -> bool:
        """Return whether there is nothing to see but a legend."""
        return not self.rows and not any(line.points for line in self.lines)

    @property
    def table(self) -> Table:
        """Return the figures, a row per value of x or per row."""
        if self.rows:
            return Table(["", self.x.words], [[row.label, row.words] for row in self.rows])
        words = [{point.x: point.words for point in _thinned(line.points)} for line in self.lines]
        values = sorted({at for column in words for at in column})
        rows = [[self.x.show(at), *(column.get(at, "–") for column in words)] for at in values]
        return Table([self.x.words, *(line.label for line in self.lines)], rows)

    @property
    def svg(self) -> Markup:
        """Return the chart as inline SVG in the colours of a page; its texts stay texts, escaped by matplotlib."""
        figure = Figure(figsize=(WIDEST / 96, 1), layout="constrained", facecolor="none")
        axes = figure.subplots()
        legend = _legend(figure, draw(axes, self))
        labels = sum(1 + label.get_text().count("\n") for label in axes.get_yticklabels()) if self.rows else 0
        figure.set_figheight(
            (0.75 + 0.14 * labels + (0.06 if len(self.rows) > _DENSE else 0.16) * len(self.rows) if self.rows else 2.7)
            + 0.18 * legend
        )
        axes.set_facecolor("none")
        axes.grid(color="#888888", alpha=0.25, linewidth=0.7, axis="x" if self.rows else "both")
        buffer = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": "fl_sim"}), np.errstate(all="ignore"):
            figure.savefig(buffer, format="svg", metadata=nothing)
        svg = buffer.getvalue()[buffer.getvalue().index("<svg") :]
        svg = re.sub(r' id="[a-zA-Z0-9.]+_\d+"', "", svg)  # a page has several figures
        for colour, own in THEME.items():
            svg = svg.replace(colour.lower(), own)
        return Markup(svg)


def picture(charts: Sequence[Chart]) -> Figure:
    """Draw charts side by side, with one legend."""
    figure = Figure(figsize=(7.2 if len(charts) == 1 else 4.8 * len(charts), 4.6), layout="constrained")
    handles: dict[str, Artist] = {}
    for axes, chart in zip(figure.subplots(1, len(charts), squeeze=False)[0], charts, strict=True):
        handles |= draw(axes, chart)
        axes.set_title(plain_label(chart.title), loc="left", fontsize="medium")
    _legend(figure, handles)
    return figure


def draw(axes: Axes, chart: Chart) -> dict[str, Artist]:
    """Draw a chart into ``axes``; return the entries of the legend by label."""
    axes.margins(x=0.06 if chart.rows else 0.02)
    handles = _draw_rows(axes, chart) if chart.rows else _draw_lines(axes, chart)
    for level, dash in zip(chart.levels, cycle((":", "-.", (0, (1, 4)))), strict=False):
        own = level.number is not None
        handles[level.label] = (axes.axvline if chart.rows else axes.axhline)(
            level.value, color=RUN_COLOURS[(level.number or 0) % len(RUN_COLOURS)] if own else GREY,
            linestyle="--" if own else dash, label=plain_label(level.label),
        )  # fmt: skip
    axes.grid(color="#E3E3E3", linewidth=0.7, axis="x" if chart.rows else "both")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    ends = [line.points[end] for line in chart.lines if line.points for end in (0, -1)]
    handles |= _finish(axes.xaxis, chart.x, [row.value for row in chart.rows] or [end.x for end in ends])
    if not chart.rows:
        handles |= _finish(axes.yaxis, chart.y, [*(end.y for end in ends), *(level.value for level in chart.levels)])
    if chart.empty:
        for axis in (axes.xaxis, *(() if chart.levels else (axes.yaxis,))):
            axis.set_ticks([])
    return handles | _mark_clipped(axes, chart)


def _draw_lines(axes: Axes, chart: Chart) -> dict[str, Artist]:
    """Draw the lines of a chart, and the intervals of their points; return the entries of the legend."""
    handles: dict[str, Artist] = {}
    chosen = looks(1 + max((line.number for line in chart.lines), default=0))
    for line in chart.lines:
        points, look = _thinned(line.points), chosen[line.number]
        style = look.line(len(points)) | ({"linestyle": "--"} if line.dashed else {})
        if not points:
            style = {"linestyle": "none"}
        (handle,) = axes.plot([at.x for at in points], [at.y for at in points], label=plain_label(line.label), **style)
        handles[line.label] = handle
        for at, _, _, low, high in points:
            if low is not None and high is not None:
                axes.plot([at, at], [low, high], color=look.colour, linewidth=1.2, marker="_", markersize=5, label="_")
    return handles


def _draw_rows(axes: Axes, chart: Chart) -> dict[str, Artist]:
    """Draw figures with their intervals and bounds, the first on top; return the entries of the legend."""
    handles: dict[str, Artist] = {}
    for place, row in enumerate(reversed(chart.rows)):
        colour = RUN_COLOURS[row.number % len(RUN_COLOURS)]
        axes.plot([row.low, row.high], [place, place], color=colour, linewidth=2, marker="|", markersize=7)
        axes.plot([row.value], [place], color=colour, marker="o", markersize=6)
        if row.bound is not None:
            ends = [place - 0.3, place + 0.3]
            (handles[chart.bound_words],) = axes.plot([row.bound, row.bound], ends, color=BOUND, linewidth=2.5)
    labels = [
        "\n".join(textwrap.wrap(printable(row.label), _LONGEST_ROW, max_lines=2, placeholder="…")) for row in chart.rows
    ]
    axes.set_yticks(range(len(chart.rows)), list(map(plain_label, labels))[::-1], fontsize="small")
    axes.set_ylim(-0.6, len(chart.rows) - 0.4)
    return handles


def _mark_clipped(axes: Axes, chart: Chart) -> dict[str, Artist]:
    """Mark with an arrow every interval that goes on beyond the axis; return the arrow's entry of the legend."""
    handles: dict[str, Artist] = {}
    spans: list[tuple[float, float, float, int]]
    spans = [(row.low, row.high, place, row.number) for place, row in enumerate(reversed(chart.rows))]
    points = [(at, line.number) for line in chart.lines for at in _thinned(line.points)]
    spans += [(at.low, at.high, at.x, number) for at, number in points if at.low is not None and at.high is not None]
    least, most = axes.get_xlim() if chart.rows else axes.get_ylim()
    axes.autoscale(False)  # an arrow at the edge moves no edge
    for low, high, at, number in spans:
        colour = RUN_COLOURS[number % len(RUN_COLOURS)]
        for beyond, edge, arrows in ((low < least, least, "<v"), (high > most, most, ">^")):
            if beyond:
                x, y, arrow = (edge, at, arrows[0]) if chart.rows else (at, edge, arrows[1])
                (handles["goes on beyond the axis"],) = axes.plot(
                    [x], [y], color=colour, marker=arrow, markersize=8, linestyle="none", clip_on=False, label="_"
                )
    return handles


def _finish(axis: DrawnAxis, wanted: Axis, ends: Sequence[float]) -> dict[str, Artist]:
    """Set name, scale, ticks and the least value of an axis, and draw the line of guessing; return its entry."""
    axis.set_label_text(wanted.words)
    horizontal = axis is axis.axes.xaxis
    positive = [end for end in ends if 0 < end < math.inf]  # ε is 0 before the first round
    span = max(positive) / min(positive) if positive else 1.0
    if span > wanted.log_from:
        scale = axis.axes.set_xscale if horizontal else axis.axes.set_yscale
        scale("log", nonpositive="mask")  # a zero is left out, not drawn at the floor
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if span > 20 else (1, 2, 3, 5, 7)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
        axis.set_minor_formatter(NullFormatter())
    elif wanted.zero and ends:
        axis.set_view_interval(0, axis.get_view_interval()[1], ignore=True)
    if wanted.whole:
        axis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    if wanted.percent:
        axis.set_major_formatter(PercentFormatter(1.0))
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))  # their words are long
    if wanted.guess is None:
        return {}
    line = axis.axes.axvline if horizontal else axis.axes.axhline
    return {f"guessing: {wanted.show(wanted.guess)}": line(wanted.guess, color=GREY, linestyle=":", label="_")}


def _thinned(points: Sequence[Point]) -> tuple[Point, ...]:
    every = math.ceil(len(points) / MOST_POINTS)
    return tuple(p for number, p in enumerate(points) if number % every == 0 or number == len(points) - 1)


def _legend(figure: Figure, handles: Mapping[str, Artist]) -> int:
    """Add a legend below the axes, where it hides no curve, long labels in lines; return how many lines it has."""
    if not handles:
        return 0
    room = int(figure.get_figwidth() * _LETTERS_PER_INCH)
    columns = 2 if max(map(len, handles)) <= room // 2 - _KEY or len(handles) > _MOST_IN_A_COLUMN else 1
    texts = [textwrap.wrap(printable(label), room // columns - _KEY) for label in handles]
    labels = [plain_label(line) for line in map("\n".join, texts)]
    figure.legend(
        list(handles.values()), labels, loc="outside lower center", ncols=columns, frameon=False, fontsize="small"
    )
    heights = list(map(len, texts))
    rows = -(-len(heights) // columns)  # matplotlib fills one column after the other
    return sum(max(heights[row::rows]) for row in range(rows))


def plain_label(label: str) -> str:
    """Return a text that matplotlib draws as it is, line by line: a dollar would begin a formula."""
    return "\n".join(map(printable, label.split("\n"))).replace("$", r"\$")


def save(figure: Figure, path: Path, dpi: int = 200) -> Path:
    """Write a figure atomically, in the format of the suffix of ``path`` (.png, .pdf, .svg); return ``path``."""
    replace_file(path, render(figure, path.suffix.lstrip("."), dpi))
    return path


def render(figure: Figure, kind: str = "png", dpi: int = 200) -> bytes:
    """Return the bytes of a figure; a notebook shows a PNG with ``IPython.display.Image``."""
    if figure.canvas is None or not isinstance(figure.canvas, FigureCanvasAgg):
        FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=dpi)
    return buffer.getvalue()


# Charts of runs

Runs = Mapping[str, RunFacts]
"""The facts of runs by the labels of their curves."""


def run_picture(runs: Runs, x: str | None = None, unit: str | None = None) -> Figure:
    """Draw one or more runs over each other.

    Args:
        runs: at least one, by the names that the legend gives them.
        x: "round" draws ε against training steps, "epsilon" utility against ε, "users" one run's utility by user, None
            the first two side by side.
        unit: whose ε, a key of :data:`UNITS`; None for the one that leads in the first run with a guarantee, and every
            unit of one run over its steps. A run without a finite ε of this unit has no line, and the legend says so.

    Raises:
        ResultsError: ``x`` or ``unit`` is unknown, a run has no metrics, or several runs' utility by user is wanted.
    """
    if not runs:
        raise ResultsError("no run folder is given; allowed: at least one")
    if x == "users" and (len(runs) > 1 or unit is not None):
        given = "unit is given" if unit is not None else f"{len(runs)} runs are given"
        raise ResultsError(f"{given} with x users; allowed: one run, whose utility is drawn")
    for facts in runs.values():
        if facts.rounds_done is None:
            raise ResultsError(f"{facts.run}: has no rounds yet; there is nothing to plot")
    if x not in (None, "round", "epsilon", "users"):
        raise ResultsError(f"x is {x!r}; allowed: round, epsilon, users")
    if unit is not None and unit not in UNITS:
        raise ResultsError(f"unit is {unit!r}; allowed: {', '.join(UNITS)}")
    if x == "users":
        if facts.held_out is None:
            raise ResultsError(f"{facts.run}: has recorded nothing by user; allowed: a run that has ended")
        return picture(held_out_charts(runs))
    runs = {f"{label}, diverged" if facts.stopped == DIVERGED else label: facts for label, facts in runs.items()}
    if x == "round" and len(runs) == 1 and unit is None:
        return picture([_units_chart(runs)])
    unit = unit or _common_unit(runs)
    charts = {"round": epsilon_chart, "epsilon": utility_chart}
    return picture([chart(runs, unit) for kind, chart in charts.items() if x in (None, kind)])


def write_run_plots(run: RunFolder) -> list[Path]:
    """Write the two plots of a run into its folder and return their paths; none for a run without metrics."""
    if run.last_round is None:
        return []
    facts = read_facts(run)
    named = {facts.run: facts}
    run.plots_dir.mkdir(exist_ok=True)
    written = [save(run_picture(named, "round"), run.plots_dir / EPSILON_FILE)]
    if facts.utility.metric in facts.by_round:
        written.append(save(run_picture(named, "epsilon"), run.plots_dir / UTILITY_FILE))
    return written


def present(run: RunFolder) -> None:
    """Write summary.txt, the model's card and the plots of ``run`` anew; no plots of an interrupted run."""
    facts = read_facts(run)
    replace_file(run.summary_file, full_report_text(facts).encode())
    if run.model_dir.is_dir():
        replace_file(run.model_dir / CARD, card_of(run, facts).encode())
    if run.finished:
        write_run_plots(run)


def _common_unit(runs: Runs) -> str:
    """Return the unit of the ε that leads in the runs; of the first guarantee if it is not one."""
    private = [facts for facts in runs.values() if facts.guarantee] or list(runs.values())
    return private[0].headline.unit


def points(columns: Mapping[str, Sequence[Any]], name: str, form: str | Callable[[float], str]) -> Iterator[Point]:
    """Yield a column of the metrics over rounds, where it was measured and is finite.

    >>> list(points({"round": [0, 1], "train_loss": [None, 4.5]}, "train_loss", "{:.2f}"))
    [Point(x=1.0, y=4.5, words='4.50', low=None, high=None)]
    """
    for at, value in zip(columns.get("round", ()), columns.get(name, ()), strict=False):
        if value is not None and math.isfinite(value):
            yield Point(float(at), float(value), form.format(value) if isinstance(form, str) else form(value))


def epsilon_points(facts: RunFacts, unit: str | None = None) -> Iterator[Point]:
    """Yield ε of a unit (None: the one that leads) after every round, of a run in which it is finite at the end."""
    name = f"epsilon_{unit or facts.headline.unit}"
    if math.isfinite(facts.epsilon.get(name, math.inf)):
        yield from points(facts.by_round, name, lambda value: f"ε {format_epsilon(value)}")


def lines_of(
    runs: Runs, points_of: Callable[[RunFacts], Iterable[Point]], why: Callable[[RunFacts], str] = lambda facts: "none"
) -> tuple[Line, ...]:
    """Return a line per run; the label of one without points says ``why``."""
    lines = []
    for number, (label, facts) in enumerate(runs.items()):
        found = tuple(sorted(points_of(facts), key=lambda point: point.x))
        lines.append(Line(label if found else f"{label}: {why(facts)}", number, found))
    return tuple(lines)


def _why_no_epsilon(facts: RunFacts, unit: str | None = None) -> str:
    """Return why a run has no finite ε of a unit (None: the one that leads)."""
    infinite = facts.epsilon.get(f"epsilon_{unit or facts.headline.unit}") == math.inf
    other = f"ε of {UNITS[unit or facts.headline.unit]} is ∞" if infinite else "no such ε"
    return {NO_GUARANTEE: NO_GUARANTEE_WORDS, UNTRUSTED: "no ε can be trusted"}.get(facts.headline.state, other)


_EPSILON = Axis("ε", log_from=10.0, zero=True)
_ROUNDED = "Upper bounds; figures are rounded up."


def _units_in_words(runs: Runs, unit: str | None) -> set[str]:
    """Return whom ε of a unit (None: the one that leads in each run) protects in the runs."""
    return {UNITS[name] + facts.apart(name) for facts in runs.values() for name in [unit or facts.headline.unit]}


def epsilon_chart(runs: Runs, unit: str | None = None) -> Chart:
    """Return ε of a unit (None: the one that leads in each run) over the rounds."""
    leading = _units_in_words(runs, unit)
    words = f"ε of {leading.pop()}" if len(leading) == 1 else "ε of the unit that each run states"
    lines = lines_of(runs, lambda facts: epsilon_points(facts, unit), lambda facts: _why_no_epsilon(facts, unit))
    return Chart(f"{words}{_at_delta(runs)}", ROUND, _EPSILON, _ROUNDED, lines)


def _units_chart(runs: Runs) -> Chart:
    """Return every ε of one run over the rounds, robust bounds dashed, and its paper's claim, if it has one."""
    ((label, facts),) = runs.items()
    curves = {unit: tuple(epsilon_points(facts, unit)) for unit in UNITS}
    plain = [unit for unit in UNITS if "robust" not in unit]
    lines = [
        Line(f"{UNITS[unit]}{facts.apart(unit)}: {format_epsilon(found[-1].y)}",
             plain.index(unit.replace("_robust", "")), found, dashed="robust" in unit)
        for unit, found in curves.items() if found
    ]  # fmt: skip
    lines.sort(key=lambda line: -line.points[-1].y)  # the legend follows the lines
    if not lines:
        lines = [Line(f"{label}: {_why_no_epsilon(facts)}", 0, ())]
    claimed = tuple(points(facts.by_round, AS_PUBLISHED, format_epsilon))
    if claimed:
        words = f"as published, a claim and no guarantee: {format_epsilon(claimed[-1].y)}"
        lines.append(Line(words, len(plain), claimed, dashed=True))
    return Chart(f"Privacy loss of {label}{_at_delta(runs)}", ROUND, _EPSILON, _ROUNDED, tuple(lines))


def utility_chart(runs: Runs, unit: str | None = None) -> Chart:
    """Return utility against ε, a point per measured round; without a guarantee, a level line at the last.

    Raises:
        ResultsError: the runs are of different tasks.
    """
    metrics = list(dict.fromkeys(facts.utility.metric for facts in runs.values()))
    if len(metrics) > 1:
        raise ResultsError(f"the runs measure {' and '.join(metrics)}; allowed in one plot: runs of one task")
    kind, lines, levels = next(iter(runs.values())).utility.kind, [], []
    for number, (label, facts) in enumerate(runs.items()):
        spent = {point.x: point.y for point in epsilon_points(facts, unit)}
        measured = list(points(facts.by_round, kind.column, kind.show))
        found = [
            Point(spent[p.x], p.y, f"{kind.column} {p.words} at ε {format_epsilon(spent[p.x])}, round {p.x:.0f}")
            for p in measured if p.x in spent
        ]  # fmt: skip
        why = "" if found else f": {_why_no_epsilon(facts, unit)}"
        if measured and not found and facts.stopped != DIVERGED:
            end = measured[-1]
            levels.append(Level(f"{label}{why}, final {end.words}", end.y, number))
        else:
            lines.append(Line(f"{label}{why}", number, tuple(found)))
    levels += [Level(f"without privacy ({twin.run}): {kind.show(twin.final)}", twin.final) for twin in _twins(runs)]
    references = {facts.utility.reference for facts in runs.values() if facts.utility.reference is not None}
    words = kind.reference_words.removeprefix("a ")
    heights = [*(point.y for line in lines for point in line.points), *(level.value for level in levels)]
    for value in sorted(references):  # one far from all runs would press them together
        reference = Level(f"{words}: {kind.show(value)}", value)
        if heights and value - max(heights) > max(heights) - min(heights) > 0:
            lines.append(Line(f"{reference.label}, above the picture", len(runs), ()))
        else:
            levels.append(reference)
    leading = _units_in_words(runs, unit)
    x = Axis(f"ε, {leading.pop()}" if len(leading) == 1 else "ε", log_from=10.0, epsilon=True)
    caption = "One point a measured round; lower and further left is better."
    title = f"{kind.words.capitalize()} against ε{_at_delta(runs)}"
    return Chart(title, x, utility_axis(runs), caption, tuple(lines), levels=tuple(levels))


def _twins(runs: Runs) -> list[WithoutPrivacy]:
    """Return the noiseless twins of runs, each once, but those that are among the runs themselves."""
    shown = {facts.run for facts in runs.values()}
    twins = {twin.run: twin for facts in runs.values() if (twin := facts.without_privacy) is not None}
    return [twin for name, twin in twins.items() if name not in shown and math.isfinite(twin.final)]


def utility_axis(runs: Runs) -> Axis:
    """Return the axis of held-out utility of runs of one task."""
    kind = next(iter(runs.values())).utility.kind
    percent = kind.column == "error"
    return Axis(kind.words, percent=percent, log_from=math.inf if percent else 4.0)


def _at_delta(runs: Runs) -> str:
    """Return δ in words, and what is known if that differs: runs that differ in one of them are not comparable."""
    deltas = sorted({facts.delta for facts in runs.values() if facts.guarantee and facts.delta is not None})
    words = f", δ = {' and '.join(map(format_delta, deltas))}" if deltas else ""
    known = sorted({facts.bounds.known for facts in runs.values() if facts.guarantee and facts.bounds})
    words += f", {' and '.join(known)} known" if len(known) > 1 else ""
    return f"{words} (not comparable)" if len(deltas) > 1 or len(known) > 1 else words


def held_out_charts(runs: Runs) -> list[Chart]:
    """Return runs' utility by user; lower is better."""
    charts = [decile_chart(runs), interval_chart(runs, "By a user's number of sentences", HeldOutFigures.by_size)]
    charts.append(interval_chart(runs, "Where entities are named, and elsewhere", HeldOutFigures.by_part))
    charts.append(interval_chart(runs, "Entity tokens, by their name's mentions in training", HeldOutFigures.by_name))
    return [chart for chart in charts if chart is not None]


def decile_chart(runs: Runs) -> Chart | None:
    """Return the deciles of users' own figures; None if the runs do not share a metric."""
    metric = _held_out_metric(runs)
    if metric is None:
        return None

    def deciles(facts: RunFacts) -> Iterator[Point]:
        for number, value in enumerate(facts.held_out.deciles if facts.held_out else (), start=1):
            if math.isfinite(value):
                yield Point(number / 10, value, f"{value:.2f}")

    caption = "Users from the best to the worst predicted, without names: a share of them has at most this figure."
    title, y = "Deciles over users", Axis(f"held-out {metric_words(metric)}", percent=metric == "error")
    return Chart(title, Axis("share of users", percent=True), y, caption, lines_of(runs, deciles))


def interval_chart(
    runs: Runs, title: str, figures_of: Callable[[HeldOutFigures], Mapping[str, Measured]]
) -> Chart | None:
    """Return held-out figures of runs by subject, with 95 % intervals; None if the runs do not share a metric."""
    metric = _held_out_metric(runs)
    by_subject: dict[str, list[Row]] = {}
    for number, (label, facts) in enumerate(runs.items()):
        for subject, figure in (figures_of(facts.held_out) if metric and facts.held_out else {}).items():
            of_run = [subject, *([label.partition(" · ")[0]] if len(runs) > 1 else [])]
            row = Row(
                " · ".join(of_run) if subject else label,
                figure.value,
                *figure.ends(),
                interval(figure, metric or ""),
                number,
            )
            by_subject.setdefault(subject, []).append(row)
    rows = tuple(row for subject in by_subject.values() for row in subject if math.isfinite(row.value))
    if not metric or not rows:
        return None
    x = Axis(metric_words(metric), percent=metric == "error")
    return Chart(title, x, Axis(""), "Held-out text, 95 % intervals by bootstrap over users; less is better.", (), rows)


def overall_chart(runs: Runs) -> Chart | None:
    """Return the first figure over all held-out text, beside starts and references; None if runs share no metric."""
    chart = interval_chart(runs, "Over all held-out text", lambda held_out: {"": held_out.figures[held_out.metric]})
    metric = _held_out_metric(runs)
    if chart is None or metric is None:
        return None
    levels: dict[tuple[str, str], Level] = {}
    for label, facts in runs.items():
        utility = facts.utility
        start = next((at.y for at in points(facts.by_round, metric, "") if at.x == 0), None)
        reference = utility.reference if metric == utility.metric else utility.reference_bits_per_byte
        for words, value in (("start", start), (utility.reference_words.removeprefix("a "), reference)):
            if value is not None and math.isfinite(value):
                shown = interval(Measured(value, math.nan, math.nan), metric)
                levels.setdefault((words, shown), Level(f"{words} ({label}): {shown}", value))
    for twin in _twins(runs):
        value = twin.final if metric != "bits_per_byte" else twin.bits_per_byte
        if value is not None and math.isfinite(value):
            shown = interval(Measured(value, math.nan, math.nan), metric)
            levels["without privacy", twin.run] = Level(f"without privacy ({twin.run}): {shown}", value)
    several = Counter(words for words, _ in levels)
    named = [
        level if several[words] > 1 or words == "without privacy" else level._replace(label=f"{words}: {shown}")
        for (words, shown), level in levels.items()
    ]
    return replace(chart, levels=tuple(named))


def _held_out_metric(runs: Runs) -> str | None:
    metrics = {facts.held_out.metric for facts in runs.values() if facts.held_out}
    return metrics.pop() if len(metrics) == 1 else None
