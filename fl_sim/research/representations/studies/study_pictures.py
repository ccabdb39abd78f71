"""Pictures of a reproduced table: measured figures with their 95 % intervals, published points beside them.

>>> ours = {"mean": 25.0, "half_width": 1.0}
>>> curve = Curve("robust", x=(1.0, 4.0), measured=(ours, ours), published=(None, (66.0, 0.0)))
>>> figure = draw_panels([Panel("AG News, k = 32", (curve,))], x="ε", y="accuracy, percent")
>>> [axes.get_title(loc="left") for axes in figure.axes]
['AG News, k = 32']
>>> rows = [{"system": name, "ε": epsilon, "accuracy": ours} for name, epsilon in (("noise", 4.0), ("none", math.inf))]
>>> [(curve.label, curve.x) for curve in curves_of(rows, "system", "ε", "accuracy")]
[('noise', (4.0,)), ('none', ())]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_sim.formats import format_epsilon

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fl_sim.reporting.plots import Look

_IN_ONE_ROW = 3
_COLUMNS = 2
_DPI = 110
_SIDE_BY_SIDE, _SHARE_BESIDE = 1.03, 0.006
"""Between neighbouring curves, so that equal figures hide no bar: a factor on a log axis, a share of a linear axis."""


@dataclass(frozen=True)
class Picture:
    """A picture of a table: ``RECORD-NAME.png``, and what it shows, for people who cannot see it."""

    name: str
    words: str
    figure: Figure


def picture_file(record: Path, picture: Picture) -> Path:
    """Return the file of a picture beside its record."""
    return record.with_name(f"{record.stem}-{picture.name}.png")


def save_pictures(pictures: Iterable[Picture], record: Path) -> list[Path]:
    """Write pictures beside their record; return the files."""
    from fl_sim.reporting import plots

    return [plots.save(picture.figure, picture_file(record, picture), _DPI) for picture in pictures]


@dataclass(frozen=True)
class Curve:
    """Figures of one system over a variable.

    Attributes:
        x: the variable; empty draws a horizontal line, for a system that the variable does not change.
        measured: the figures (``agreement.Estimate``: mean and half_width), one per x; one for a horizontal line.
        published: mean and half width of each, None where none is published.
    """

    label: str
    x: tuple[float, ...]
    measured: tuple[Mapping[str, Any], ...]
    published: tuple[tuple[float, float] | None, ...] = ()


@dataclass(frozen=True)
class Panel:
    """Curves that share their axes; ``x``, ``y`` and ``log`` where they are not those of the whole picture."""

    title: str
    curves: tuple[Curve, ...]
    x: str | None = None
    y: str | None = None
    log: bool | None = None


def curves_of(
    rows: Iterable[Mapping[str, Any]], label: str, x: str, figure: str, published: str | None = None
) -> tuple[Curve, ...]:
    """Return a curve per value of the entry ``label``, sorted by the entry ``x``.

    It is a horizontal line where ``x`` is None or infinite. ``figure`` is the entry of the figure over the seeds, an
    ``agreement.Estimate``, ``published`` that of the published figure, which has no deviation.
    """
    curves: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        curves.setdefault(row[label], []).append(row)
    return tuple(_curve_of(name, of_curve, x, figure, published) for name, of_curve in curves.items())


def _curve_of(name: str, rows: Sequence[Mapping[str, Any]], x: str, figure: str, published: str | None) -> Curve:
    is_level = rows[0][x] is None or math.isinf(rows[0][x])
    rows = rows if is_level else sorted(rows, key=lambda row: row[x])
    points = [None if published is None or row[published] is None else (row[published], 0.0) for row in rows]
    return Curve(
        name, () if is_level else tuple(row[x] for row in rows), tuple(row[figure] for row in rows), tuple(points)
    )


def draw_panels(panels: Sequence[Panel], x: str, y: str, *, log: bool = True) -> Figure:
    """Return a figure of panels with one legend; hollow marks are measured, full ones published.

    Up to three panels stand in one row, more in rows of two. With ``log`` the variable is ε, on a logarithmic axis with
    labels rounded up.
    """
    from matplotlib.figure import Figure

    from fl_sim.reporting.plots import looks

    labels = list(dict.fromkeys(curve.label for panel in panels for curve in panel.curves))
    look = {labels[of.number]: of for of in looks(len(labels))}
    columns = len(panels) if len(panels) <= _IN_ONE_ROW else _COLUMNS
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(1 + 4.4 * columns, 0.9 + 3.2 * rows), layout="constrained")
    for number, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, number)
        values = sorted({value for curve in panel.curves for value in curve.x})
        is_log = log if panel.log is None else panel.log
        beside = None if is_log or not values else _SHARE_BESIDE * (values[-1] - values[0])
        for curve in panel.curves:
            _draw_curve(axes, curve, look[curve.label], len(labels), beside)
        axes.set_title(panel.title, loc="left", fontsize="medium")
        axes.set_xlabel(panel.x or x)
        axes.set_ylabel(panel.y or y)
        if values:
            _set_scale(axes, values, log=is_log)
    entries: dict[str, Any] = {}
    for axes in figure.axes:
        entries |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=2 * columns, fontsize="small")
    return figure


def _draw_curve(axes: Axes, curve: Curve, look: Look, curves: int, beside: float | None) -> None:
    """Draw a curve next to the others; ``beside`` is the step to the next on a linear axis, None on a log axis."""
    means = [one["mean"] for one in curve.measured]
    if not curve.x:
        axes.axhline(means[0], color=look.colour, linestyle="--", linewidth=1, label=curve.label)
        for mean, _ in filter(None, curve.published):
            axes.axhline(mean, color=look.colour, linestyle=":", linewidth=1, label=f"{curve.label}, published")
        return
    shift = look.number - (curves - 1) / 2
    x = [value * _SIDE_BY_SIDE**shift if beside is None else value + shift * beside for value in curve.x]
    style: dict[str, Any] = {"color": look.colour, "marker": look.marker, "linewidth": 1, "capsize": 2}
    bars = [one["half_width"] for one in curve.measured]
    axes.errorbar(x, means, bars, fillstyle="none", label=curve.label, **style)
    points = [(at, *value) for at, value in zip(x, curve.published, strict=False) if value is not None]
    if points:
        at, published, widths = zip(*points, strict=True)
        name = f"{curve.label}, published"
        axes.errorbar(at, published, widths, linestyle="none", markersize=4, label=name, **style)


def _set_scale(axes: Axes, values: Sequence[float], *, log: bool) -> None:
    """Name the curves' numbers on the x axis; on a log axis they are ε, of which those are named that do not touch."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    if not log:
        axes.xaxis.set_major_locator(FixedLocator(values))
        axes.xaxis.set_major_formatter("{x:g}")
        return
    axes.set_xscale("log")
    low, high = values[0] / 1.5, values[-1] * 1.5
    axes.set_xlim(low, high)
    axes.xaxis.set_minor_locator(NullLocator())
    named = [values[0]]
    for value in values[1:]:
        if value >= named[-1] * (high / low) ** 0.1:
            named.append(value)
    axes.xaxis.set_major_locator(FixedLocator(named))
    axes.xaxis.set_major_formatter(FixedFormatter([format_epsilon(value) for value in named]))
