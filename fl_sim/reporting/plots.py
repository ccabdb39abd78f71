"""Plots of runs: ε against training steps, and utility against ε, of one run or of several overlaid.

Utility is the metric of the task (`fl_sim.storage.run_folder`): held-out perplexity or held-out error.

Every function draws a new figure (Agg, no pyplot state), so that runs, tests and notebooks are independent. A run
without a guarantee is never drawn at a finite ε; the plot says "no guarantee (ε = ∞)" instead.

First a run's utility by user: deciles, users by size, entity tokens, and the run beside personal models. At the end
all files of a finished run for human readers: the report as text, the model's card, and the plots.

Plots by user: They show figures of held-out users' text, without noise, so they are for the corpus's owner, as all
held-out metrics.

>>> from pathlib import Path
>>> held_out_figure(RunFolder(Path("runs/first"), config={}, environment={}))
Traceback (most recent call last):
fl_sim.storage.run_folder.ResultsError: runs/first: has recorded nothing by user; allowed: a run that has ended

>>> UNITS[HEADLINE]
'any user + any entity'
>>> from itertools import islice
>>> list(islice(styles(), 2))
[('#0072B2', '-'), ('#D55E00', '-')]
>>> overlay_figure([], "epsilon")
Traceback (most recent call last):
fl_sim.storage.run_folder.ResultsError: no run folder is given; allowed: at least one

>>> run = RunFolder(Path("runs/uedp-seed0"), config={}, environment={})
>>> run.summary_file.name, run.plots_dir.name
('summary.txt', 'plots')
"""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from fl_sim.formats import format_delta, format_epsilon, printable
from fl_sim.reporting import model_card, report
from fl_sim.reporting.report import (
    NO_GUARANTEE,
    PARTS,
    has_guarantee,
    mechanism_of,
    metric_words,
    size_words,
    strategy_of,
)
from fl_sim.storage.run_folder import ResultsError, RunFolder, Utility, replace_file, utility_of
from fl_sim.strategies.accounting.paper_model import AS_PUBLISHED
from fl_sim.strategies.mechanism import Mechanism

_COLOURS = {"start": "#666666", "run": "#0072B2", "alone": "#E69F00", "continued": "#CC79A7", "personal": "#009E73"}
_WORDS = {"start": "start", "run": "this run", "alone": "user alone", "continued": "run + user"}
_POINT = "#0072B2"


def held_out_figure(run: RunFolder) -> Figure:
    """Draw a run's utility by user; lower is better in every panel.

    Raises:
        ResultsError: the run has recorded nothing by user.
    """
    facts, personal = (run.result or {}).get("held_out"), run.personal
    if not facts:
        raise ResultsError(f"{run.path}: has recorded nothing by user; allowed: a run that has ended")
    metric = facts["deciles"]["metric"]
    figure = Figure(figsize=(12.0 if personal else 9.6, 4.2), layout="constrained")
    axes = figure.subplots(1, 4 if personal else 3, sharey=True, width_ratios=[4, 4, 2, *([3] if personal else [])])
    _draw_deciles(axes[0], facts["deciles"]["values"], facts["figures"][metric])
    sizes = {size_words(row): row[metric] for row in facts["by_sentences"]}
    _draw_points(axes[1], sizes, "sentences of a user")
    parts = {PARTS[name].replace(" ", "\n", 1): row[metric] for name, row in facts["by_mention"].items()}
    _draw_points(axes[2], parts, "entities" if parts else "no places of tokens")
    if personal:
        _draw_personal(axes[3], personal)
    for panel in axes:
        panel.grid(axis="y", color="#E3E3E3", linewidth=0.7)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel(f"held-out {metric_words(metric)}")
    figure.suptitle(
        f"Utility by user: {facts['sentences']:,} held-out sentences of {facts['users']:,} users, 95 % intervals",
        x=0.01, ha="left", fontsize="medium",
    )  # fmt: skip
    return figure


def _draw_deciles(axes: Axes, values: Sequence[float], overall: Mapping[str, float]) -> None:
    axes.axhspan(*_ends(overall), color=_POINT, alpha=0.15, linewidth=0)
    axes.axhline(overall["value"], color=_POINT, linewidth=1, linestyle="--")
    axes.plot(10 * np.arange(1, len(values) + 1), values, color=_POINT, marker="o", markersize=4)
    axes.set_xlabel("users, % (dashed: over all text)")
    axes.set_xlim(0, 100)


def _draw_points(axes: Axes, figures: Mapping[str, Mapping[str, float]], label: str) -> None:
    """Draw figures side by side, with their intervals where they have one."""
    places = np.arange(len(figures))
    values = np.array([figure["value"] for figure in figures.values()])
    ends = np.array([_ends(figure) for figure in figures.values()]).reshape(-1, 2)
    errors = np.abs(ends.T - values)
    axes.errorbar(places, values, yerr=errors, color=_POINT, fmt="o", markersize=4, capsize=3, linewidth=1.4)
    axes.set_xticks(places, list(figures), fontsize="small")
    axes.set_xlim(-0.6, max(len(figures), 1) - 0.4)
    axes.set_xlabel(label)


def _draw_personal(axes: Axes, personal: Mapping[str, Any]) -> None:
    """Draw one line per user over the four models, and the figures over all users."""
    names = list(personal["figures"])
    places = np.arange(len(names))
    words = _WORDS | {"personal": personal["trained"].get("personal", "").replace("of rank ", "")}
    for values in zip(*(personal["by_user"][name] for name in names), strict=True):
        axes.plot(places, values, color="#BBBBBB", linewidth=0.6, zorder=1)
    for place, name in zip(places, names, strict=True):
        figure = personal["figures"][name]
        errors = [[abs(end - figure["value"])] for end in _ends(figure)]
        axes.errorbar(
            place, figure["value"], yerr=errors, color=_COLOURS[name], fmt="o", markersize=5, capsize=3, zorder=3
        )
    axes.set_xticks(places, [words[name].replace(" ", "\n", 1) for name in names], fontsize="small")
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_xlabel(f"{personal['users']:,} users, second halves")


def _ends(figure: Mapping[str, float]) -> tuple[float, float]:
    """Return the ends of an interval; the figure itself where there is none."""
    value = figure["value"]
    low, high = (value if math.isnan(figure[end]) else figure[end] for end in ("low", "high"))
    return low, high


EPSILON_FILE = "epsilon_against_steps.png"
UTILITY_FILE = "utility_against_epsilon.png"
HEADLINE, SECOND = "any", "user_entity_p95"
"""The unit that leads, and the one that replaces it where a run sets no bound on entities."""

UNITS = {
    "any": "any user + any entity",
    "any_robust": "any user + any entity, with missed mentions",
    "stated": "any user + an entity within the stated bound",
    "stated_robust": "any user + an entity within the stated bound, with missed mentions",
    "user": "user",
    "user_unbounded": "user, any number of sentences",
    "user_entity_median": "user + entity, median contributions",
    "user_entity_p95": "user + entity, p95 contributions",
    "user_entity_max": "user + entity, max. contributions",
    "user_entity_robust_median": "user + entity, median contributions, robust",
    "user_entity_robust_p95": "user + entity, p95 contributions, robust",
    "user_entity_robust_max": "user + entity, max. contributions, robust",
}
"""The unit of privacy of the metric ``epsilon_<unit>``, in words."""

# Okabe and Ito's palette, which colour-blind readers can tell apart, without its yellow (too pale on white).
_BLACK, _ORANGE, _SKY, _GREEN, _BLUE, _VERMILION, _PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
GREY = "#666666"
_RUN_COLOURS = (_BLUE, _VERMILION, _GREEN, _PURPLE, _BLACK, _SKY, _ORANGE)  # the alike ones far from each other
MARKERS = "os^vDPX*"
"""A mark per curve besides its colour, for readers and printers without colours."""

_LEADING, _WIDEST, _THINNEST = 3.6, 2.6, 1.2
_MARKS = 8  # on a curve, at most, so that its dashes stay visible
_UNIT_STYLES = {
    "any": (_PURPLE, "-", "o"),
    "any_robust": (_PURPLE, "--", "o"),
    "stated": (_PURPLE, "-", "D"),
    "stated_robust": (_PURPLE, "--", "D"),
    "user": (_BLACK, "-", "s"),
    "user_unbounded": (_BLACK, ":", "s"),
    "user_entity_median": (_GREEN, "-", "^"),
    "user_entity_p95": (_BLUE, "-", "v"),
    "user_entity_max": (_VERMILION, "-", "P"),
    "user_entity_robust_median": (_GREEN, "--", "^"),
    "user_entity_robust_p95": (_BLUE, "--", "v"),
    "user_entity_robust_max": (_VERMILION, "--", "P"),
}
_LOG_FROM = {"ε": 10.0, "held-out perplexity": 2.5, "held-out error": math.inf}
"""Curves whose ends span more than this ratio get a log axis: a linear axis would flatten the small ones."""


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


@dataclass(frozen=True)
class Curve:
    """A run with the label, look and metrics of its curve."""

    label: str
    mechanism: Mechanism | None
    look: Look
    delta: float | None
    reference: float | None
    utility: Utility
    metrics: pd.DataFrame
    diverged: bool

    @property
    def private(self) -> bool:
        """Return whether the run guarantees anything."""
        last = {str(name): value for name, value in self.metrics.iloc[-1].items()}
        return has_guarantee(self.mechanism, last)

    def epsilon(self, unit: str) -> pd.Series:
        """Return ε of ``unit`` after every round; raise ResultsError if the run has no such metric."""
        column = f"epsilon_{unit}"
        if column not in self.metrics:
            raise ResultsError(f"{self.label}: the metrics have no {column}")
        return self.metrics[column].astype(float)


def epsilon_figure(run: RunFolder) -> Figure:
    """Draw ε against training steps for every unit of one run, robust bounds dashed.

    Raises:
        ResultsError: the run has no metrics yet.
    """
    curve = _curves([run])[0]
    figure, axes = _figure()
    units = _distinct_units(curve) if curve.private else {}
    lines = []
    order = sorted(units, key=lambda unit: -curve.epsilon(unit).iloc[-1])  # the legend follows the lines
    for number, (unit, width) in enumerate(zip(order, _widths(len(order)), strict=True)):
        width = _LEADING if unit == HEADLINE else width
        line = _draw_epsilon(axes, curve, unit, Look(*_UNIT_STYLES[unit], width, number))
        line.set_label(f"{units[unit]}: {format_epsilon(curve.epsilon(unit).iloc[-1])}")
        line.set_zorder(2 - line.get_linewidth() / 10)  # the wide ones below
        lines.append(line)
    if curve.private and AS_PUBLISHED in curve.metrics:
        lines.append(_draw_claim(axes, curve))
    _finish_axes(axes, "training steps (rounds)", "ε")
    _title(axes, f"Privacy loss of {curve.label}", _delta_words([curve]))
    _legend(figure, lines, title="ε after the last round")
    _show_rounds(axes, [curve])
    if not curve.private:
        _say_no_guarantee(axes, axes.yaxis)
    return figure


def utility_figure(run: RunFolder, unit: str | None = None) -> Figure:
    """Draw held-out perplexity or error of one run against ε of ``unit``, one point per measured round."""
    return overlay_figure([run], "epsilon", unit)


def overlay_figure(runs: Sequence[RunFolder], x: str, unit: str | None = None) -> Figure:
    """Draw several runs in one plot.

    Args:
        runs: at least one.
        x: "round" draws ε against training steps; "epsilon" draws utility against ε.
        unit: unit of privacy of ε, a key of :data:`UNITS`; None for the one of the headline, where all runs have it.

    Raises:
        ResultsError: ``x`` or ``unit`` is unknown, or a run lacks metrics.
    """
    curves = _curves(runs)
    unit = unit or _default_unit(curves)
    _require_known(x, unit)
    figure, axes = _figure()
    _legend(figure, _draw_overlay(axes, curves, x, unit).values())
    return figure


def two_panel_figure(runs: Sequence[RunFolder], unit: str | None = None) -> Figure:
    """Draw both overlays side by side, with one legend."""
    curves = _curves(runs)
    unit = unit or _default_unit(curves)
    _require_known("round", unit)
    figure = Figure(figsize=(9.6, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    handles = _draw_overlay(left, curves, "round", unit) | _draw_overlay(right, curves, "epsilon", unit)
    _legend(figure, handles.values())
    return figure


def write_run_plots(run: RunFolder) -> list[Path]:
    """Write the two plots of a run into its folder and return their paths; none for a run without metrics."""
    if run.last_round is None:
        return []
    run.plots_dir.mkdir(exist_ok=True)
    written = [save(epsilon_figure(run), run.plots_dir / EPSILON_FILE)]
    if {utility_of(run).column, f"epsilon_{SECOND}"} <= set(run.metrics().columns):
        written.append(save(utility_figure(run), run.plots_dir / UTILITY_FILE))
    return written


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


def _default_unit(curves: Sequence[Curve]) -> str:
    """Return the headline unit if it has a finite ε in every run with a guarantee, else the second."""
    private = [curve for curve in curves if curve.private]
    finite = [
        math.isfinite(curve.epsilon(HEADLINE).iloc[-1]) for curve in private if f"epsilon_{HEADLINE}" in curve.metrics
    ]
    return HEADLINE if private and len(finite) == len(private) and all(finite) else SECOND


def _require_known(x: str, unit: str) -> None:
    if x not in ("round", "epsilon"):
        raise ResultsError(f"x is {x!r}; allowed: round, epsilon")
    if unit not in UNITS:
        raise ResultsError(f"unit is {unit!r}; allowed: {', '.join(UNITS)}")


def _curves(runs: Sequence[RunFolder]) -> list[Curve]:
    """Return one curve per run, with distinct labels and styles.

    Raises:
        ResultsError: there is no run, or one has no metrics yet.
    """
    if not runs:
        raise ResultsError("no run folder is given; allowed: at least one")
    labels = _labels(runs)
    curves = []
    for run, label, look in zip(runs, labels, looks(len(runs)), strict=True):
        metrics = run.metrics()
        if metrics.empty:
            raise ResultsError(f"{run.metrics_file}: has no rounds yet; there is nothing to plot")
        utility = utility_of(run)
        reference = (run.result or {}).get(utility.reference)
        delta = run.setting("delta")
        mechanism = mechanism_of(run)
        curves.append(Curve(label, mechanism, look, delta, reference, utility, metrics, run.diverged))
    return curves


def styles() -> Iterator[tuple[str, str]]:
    """Yield pairs of colour and dash without end: all colours, then the same colours with other dashes."""
    return cycle([(colour, dash) for dash in ("-", "--", "-.", ":") for colour in _RUN_COLOURS])


def looks(curves: int) -> list[Look]:
    """Return a look per curve, the widest first, with another mark and, while they last, another colour for each."""
    shown = zip(styles(), cycle(MARKERS), _widths(curves), range(curves), strict=False)
    return [Look(colour, dash, marker, width, number) for (colour, dash), marker, width, number in shown]


def _widths(curves: int) -> list[float]:
    return [1.8] if curves == 1 else [float(width) for width in np.linspace(_WIDEST, _THINNEST, curves)]


def _labels(runs: Sequence[RunFolder]) -> list[str]:
    """Return a label per run, such as "uedp, z 1, seed 0"; equal labels get the name of the folder appended."""
    names = []
    for run in runs:
        strategy, z, seed = strategy_of(run), run.setting("noise_multiplier"), run.setting("seed")
        parts = [strategy]
        mechanism = mechanism_of(run)
        if z is not None and (mechanism is None or mechanism.noise_std(mechanism.clip_norm) > 0):
            parts.append(f"z {z:.3g}")
        if seed is not None:
            parts.append(f"seed {seed}")
        if run.diverged:
            parts.append("diverged")
        names.append(", ".join(parts))
    counts = Counter(names)
    labels = [f"{name} ({run.path.name})" if counts[name] > 1 else name for name, run in zip(names, runs, strict=True)]
    return [printable(label).replace("$", r"\$") for label in labels]  # a dollar would begin a formula


def _figure() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    return figure, figure.subplots()


def _draw_overlay(axes: Axes, curves: Sequence[Curve], x: str, unit: str) -> dict[str, Line2D]:
    """Draw every run into ``axes``; return the entries of the legend by label."""
    if x == "round":
        handles = {curve.label: _draw_run_epsilon(axes, curve, unit) for curve in curves}
        _finish_axes(axes, "training steps (rounds)", f"ε, {UNITS[unit]}")
        _show_rounds(axes, curves)
        _title(axes, "Privacy loss", _delta_words(curves))
    else:
        utility = _common_utility(curves)
        handles = {curve.label: _draw_run_utility(axes, curve, unit) for curve in curves}
        for value in sorted({curve.reference for curve in curves if curve.reference is not None}):
            label = f"{utility.reference_words.removeprefix('a ')}: {_short(utility, value)}"
            line = axes.axhline(value, color=GREY, linestyle=":", label=label)
            handles[label] = line
        _finish_axes(axes, f"ε, {UNITS[unit]}", utility.words)
        _set_scale(axes.xaxis, "ε", [curve.epsilon(unit).iloc[-1] for curve in curves if curve.private])
        _title(axes, "Utility against privacy loss", _delta_words(curves))
    if not any(curve.private for curve in curves):
        _say_no_guarantee(axes, axes.yaxis if x == "round" else axes.xaxis)
    return handles


def _draw_run_epsilon(axes: Axes, curve: Curve, unit: str) -> Line2D:
    if not curve.private:
        return Line2D([], [], linestyle="none", label=f"{curve.label}: {NO_GUARANTEE}")
    line = _draw_epsilon(axes, curve, unit, curve.look)
    line.set_label(curve.label)
    return line


def _distinct_units(curve: Curve) -> dict[str, str]:
    """Return the units of a run in words; a unit with the ε of a weaker one, or of the headline, is merged into it."""
    units: dict[str, str] = {}
    for unit, words in UNITS.items():
        weaker = unit.replace("_unbounded", "").replace("_robust", "")
        if f"epsilon_{unit}" not in curve.metrics or not math.isfinite(curve.epsilon(unit).iloc[-1]):
            continue
        measured = unit.startswith("user_entity_")
        if measured and HEADLINE in units and curve.epsilon(unit).equals(curve.epsilon(HEADLINE)):
            continue
        if weaker in units and curve.epsilon(unit).equals(curve.epsilon(weaker)):
            units[weaker] = words if unit == "user_unbounded" else f"{units[weaker]} (also robust)"
        else:
            units[unit] = words
    return units


def _draw_epsilon(axes: Axes, curve: Curve, unit: str, look: Look) -> Line2D:
    epsilon = curve.epsilon(unit)
    drawn = np.isfinite(epsilon)
    (line,) = axes.plot(curve.metrics["round"][drawn], epsilon[drawn], **look.line(int(drawn.sum())))
    return line


def _draw_claim(axes: Axes, curve: Curve) -> Line2D:
    """Draw the ε that the paper of the published algorithm states, dotted and labelled as a claim."""
    claimed = curve.metrics[AS_PUBLISHED].astype(float)
    label = f"as published, a claim and no guarantee: {format_epsilon(claimed.iloc[-1])}"
    (line,) = axes.plot(curve.metrics["round"], claimed, color=GREY, linestyle=":", linewidth=1.4, label=label)
    return line


def _draw_run_utility(axes: Axes, curve: Curve, unit: str) -> Line2D:
    """Draw utility over ε, one point per measured round; without a guarantee, a level line at the last."""
    column = curve.utility.column
    if column not in curve.metrics:
        raise ResultsError(f"{curve.label}: the metrics have no {column}")
    utility = curve.metrics[column].astype(float)
    measured = np.isfinite(utility)  # not between two evaluations, nor once the model has diverged
    utility = utility[measured]
    if not curve.private:
        label = f"{curve.label}: {NO_GUARANTEE}"
        if curve.diverged or utility.empty:
            return Line2D([], [], linestyle="none", label=label)
        final = utility.iloc[-1]
        label += f", final {_short(curve.utility, final)}"
        return axes.axhline(final, color=curve.look.colour, linestyle="--", label=label)
    epsilon = curve.epsilon(unit)[measured]
    drawn = np.isfinite(epsilon)
    measured_rounds = curve.look.line(int(drawn.sum())) | {"markevery": 1}
    (line,) = axes.plot(epsilon[drawn], utility[drawn], label=curve.label, **measured_rounds)
    return line


def _common_utility(curves: Sequence[Curve]) -> Utility:
    """Return the utility that all curves share; raise ResultsError if they are of different tasks."""
    columns = list(dict.fromkeys(curve.utility.column for curve in curves))
    if len(columns) > 1:
        raise ResultsError(f"the runs measure {' and '.join(columns)}; allowed in one plot: runs of one task")
    return curves[0].utility


def _short(utility: Utility, value: float) -> str:
    return f"{value:,.0f}" if utility.column == "perplexity" else utility.show(value)


def _finish_axes(axes: Axes, x_words: str, y_words: str) -> None:
    """Set labels, a grid, and a scale on which every curve can be read."""
    axes.set_xlabel(x_words)
    axes.set_ylabel(y_words)
    axes.margins(x=0.02)
    axes.grid(color="#E3E3E3", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    drawn = [np.asarray(line.get_ydata(), dtype=float) for line in axes.lines]
    ends = [values[end] for values in drawn if len(values) for end in (0, -1)]
    _set_scale(axes.yaxis, y_words.partition(",")[0], ends)
    if y_words.startswith("ε") and axes.get_yscale() == "linear" and ends:
        axes.set_ylim(bottom=0)


def _set_scale(axis: Axis, quantity: str, ends: Sequence[float]) -> None:
    """Set a log scale with plain numbers if the ``ends`` of the curves are far apart."""
    positive = [end for end in ends if 0 < end < math.inf]  # ε is 0 before the first round
    span = max(positive) / min(positive) if positive else 1.0
    if span <= _LOG_FROM[quantity]:
        return
    scale = axis.axes.set_xscale if axis is axis.axes.xaxis else axis.axes.set_yscale
    scale("log", nonpositive="mask")  # a zero is left out, not drawn at the floor
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if span > 20 else (1, 2, 3, 5, 7)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axis.set_minor_formatter(NullFormatter())


def _show_rounds(axes: Axes, curves: Sequence[Curve]) -> None:
    """Set the ticks to whole rounds, from 0 to the last round of the longest run."""
    last = max(int(curve.metrics["round"].iloc[-1]) for curve in curves)
    axes.set_xlim(0, 1.02 * max(last, 1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def _title(axes: Axes, words: str, delta: str) -> None:
    axes.set_title(f"{words}{delta}", loc="left", fontsize="medium")


def _delta_words(curves: Sequence[Curve]) -> str:
    """Return δ of the plot in words; runs with different δ are not comparable."""
    deltas = sorted({curve.delta for curve in curves if curve.private and curve.delta is not None})
    if not deltas:
        return ""
    words = " and ".join(format_delta(delta) for delta in deltas)
    return f", δ = {words}" + (" (not comparable)" if len(deltas) > 1 else "")


def _legend(figure: Figure, handles: Iterable[Line2D], title: str | None = None) -> None:
    """Add a legend below the axes, where it hides no curve."""
    entries = list(handles)
    if entries:
        legend = figure.legend(
            handles=entries, title=title, loc="outside lower center", ncols=2, frameon=False, fontsize="small"
        )
        legend.get_title().set_fontsize("small")


def _say_no_guarantee(axes: Axes, epsilon_axis: Axis) -> None:
    """Write "no guarantee" in place of the curves, and remove the ticks of the axis of ε."""
    epsilon_axis.set_ticks([])
    axes.text(
        0.5, 0.5, NO_GUARANTEE, transform=axes.transAxes, ha="center", va="center", fontsize="x-large",
        backgroundcolor="white",
    )  # fmt: skip


def present(run: RunFolder) -> None:
    """Write summary.txt, the model's card and the plots of ``run`` anew; no plots of an interrupted run."""
    replace_file(run.summary_file, report.summary(run).encode())
    if run.model_dir.is_dir():
        model_card.write_card(run)
    if run.finished:
        write_run_plots(run)
