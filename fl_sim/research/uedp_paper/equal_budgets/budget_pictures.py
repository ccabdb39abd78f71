"""The picture of a comparison: utility against ε of any user with any entity, with 95 % intervals.

Curves with an ε of a user alone are not in it, because no axis mixes the two.

>>> offsets(3).round(3).tolist()
[0.965, 1.0, 1.036]
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from numpy.typing import NDArray

from fl_sim.reporting.plots import GREY, styles
from fl_sim.research.uedp_paper.figure_pictures import METRIC_WORDS, show_utility
from fl_sim.research.uedp_paper.figure_records import CurveRecord, PanelRecord, TrainingRecord

_MARKERS = "osD^vP"
_STEP = 1.036
"""Factor between the positions of two methods of the same ε, so that neither hides the other."""


def offsets(curves: int) -> NDArray[np.float64]:
    """Return the factors by which the methods of one ε stand apart, float64 (curves,)."""
    return np.asarray(_STEP ** (np.arange(curves) - (curves - 1) / 2), dtype=np.float64)


def draw_budgets(record: TrainingRecord) -> Figure:
    """Return the picture of a comparison, a row per panel."""
    figure = Figure(figsize=(8.0, 5.4 * len(record.panels)), layout="constrained")
    grid: Any = figure.subplots(len(record.panels), 1, squeeze=False)
    for panel, axes in zip(record.panels, grid[:, 0], strict=True):
        _draw_panel(record, panel, axes)
    return figure


def _draw_panel(record: TrainingRecord, panel: PanelRecord, axes: Axes) -> None:
    joint = [curve for curve in panel.curves if curve.budget == "joint"]
    looks = zip(styles(), itertools.cycle(_MARKERS), strict=False)
    for curve, factor, ((colour, _), marker) in zip(joint, offsets(len(joint)), looks, strict=False):
        _draw_curve(record, axes, curve, float(factor), colour, marker)
    start = panel.curves[0].points[0].initial.mean
    axes.axhline(start, color=GREY, linestyle=":", linewidth=1.2, label=f"start: {show_utility(record.metric, start)}")
    for curve, dash in zip([c for c in panel.curves if c.budget is None], ("--", "-.", (0, (1, 3))), strict=False):
        end = curve.points[-1].utility.mean
        label = f"{curve.label}: {show_utility(record.metric, end)}"
        axes.axhline(end, color=GREY, linestyle=dash, linewidth=1.2, label=label)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(list(record.joint)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(f"ε of any user with any entity, δ = {record.delta:g}")
    axes.set_ylabel(METRIC_WORDS[record.metric])
    if record.metric == "error":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    axes.set_title(panel.title, loc="left", fontsize="medium")
    axes.grid(color="#E3E3E3", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)


def _draw_curve(
    record: TrainingRecord, axes: Axes, curve: CurveRecord, factor: float, colour: str, marker: str
) -> None:
    """Draw a method's points with their intervals; hollow where ε is that of a missed entity alone."""
    points = [(point.x, point.comparison.utility) for point in curve.points if point.x and point.comparison]
    means = np.array([utility.value for _, utility in points])
    spread = np.array([[utility.value - utility.low, utility.high - utility.value] for _, utility in points]).T
    label = f"{curve.label}{' (ε of a missed entity)' if curve.deidentified else ''}"
    axes.errorbar(
        [factor * x for x, _ in points], means, yerr=np.maximum(spread, 0), color=colour, marker=marker, capsize=3,
        markersize=6, linewidth=1.4, fillstyle="none" if curve.deidentified else "full", label=label,
    )  # fmt: skip
