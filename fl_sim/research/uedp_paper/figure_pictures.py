"""A figure's record as a picture: utility against claimed and proven ε, at equal ε, or ε against rounds.

>>> show_utility("perplexity", 1234.56), show_utility("error", 0.125)
('1,234.6', '12.5%')
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator
from numpy.typing import NDArray

from fl_sim.formats import format_delta, format_epsilon
from fl_sim.reporting.plots import GREY, Look, looks
from fl_sim.research.uedp_paper.figure_records import (
    CurveRecord,
    EpsilonPanelRecord,
    EpsilonRecord,
    PanelRecord,
    PointRecord,
    TrainingRecord,
)

METRIC_WORDS = {"perplexity": "held-out perplexity", "error": "held-out error"}
_CLAIMED, _PROVEN = "claimed", "proven"
_X_WORDS = {_CLAIMED: "ε as claimed", _PROVEN: "ε proven, user + entity (95th percentile of bounds)"}
_LOG_FROM = {"perplexity": 2.5, "error": 4.0}
_WIDE = 300  # an ε axis of a smaller range has ticks between the powers of ten, too
_FAR_WORSE = 1.5  # times the utility of the start
_BESIDE = 1.036  # the factor between two methods of the same ε, so that neither hides the other
_PRINTED: dict[str, Any] = {"color": GREY, "marker": "D", "fillstyle": "none", "linestyle": "none", "markersize": 5}

Line = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]
"""Positions, means and deviations of a curve, float64 (n,) each."""


def show_utility(metric: str, value: float) -> str:
    """Return a utility as text."""
    return f"{value:.1%}" if metric == "error" else f"{value:,.1f}"


def show_spread(metric: str, point: PointRecord) -> str:
    """Return mean and standard deviation of a point's utility as text."""
    deviation = point.utility.std
    if deviation is None:
        return show_utility(metric, point.utility.mean)
    shown = f"{100 * deviation:.1f}" if metric == "error" else f"{deviation:,.1f}"
    return f"{show_utility(metric, point.utility.mean)} ± {shown}"


def proven(point: PointRecord) -> float:
    """Return the proven ε of a point: of a user and an entity (95th percentile), else of a user."""
    with_entity = point.epsilon.user_entity_p95
    return point.epsilon.user if with_entity is None else with_entity


def tidy(axes: Axes) -> None:
    """Draw a faint grid behind the lines, and two sides of the frame."""
    axes.grid(color="#E3E3E3", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def draw_training(record: TrainingRecord) -> Figure:
    """Return the picture of a training figure: a row per panel."""
    if record.x == "curve":
        return _draw_rows(record, 0.28, _draw_ends)
    if record.x == "joint":
        return _draw_rows(record, 0.0, _draw_joint)
    names = list(dict.fromkeys(curve.name for panel in record.panels for curve in panel.curves))
    look = dict(zip(names, looks(len(names)), strict=True))
    height = 4.0 + 0.2 * max(len(panel.curves) for panel in record.panels)
    figure = Figure(figsize=(9.6, height * len(record.panels)), layout="constrained")
    parts: Any = figure.subfigures(len(record.panels), 1, squeeze=False)
    for panel, part in zip(record.panels, parts[:, 0], strict=True):
        _draw_panel(record, panel, part, look)
    return figure


def _draw_rows(record: TrainingRecord, height_of_curve: float, draw: Any) -> Figure:
    """Return a figure with one axes per panel below each other."""
    most = max(len(panel.curves) for panel in record.panels)
    height = 1.2 + height_of_curve * most if height_of_curve else 5.4
    figure = Figure(figsize=(9.6, height * len(record.panels)), layout="constrained")
    grid: Any = figure.subplots(len(record.panels), 1, squeeze=False)
    for panel, axes in zip(record.panels, grid[:, 0], strict=True):
        draw(record, panel, axes)
        axes.set_title(panel.title, loc="left", fontsize="medium")
        tidy(axes)
    return figure


def _draw_ends(record: TrainingRecord, panel: PanelRecord, axes: Axes) -> None:
    """Draw a row for the end of each curve, the best on top; a line through that of one without a guarantee."""
    curves = sorted(panel.curves, key=lambda curve: curve.points[-1].utility.mean, reverse=True)
    (look,) = looks(1)
    words = []
    for row, curve in enumerate(curves):
        end = curve.points[-1]
        is_private = end.epsilon.claimed is not None
        if not is_private:
            axes.axvline(end.utility.mean, color=GREY, linestyle="--", linewidth=1.2)
        axes.errorbar(end.utility.mean, row, xerr=end.utility.std or 0.0, fmt="o", color=look.colour, capsize=3)
        words.append(f"{curve.label} ({f'ε {format_epsilon(proven(end))}' if is_private else 'no guarantee'})")
    axes.set_yticks(range(len(curves)), words, fontsize="small")
    axes.set_xlabel(METRIC_WORDS[record.metric])
    if record.metric == "error":
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))


def _draw_joint(record: TrainingRecord, panel: PanelRecord, axes: Axes) -> None:
    """Draw utility against ε of any user with any entity, with 95 % intervals.

    Curves with an ε of a user alone are not in it, because no axis mixes the two. A curve that ends far worse
    than the start is in the legend alone, since its points would press the others together.
    """
    joint = [curve for curve in panel.curves if curve.budget == "joint"]
    start = panel.curves[0].points[0].initial.mean
    for curve, look in zip(joint, looks(len(joint)), strict=True):
        if min(point.utility.mean for point in curve.points) > _FAR_WORSE * start:
            axes.plot(
                [], [], color=look.colour, marker=look.marker, label=f"{curve.label}: {_utility_range(record, curve)}"
            )
            continue
        points = [(point.x, point.comparison.utility) for point in curve.points if point.x and point.comparison]
        ends = np.array([[u.value - u.low, u.high - u.value] for _, u in points]).T
        axes.errorbar(
            [x * _BESIDE ** (look.number - (len(joint) - 1) / 2) for x, _ in points],
            [utility.value for _, utility in points],
            yerr=np.maximum(ends, 0), color=look.colour, marker=look.marker, capsize=3, markersize=6, linewidth=1.4,
            label=curve.label,
        )  # fmt: skip
    axes.axhline(start, color=GREY, linestyle=":", linewidth=1.2, label=f"start: {show_utility(record.metric, start)}")
    for curve, dash in zip([c for c in panel.curves if c.budget is None], ("--", "-.", (0, (1, 3))), strict=False):
        end = curve.points[-1].utility.mean
        label = f"{curve.label}: {show_utility(record.metric, end)}"
        axes.axhline(end, color=GREY, linestyle=dash, linewidth=1.2, label=label)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(list(record.joint)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(f"ε of any user with any entity, δ = {record.delta:g}")
    _set_y(record, axes, [])
    axes.legend(frameon=False, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)


def _draw_panel(record: TrainingRecord, panel: PanelRecord, part: SubFigure, look: Mapping[str, Look]) -> None:
    """Draw a panel against the claimed and the proven ε side by side, or against the value of the points."""
    columns = (_CLAIMED, _PROVEN) if record.x == "epsilon" else ("",)
    axes = part.subplots(1, len(columns), sharey=True, squeeze=False)[0]
    printed = [
        (number.epsilon if record.x == "epsilon" else number.x, number.value)
        for number in record.published
        if number.panel == panel.name
    ]
    printed = [(x, y) for x, y in printed if x is not None]
    for one, column in zip(axes, columns, strict=True):
        for curve in panel.curves:
            _draw_curve(record, one, curve, look[curve.name], column)
        if printed and column != _PROVEN:
            one.plot(*zip(*printed, strict=True), label="printed in the paper", **_PRINTED)
        one.set_xlabel(_X_WORDS.get(column, record.x_words))
        tidy(one)
        if column:
            _set_epsilon_axis(one)
    ends = [point.utility.mean for curve in panel.curves for point in curve.points]
    _set_y(record, axes[0], ends + [value for _, value in printed])
    part.suptitle(panel.title, x=0.01, ha="left", fontsize="medium")
    handles, labels = axes[0].get_legend_handles_labels()
    part.legend(handles, labels, loc="outside lower center", ncols=1, frameon=False, fontsize="small")


def _draw_curve(record: TrainingRecord, axes: Axes, curve: CurveRecord, look: Look, column: str) -> None:
    label = f"{curve.label}: {_utility_range(record, curve)}; {_epsilon_words(curve)}"
    line = _line(record, curve, column)
    if line is None:  # no guarantee, or none for entities: a horizontal line at its end
        end = curve.points[-1].utility.mean
        axes.axhline(end, color=look.colour, linewidth=look.width, linestyle="--", label=label)
        return
    finite = np.isfinite(line[0])
    x, y, deviation = (values[finite] for values in line)
    axes.plot(x, y, label=label, **look.line(len(x)))
    axes.fill_between(x, y - deviation, y + deviation, color=look.colour, alpha=0.15, linewidth=0)


def _line(record: TrainingRecord, curve: CurveRecord, column: str) -> Line | None:
    """Return a curve's positions, means and deviations; None without ε of the column's kind."""
    first = curve.points[0]
    if record.x == "epsilon" and (
        first.epsilon.claimed is None or (column == _PROVEN and first.epsilon.user_entity_p95 is None)
    ):
        return None
    trace = first.trace
    if trace is not None and trace.claimed is not None:
        # ε is 0 before the first round, which a log axis cannot show
        x = np.array(trace.claimed if column == _CLAIMED else trace.proven)
        return np.where(x > 0, x, np.nan), np.array(trace.mean), np.array([std or 0.0 for std in trace.std])
    if record.x == "value":
        positions = [point.x for point in curve.points]
    else:
        positions = [point.epsilon.claimed if column == _CLAIMED else proven(point) for point in curve.points]
    means, stds = zip(*((point.utility.mean, point.utility.std or 0.0) for point in curve.points), strict=True)
    return np.array(positions, dtype=float), np.array(means), np.array(stds)


def _utility_range(record: TrainingRecord, curve: CurveRecord) -> str:
    if len(curve.points) == 1:
        return show_spread(record.metric, curve.points[0])
    means = [point.utility.mean for point in curve.points]
    return f"{show_utility(record.metric, min(means))} to {show_utility(record.metric, max(means))}"


def _epsilon_words(curve: CurveRecord) -> str:
    """Return claimed and proven ε for the legend."""
    claimed = [point.epsilon.claimed for point in curve.points if point.epsilon.claimed is not None]
    if not claimed:
        return "no guarantee"
    unit = "user alone" if curve.points[0].epsilon.user_entity_p95 is None else "user + entity"
    return f"ε {_range(claimed)} claimed, {_range([proven(point) for point in curve.points])} proven ({unit})"


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return format_epsilon(low) if low == high else f"{format_epsilon(low)} to {format_epsilon(high)}"


def _set_epsilon_axis(axes: Axes) -> None:
    axes.set_xscale("log", nonpositive="mask")
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < _WIDE * low else (1,), numticks=12))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:g}" if value < 10_000 else f"$10^{{{math.log10(value):.0f}}}$")
    )
    axes.xaxis.set_minor_formatter(NullFormatter())


def _set_y(record: TrainingRecord, axes: Axes, ends: Sequence[float]) -> None:
    """Name the y axis; a logarithmic one where the ends are far apart."""
    axes.set_ylabel(METRIC_WORDS[record.metric])
    positive = [end for end in ends if end > 0]
    if positive and max(positive) / min(positive) > _LOG_FROM[record.metric]:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    if record.metric == "error":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))


def draw_epsilon(record: EpsilonRecord) -> Figure:
    """Return the picture of an ε figure: a panel per corpus, claims dotted, what is proven in full lines."""
    columns = min(3, len(record.panels))
    rows = math.ceil(len(record.panels) / columns)
    figure = Figure(figsize=(max(4.2 * columns, 8.4), 4.0 * rows + 1.2), layout="constrained")
    labels = {curve.name: curve.label for panel in record.panels for curve in panel.curves}
    look = dict(zip(labels, looks(len(labels)), strict=True))
    for number, panel in enumerate(record.panels, start=1):
        axes = figure.add_subplot(rows, columns, number)
        _draw_epsilon_panel(panel, axes, look)
        axes.set_ylabel(f"ε, δ = {format_delta(record.delta)}")
    handles = [
        Line2D([], [], color=of.colour, marker=of.marker, fillstyle="none", label=labels[name])
        for name, of in look.items()
    ]
    handles += [
        Line2D([], [], color=GREY, linestyle=":", label="as published: a claim, no guarantee"),
        Line2D([], [], color=GREY, label=f"proven, user + entity in ≤ {record.entity_users} users"),
    ]
    if any(curve.printed for panel in record.panels for curve in panel.curves):
        handles.append(Line2D([], [], **_PRINTED, label="printed in the paper"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    return figure


def _draw_epsilon_panel(panel: EpsilonPanelRecord, axes: Axes, look: Mapping[str, Look]) -> None:
    alike = Counter(tuple(curve.proven_user_entity) for curve in panel.curves)
    for curve in panel.curves:
        style = look[curve.name].line(len(curve.rounds)) | {"linewidth": 1.6}
        axes.plot(curve.rounds, curve.as_published, **(style | {"linestyle": ":"}))
        if alike[tuple(curve.proven_user_entity)] == 1:
            axes.plot(curve.rounds, curve.proven_user_entity, **(style | {"linestyle": "-"}))
        printed = [int(number) for number in curve.printed]
        axes.plot(printed, list(curve.printed.values()), **(_PRINTED | {"color": style["color"]}))
    for values, curves in alike.items():
        if curves > 1:  # one line for the curves that coincide, with its number of them
            rounds = panel.curves[0].rounds
            axes.plot(rounds, values, color="black", linewidth=2.2)
            words = f"proven: {'all' if curves == len(panel.curves) else f'{curves} of {len(panel.curves)}'} alike"
            at = len(rounds) // 4
            axes.annotate(
                words, (rounds[at], values[at]), (0.98, 0.04), textcoords="axes fraction", ha="right", fontsize="small",
                arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.8},
            )  # fmt: skip
    axes.set_title(f"Claimed and proven ε: {panel.title}", loc="left", fontsize="medium")
    axes.set_xlabel("training steps (rounds)")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    tidy(axes)
