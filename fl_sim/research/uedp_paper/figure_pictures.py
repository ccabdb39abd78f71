"""A figure's record as a picture: utility against claimed and proven ε, or ε against rounds.

>>> show_utility("perplexity", 1234.56), show_utility("error", 0.125)
('1,234.6', '12.5%')
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from fl_sim.formats import format_delta, format_epsilon
from fl_sim.reporting.plots import GREY, MARKERS, styles
from fl_sim.research.uedp_paper.figure_records import (
    CurveRecord,
    EpsilonPanelRecord,
    EpsilonRecord,
    PanelRecord,
    PointRecord,
    Record,
    TrainingRecord,
)
from fl_sim.research.uedp_paper.figures import PublishedNumber

METRIC_WORDS = {
    "perplexity": "held-out perplexity",
    "perplexity_per_word": "held-out perplexity per word",
    "error": "held-out error",
}
_CLAIMED, _PROVEN = "claimed", "proven"
_LOG_FROM = {"perplexity": 2.5, "perplexity_per_word": 2.5, "error": 4.0}
_WIDEST, _THINNEST = 3.4, 1.2
_LEGEND_WIDTH = 8.4  # inches, which three columns of a legend take
_PRINTED: dict[str, Any] = {"color": GREY, "marker": "D", "fillstyle": "none", "linestyle": "none", "markersize": 5}
_WIDE = 300  # an ε axis of a smaller range has ticks between the powers of ten, too


@dataclass(frozen=True)
class _Style:
    """The look of a curve: later curves are thinner and have other marks, so that one below them stays visible."""

    colour: str
    dash: str
    marker: str = "o"
    width: float = 1.6


def draw(record: Record) -> Figure | None:
    """Return the picture of a record; None for a table."""
    if isinstance(record, TrainingRecord):
        return _draw_ends(record) if record.x == "curve" else _draw_training(record)
    if isinstance(record, EpsilonRecord):
        return _draw_epsilon(record)
    return None


def show_utility(metric: str, value: float) -> str:
    """Return a utility as text."""
    return f"{value:.1%}" if metric == "error" else f"{value:,.1f}"


def show_spread(metric: str, point: PointRecord) -> str:
    """Return mean and standard deviation of a point's utility as text."""
    mean, std = point.utility.mean, point.utility.std
    if metric == "error":
        return f"{mean:.1%}" + ("" if std is None else f" ± {100 * std:.1f}")
    return f"{mean:,.1f}" + ("" if std is None else f" ± {std:,.1f}")


def proven(point: PointRecord) -> float:
    """Return the proven ε of a point: of a user and an entity (95th percentile), else of a user."""
    with_entity = point.epsilon.user_entity_p95
    return point.epsilon.user if with_entity is None else with_entity


def _draw_training(record: TrainingRecord) -> Figure:
    curves = list(dict.fromkeys(curve.name for panel in record.panels for curve in panel.curves))
    looks = dict(zip(curves, _styles(len(curves)), strict=True))
    columns = (_CLAIMED, _PROVEN) if record.x == "epsilon" else ("",)
    most = max(len(panel.curves) + len(panel.targets) for panel in record.panels)
    height = 3.4 + 0.2 * (most + 3)
    figure = Figure(figsize=(9.6, height * len(record.panels)), layout="constrained")
    parts: Any = figure.subfigures(len(record.panels), 1, squeeze=False)
    for panel, part in zip(record.panels, parts[:, 0], strict=True):
        _draw_panel(record, panel, part, looks, columns)
    return figure


def _styles(curves: int) -> list[_Style]:
    """Return a look per curve, the widest first."""
    looks = zip(range(curves), styles(), itertools.cycle(MARKERS), strict=False)
    widths = np.linspace(_WIDEST, _THINNEST, max(curves, 2))
    return [_Style(colour, dash, marker, float(widths[number])) for number, (colour, dash), marker in looks]


def _draw_ends(record: TrainingRecord) -> Figure:
    """Return rows of the curves' ends, the best on top; curves without a guarantee have a vertical line."""
    most = max(len(panel.curves) for panel in record.panels)
    figure = Figure(figsize=(9.6, (1.2 + 0.28 * most) * len(record.panels)), layout="constrained")
    grid: Any = figure.subplots(len(record.panels), 1, squeeze=False)
    for panel, axes in zip(record.panels, grid[:, 0], strict=True):
        _draw_ends_panel(record, panel, axes)
    return figure


def _draw_ends_panel(record: TrainingRecord, panel: PanelRecord, axes: Axes) -> None:
    curves = sorted(panel.curves, key=lambda curve: curve.points[-1].utility.mean, reverse=True)
    colour, _ = next(iter(styles()))
    for row, curve in enumerate(curves):
        end = curve.points[-1].utility
        if curve.points[-1].epsilon.claimed is None:
            axes.axvline(end.mean, color=GREY, linestyle="--", linewidth=1.2)
        axes.errorbar(end.mean, row, xerr=end.std or 0.0, fmt="o", color=colour, capsize=3, markersize=5)
    words = [f"{curve.label} ({_guarantee_words(curve)})" for curve in curves]
    axes.set_yticks(range(len(curves)), words, fontsize="small")
    axes.set_xlabel(METRIC_WORDS[record.metric])
    if record.metric == "error":
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    axes.set_title(panel.title, loc="left", fontsize="medium")
    _unframe(axes)


def _guarantee_words(curve: CurveRecord) -> str:
    end = curve.points[-1]
    return "no guarantee" if end.epsilon.claimed is None else f"ε {format_epsilon(proven(end))}"


def _draw_panel(
    record: TrainingRecord, panel: PanelRecord, part: SubFigure, looks: dict[str, _Style], columns: Sequence[str]
) -> None:
    axes = part.subplots(1, len(columns), sharey=True, squeeze=False)[0]
    handles = [_handle(record, curve, looks[curve.name]) for curve in panel.curves]
    printed = [number for number in record.published if number.panel == panel.name]
    for one, column in zip(axes, columns, strict=True):
        for curve in panel.curves:
            _draw_curve(record, one, curve, looks[curve.name], column)
        if column != _PROVEN and _draw_printed(one, printed, record.x):
            handles.append(
                Line2D([], [], color=GREY, marker="D", fillstyle="none", linestyle="none", label="printed in the paper")
            )
        for target in panel.targets:
            line = one.axhline(target.value, color=GREY, linestyle="-.", linewidth=1.0)
            if one is axes[0]:
                line.set_label(f"{target.words}: {show_utility(record.metric, target.value)}")
                handles.append(line)
        _finish(record, one, column)
    _set_y(record, axes[0], panel)
    axes[0].set_ylabel(METRIC_WORDS[record.metric])
    part.suptitle(panel.title, x=0.01, ha="left", fontsize="medium")
    part.legend(handles=handles, loc="outside lower center", ncols=1, frameon=False, fontsize="small")


def _handle(record: TrainingRecord, curve: CurveRecord, look: _Style) -> Line2D:
    label = f"{curve.label}: {_utility_range(record, curve)}; {_epsilon_words(curve)}"
    level = record.x == "epsilon" and curve.points[0].epsilon.claimed is None  # a horizontal line without marks
    marker, dash = ("", "--") if level else (look.marker, look.dash)
    line = Line2D([], [], color=look.colour, linewidth=look.width, marker=marker, fillstyle="none", label=label)
    line.set(linestyle=dash)
    return line


def _utility_range(record: TrainingRecord, curve: CurveRecord) -> str:
    if len(curve.points) == 1:
        return show_spread(record.metric, curve.points[0])
    means = [point.utility.mean for point in curve.points]
    return f"{show_utility(record.metric, min(means))} to {show_utility(record.metric, max(means))}"


def _epsilon_words(curve: CurveRecord) -> str:
    """Return claimed and proven ε for the legend."""
    claimed = [point.epsilon.claimed for point in curve.points]
    if all(value is None for value in claimed):
        return "no guarantee"
    words = _range([value for value in claimed if value is not None])
    unit = "user alone" if curve.points[0].epsilon.user_entity_p95 is None else "user + entity"
    return f"ε {words} claimed, {_range([proven(point) for point in curve.points])} proven ({unit})"


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return format_epsilon(low) if low == high else f"{format_epsilon(low)} to {format_epsilon(high)}"


def _draw_curve(record: TrainingRecord, axes: Axes, curve: CurveRecord, look: _Style, column: str) -> None:
    positions, means, spreads = _line(record, curve, column)
    style: dict[str, Any] = {"color": look.colour, "linestyle": look.dash, "linewidth": look.width}
    if positions is None:  # no guarantee, or none for entities: a horizontal line at its end
        axes.axhline(means[-1], **(style | {"linestyle": "--"}))
        return
    finite = np.isfinite(positions)
    x, y, deviation = positions[finite], means[finite], spreads[finite]
    axes.plot(x, y, marker=look.marker, markersize=3 + look.width, fillstyle="none", **style)
    axes.fill_between(x, y - deviation, y + deviation, color=look.colour, alpha=0.15, linewidth=0)


def _line(record: TrainingRecord, curve: CurveRecord, column: str) -> tuple[Any, Any, Any]:
    """Return a curve's x positions (None without ε of the column's kind), means and deviations."""
    trace = curve.points[0].trace
    epsilon = curve.points[0].epsilon
    none = epsilon.claimed is None or (column == _PROVEN and epsilon.user_entity_p95 is None)
    if trace is not None:
        means, spreads = np.array(trace.mean), _numbers(trace.std)
        if record.x == "rounds":
            return np.array(trace.rounds, dtype=float), means, spreads
        if none or trace.claimed is None:
            return None, means, spreads
        # ε is 0 before the first round, which a log axis cannot show
        positions = np.array(trace.claimed if column == _CLAIMED else trace.proven)
        return np.where(positions > 0, positions, np.nan), means, spreads
    means = np.array([point.utility.mean for point in curve.points])
    spreads = _numbers([point.utility.std for point in curve.points])
    if record.x == "value":
        return np.array([point.x for point in curve.points], dtype=float), means, spreads
    if none:
        return None, means, spreads
    claimed = [point.epsilon.claimed or math.nan for point in curve.points]
    return np.array(claimed if column == _CLAIMED else [proven(p) for p in curve.points]), means, spreads


def _numbers(values: Sequence[float | None]) -> Any:
    return np.array([0.0 if value is None else value for value in values])


def _draw_printed(axes: Axes, printed: Sequence[PublishedNumber], x: str) -> bool:
    """Draw the paper's own numbers; return whether there are any for this axis."""
    points = [(n.epsilon if x == "epsilon" else n.x, n.value) for n in printed]
    known = [(position, value) for position, value in points if position is not None]
    if known:
        axes.plot(
            [position for position, _ in known], [value for _, value in known],
            color=GREY, marker="D", fillstyle="none", linestyle="none", markersize=5,
        )  # fmt: skip
    return bool(known)


def _finish(record: TrainingRecord, axes: Axes, column: str) -> None:
    words = {
        _CLAIMED: "ε as claimed",
        _PROVEN: "ε proven, user + entity (95th percentile of bounds)",
        "": "training steps (rounds)" if record.x == "rounds" else record.x_words,
    }
    axes.set_xlabel(words[column])
    _unframe(axes)
    if column:
        axes.set_xscale("log", nonpositive="mask")
        low, high = axes.get_xlim()
        subdivided = high < _WIDE * low
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if subdivided else (1,), numticks=12))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
        axes.xaxis.set_minor_formatter(NullFormatter())


def _tick(value: float) -> str:
    return f"{value:g}" if value < 10_000 else f"$10^{{{math.log10(value):.0f}}}$"


def _set_y(record: TrainingRecord, axes: Axes, panel: PanelRecord) -> None:
    ends = [point.utility.mean for curve in panel.curves for point in curve.points]
    ends += [number.value for number in record.published if number.panel == panel.name]
    positive = [end for end in ends if end > 0]
    if positive and max(positive) / min(positive) > _LOG_FROM[record.metric]:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    if record.metric == "error":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))


def _unframe(axes: Axes) -> None:
    """Draw a faint grid behind the lines, and two sides of the frame."""
    axes.grid(color="#E3E3E3", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_epsilon(record: EpsilonRecord) -> Figure:
    columns = min(3, len(record.panels))
    rows = math.ceil(len(record.panels) / columns)
    figure = Figure(figsize=(max(4.2 * columns, _LEGEND_WIDTH), 4.0 * rows + 1.2), layout="constrained")
    grid: Any = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(record.panels) :]:
        axes.set_visible(False)
    names = list(dict.fromkeys(curve.name for panel in record.panels for curve in panel.curves))
    looks = dict(zip(names, _styles(len(names)), strict=True))
    labels = {curve.name: curve.label for panel in record.panels for curve in panel.curves}
    for panel, axes in zip(record.panels, grid.flat, strict=False):
        _draw_epsilon_panel(panel, axes, looks)
    for axes in grid[:, 0]:
        axes.set_ylabel(f"ε, δ = {format_delta(record.delta)}")
    handles = [
        Line2D([], [], color=look.colour, marker=look.marker, fillstyle="none", label=labels[name])
        for name, look in looks.items()
    ]
    handles += [
        Line2D([], [], color=GREY, linestyle=":", label="as published: a claim, no guarantee"),
        Line2D([], [], color=GREY, label=f"proven, user + entity in ≤ {record.entity_users} users"),
    ]
    if any(curve.printed for panel in record.panels for curve in panel.curves):
        handles.append(Line2D([], [], **_PRINTED, label="printed in the paper"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    return figure


def _draw_epsilon_panel(panel: EpsilonPanelRecord, axes: Axes, looks: dict[str, _Style]) -> None:
    alike = Counter(tuple(curve.proven_user_entity) for curve in panel.curves)
    for number, curve in enumerate(panel.curves):
        look = looks[curve.name]
        step = max(1, len(curve.rounds) // 5)
        marked: dict[str, Any] = {"color": look.colour, "linewidth": 1.6, "marker": look.marker, "fillstyle": "none"}
        marked["markevery"] = (number % step, step)  # elsewhere on each curve
        axes.plot(curve.rounds, curve.as_published, linestyle=":", **marked)
        if alike[tuple(curve.proven_user_entity)] == 1:
            axes.plot(curve.rounds, curve.proven_user_entity, **marked)
        printed = [int(number) for number in curve.printed]
        axes.plot(printed, list(curve.printed.values()), **(_PRINTED | {"color": look.colour}))
    for proven_line, curves in alike.items():
        if curves > 1:
            how_many = "all" if curves == len(panel.curves) else f"{curves} of {len(panel.curves)}"
            _draw_alike(axes, panel.curves[0].rounds, proven_line, f"proven: {how_many} alike")
    axes.set_title(f"Claimed and proven ε: {panel.title}", loc="left", fontsize="medium")
    axes.set_xlabel("training steps (rounds)")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    _unframe(axes)


def _draw_alike(axes: Axes, rounds: Sequence[int], values: Sequence[float], words: str) -> None:
    """Draw one line for several curves that coincide, and write ``words`` to it in the lower right corner."""
    axes.plot(rounds, values, color="black", linewidth=2.2)
    start = len(rounds) // 4
    axes.annotate(
        words, (rounds[start], values[start]), (0.98, 0.04), textcoords="axes fraction", ha="right", fontsize="small",
        arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.8},
    )  # fmt: skip
