"""Plots of runs: ε against training steps, and utility against ε, of one run or of several overlaid.

Utility is the metric of the task (`fl_sim.storage.run_folder`): held-out perplexity or held-out error. Every figure is
that of the run's facts (:mod:`fl_sim.reporting.run_facts`); a run without a proven ε is never drawn at one, and the
plot says why instead.

Every function draws a new figure (Agg, no pyplot state), so that runs, tests and notebooks are independent. First a
run's utility by user; at the end all files of a finished run for human readers: the report as text, the model's card,
and the plots.

>>> UNITS[HEADLINE]
'any user + any entity'
>>> from itertools import islice
>>> list(islice(styles(), 2))
[('#0072B2', '-'), ('#D55E00', '-')]
>>> overlay_figure([], "epsilon")
Traceback (most recent call last):
fl_sim.storage.run_folder.ResultsError: no run folder is given; allowed: at least one
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
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from fl_sim.formats import format_delta, format_epsilon, printable
from fl_sim.reporting import model_card
from fl_sim.reporting.bootstrap import Figure as Measured
from fl_sim.reporting.held_out import PersonalFigures, metric_words
from fl_sim.reporting.report import report_text
from fl_sim.reporting.run_facts import NO_GUARANTEE, NO_GUARANTEE_WORDS, UNITS, RunFacts, read_facts
from fl_sim.storage.run_folder import DIVERGED, ResultsError, RunFolder, Utility, replace_file
from fl_sim.strategies.accounting.paper_model import AS_PUBLISHED

FloatArray = npt.NDArray[np.float64]

_COLOURS = {"start": "#666666", "run": "#0072B2", "alone": "#E69F00", "continued": "#CC79A7", "personal": "#009E73"}
_WORDS = {"start": "start", "run": "this run", "alone": "user alone", "continued": "run + user"}
_POINT = "#0072B2"


def held_out_figure(facts: RunFacts) -> Figure:
    """Draw a run's utility by user, for the corpus's owner; lower is better in every panel.

    Raises:
        ResultsError: the run has recorded nothing by user.
    """
    held_out, personal = facts.held_out, facts.personal
    if held_out is None:
        raise ResultsError(f"{facts.run}: has recorded nothing by user; allowed: a run that has ended")
    figure = Figure(figsize=(12.0 if personal else 9.6, 4.2), layout="constrained")
    axes = figure.subplots(1, 4 if personal else 3, sharey=True, width_ratios=[4, 4, 2, *([3] if personal else [])])
    _draw_deciles(axes[0], held_out.deciles, held_out.figures[held_out.metric])
    _draw_points(axes[1], held_out.by_size(), "sentences of a user")
    parts = {words.replace(" ", "\n", 1): part for words, part in held_out.by_part().items()}
    _draw_points(axes[2], parts, "entities" if parts else "no places of tokens")
    if personal:
        _draw_personal(axes[3], personal)
    for panel in axes:
        panel.grid(axis="y", color="#E3E3E3", linewidth=0.7)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel(f"held-out {metric_words(held_out.metric)}")
    figure.suptitle(
        f"Utility by user: {held_out.sentences:,} held-out sentences of {held_out.users:,} users, 95 % intervals",
        x=0.01, ha="left", fontsize="medium",
    )  # fmt: skip
    return figure


def _draw_deciles(axes: Axes, values: Sequence[float], overall: Measured) -> None:
    axes.axhspan(*overall.ends(), color=_POINT, alpha=0.15, linewidth=0)
    axes.axhline(overall.value, color=_POINT, linewidth=1, linestyle="--")
    axes.plot(10 * np.arange(1, len(values) + 1), values, color=_POINT, marker="o", markersize=4)
    axes.set_xlabel("users, % (dashed: over all text)")
    axes.set_xlim(0, 100)


def _draw_points(axes: Axes, figures: Mapping[str, Measured], label: str) -> None:
    """Draw figures side by side, with their intervals where they have one."""
    places = np.arange(len(figures))
    values = np.array([figure.value for figure in figures.values()])
    ends = np.array([figure.ends() for figure in figures.values()]).reshape(-1, 2)
    errors = np.abs(ends.T - values)
    axes.errorbar(places, values, yerr=errors, color=_POINT, fmt="o", markersize=4, capsize=3, linewidth=1.4)
    axes.set_xticks(places, list(figures), fontsize="small")
    axes.set_xlim(-0.6, max(len(figures), 1) - 0.4)
    axes.set_xlabel(label)


def _draw_personal(axes: Axes, personal: PersonalFigures) -> None:
    """Draw one line per user over the four models, and the figures over all users."""
    names = list(personal.figures)
    places = np.arange(len(names))
    words = _WORDS | {"personal": personal.trained.get("personal", "").replace("of rank ", "")}
    for values in zip(*(personal.by_user[name] for name in names), strict=True):
        axes.plot(places, values, color="#BBBBBB", linewidth=0.6, zorder=1)
    for place, name in zip(places, names, strict=True):
        figure = personal.figures[name]
        errors = [[abs(end - figure.value)] for end in figure.ends()]
        axes.errorbar(
            place, figure.value, yerr=errors, color=_COLOURS[name], fmt="o", markersize=5, capsize=3, zorder=3
        )
    axes.set_xticks(places, [words[name].replace(" ", "\n", 1) for name in names], fontsize="small")
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_xlabel(f"{personal.users:,} users, second halves")


EPSILON_FILE = "epsilon_against_steps.png"
UTILITY_FILE = "utility_against_epsilon.png"
HEADLINE, SECOND = "any", "user_entity_p95"
"""The unit that leads, and the one that replaces it where a run sets no bound on entities."""

# Okabe and Ito's palette, which colour-blind readers can tell apart, without its yellow (too pale on white).
_BLACK, _ORANGE, _SKY, _GREEN, _BLUE, _VERMILION, _PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
GREY = "#666666"
RUN_COLOURS = (_BLUE, _VERMILION, _GREEN, _PURPLE, _BLACK, _SKY, _ORANGE)  # the alike ones far from each other
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
    """A run with the label and look of its curve."""

    label: str
    look: Look
    facts: RunFacts

    @property
    def private(self) -> bool:
        """Return whether an ε of the run is proven."""
        return self.facts.guarantee

    @property
    def why_not(self) -> str:
        """Return why the run has no curve of ε."""
        return NO_GUARANTEE_WORDS if self.facts.headline.state == NO_GUARANTEE else "no ε can be trusted"

    @property
    def rounds(self) -> FloatArray:
        """Return the rounds, float64 (rounds,)."""
        return self.column("round")

    def column(self, name: str) -> FloatArray:
        """Return a column of the metrics, NaN where it was not measured; raise ResultsError if there is none."""
        if name not in self.facts.by_round:
            raise ResultsError(f"{self.label}: the metrics have no {name}")
        return np.array(self.facts.by_round[name], dtype=float)

    def epsilon(self, unit: str) -> FloatArray:
        """Return ε of ``unit`` after every round."""
        return self.column(f"epsilon_{unit}")

    def has(self, unit: str) -> bool:
        """Return whether ε of ``unit`` is finite after the last round."""
        return f"epsilon_{unit}" in self.facts.by_round and math.isfinite(self.epsilon(unit)[-1])


def epsilon_figure(facts: RunFacts) -> Figure:
    """Draw ε against training steps for every unit of one run, robust bounds dashed.

    Raises:
        ResultsError: the run has no metrics yet.
    """
    curve = _curves([facts])[0]
    figure, axes = _figure()
    units = _distinct_units(curve) if curve.private else {}
    lines = []
    order = sorted(units, key=lambda unit: -curve.epsilon(unit)[-1])  # the legend follows the lines
    for number, (unit, width) in enumerate(zip(order, _widths(len(order)), strict=True)):
        width = _LEADING if unit == HEADLINE else width
        line = _draw_epsilon(axes, curve, unit, Look(*_UNIT_STYLES[unit], width, number))
        line.set_label(f"{units[unit]}: {format_epsilon(curve.epsilon(unit)[-1])}")
        line.set_zorder(2 - line.get_linewidth() / 10)  # the wide ones below
        lines.append(line)
    if AS_PUBLISHED in curve.facts.by_round:
        lines.append(_draw_claim(axes, curve))
    finish_axes(axes, "training steps (rounds)", "ε")
    _title(axes, f"Privacy loss of {curve.label}", _delta_words([curve]))
    _legend(figure, lines, title="ε after the last round")
    _show_rounds(axes, [curve])
    if not curve.private:
        _say_no_guarantee(axes, axes.yaxis, [curve])
    return figure


def overlay_figure(runs: Sequence[RunFacts], x: str, unit: str | None = None) -> Figure:
    """Draw several runs in one plot.

    Args:
        runs: at least one.
        x: "round" draws ε against training steps; "epsilon" draws utility against ε, a point per measured round.
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


def two_panel_figure(runs: Sequence[RunFacts], unit: str | None = None) -> Figure:
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
    facts = read_facts(run)
    run.plots_dir.mkdir(exist_ok=True)
    written = [save(epsilon_figure(facts), run.plots_dir / EPSILON_FILE)]
    if facts.utility.metric in facts.by_round:
        written.append(save(overlay_figure([facts], "epsilon"), run.plots_dir / UTILITY_FILE))
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
    known = [curve for curve in private if f"epsilon_{HEADLINE}" in curve.facts.by_round]
    return HEADLINE if private and len(known) == len(private) and all(c.has(HEADLINE) for c in known) else SECOND


def _require_known(x: str, unit: str) -> None:
    if x not in ("round", "epsilon"):
        raise ResultsError(f"x is {x!r}; allowed: round, epsilon")
    if unit not in UNITS:
        raise ResultsError(f"unit is {unit!r}; allowed: {', '.join(UNITS)}")


def _curves(runs: Sequence[RunFacts]) -> list[Curve]:
    """Return one curve per run, with distinct labels and styles.

    Raises:
        ResultsError: there is no run, or one has no metrics yet.
    """
    if not runs:
        raise ResultsError("no run folder is given; allowed: at least one")
    for facts in runs:
        if facts.rounds_done is None:
            raise ResultsError(f"{facts.run}: has no rounds yet; there is nothing to plot")
    return [Curve(*parts) for parts in zip(_labels(runs), looks(len(runs)), runs, strict=True)]


def styles() -> Iterator[tuple[str, str]]:
    """Yield pairs of colour and dash without end: all colours, then the same colours with other dashes."""
    return cycle([(colour, dash) for dash in ("-", "--", "-.", ":") for colour in RUN_COLOURS])


def looks(curves: int) -> list[Look]:
    """Return a look per curve, the widest first, with another mark and, while they last, another colour for each."""
    shown = zip(styles(), cycle(MARKERS), _widths(curves), range(curves), strict=False)
    return [Look(colour, dash, marker, width, number) for (colour, dash), marker, width, number in shown]


def _widths(curves: int) -> list[float]:
    return [1.8] if curves == 1 else [float(width) for width in np.linspace(_WIDEST, _THINNEST, curves)]


def _labels(runs: Sequence[RunFacts]) -> list[str]:
    """Return a label per run, such as "uedp, z 1, seed 0"; equal labels get the name of the folder appended."""
    names = []
    for facts in runs:
        z, seed = facts.settings["noise_multiplier"], facts.settings["seed"]
        noise = [] if z is None or facts.headline.state == NO_GUARANTEE else [f"z {z:.3g}"]
        seeded = [] if seed is None else [f"seed {seed}"]
        names.append(", ".join([facts.strategy, *noise, *seeded, *(["diverged"] if facts.stopped == DIVERGED else [])]))
    counts = Counter(names)
    labels = [f"{name} ({facts.run})" if counts[name] > 1 else name for name, facts in zip(names, runs, strict=True)]
    return [plain_label(label) for label in labels]


def plain_label(label: str) -> str:
    """Return a text that matplotlib draws as it is: a dollar would begin a formula."""
    return printable(label).replace("$", r"\$")


def _figure() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    return figure, figure.subplots()


def _draw_overlay(axes: Axes, curves: Sequence[Curve], x: str, unit: str) -> dict[str, Line2D]:
    """Draw every run into ``axes``; return the entries of the legend by label."""
    if x == "round":
        handles = {curve.label: _draw_run_epsilon(axes, curve, unit) for curve in curves}
        finish_axes(axes, "training steps (rounds)", f"ε, {UNITS[unit]}")
        _show_rounds(axes, curves)
        _title(axes, "Privacy loss", _delta_words(curves))
    else:
        utility = _common_utility(curves)
        handles = {curve.label: _draw_run_utility(axes, curve, unit) for curve in curves}
        references = [curve.facts.utility.reference for curve in curves]
        for value in sorted({value for value in references if value is not None}):
            label = f"{utility.reference_words.removeprefix('a ')}: {_short(utility, value)}"
            line = axes.axhline(value, color=GREY, linestyle=":", label=label)
            handles[label] = line
        finish_axes(axes, f"ε, {UNITS[unit]}", utility.words)
        set_scale(axes.xaxis, _LOG_FROM["ε"], [curve.epsilon(unit)[-1] for curve in curves if curve.private])
        _title(axes, "Utility against privacy loss", _delta_words(curves))
    if not any(curve.private for curve in curves):
        _say_no_guarantee(axes, axes.yaxis if x == "round" else axes.xaxis, curves)
    return handles


def _draw_run_epsilon(axes: Axes, curve: Curve, unit: str) -> Line2D:
    if not curve.private:
        return Line2D([], [], linestyle="none", label=f"{curve.label}: {curve.why_not}")
    line = _draw_epsilon(axes, curve, unit, curve.look)
    line.set_label(curve.label)
    return line


def _distinct_units(curve: Curve) -> dict[str, str]:
    """Return the units of a run in words; a unit with the ε of a weaker one, or of the headline, is merged into it."""
    units: dict[str, str] = {}
    for unit, words in UNITS.items():
        weaker = unit.replace("_unbounded", "").replace("_robust", "")
        if not curve.has(unit):
            continue
        measured = unit.startswith("user_entity_")
        if (
            measured
            and HEADLINE in units
            and np.array_equal(curve.epsilon(unit), curve.epsilon(HEADLINE), equal_nan=True)
        ):
            continue
        if weaker in units and np.array_equal(curve.epsilon(unit), curve.epsilon(weaker), equal_nan=True):
            units[weaker] = words if unit == "user_unbounded" else f"{units[weaker]} (also robust)"
        else:
            units[unit] = words
    return units


def _draw_epsilon(axes: Axes, curve: Curve, unit: str, look: Look) -> Line2D:
    epsilon = curve.epsilon(unit)
    drawn = np.isfinite(epsilon)
    (line,) = axes.plot(curve.rounds[drawn], epsilon[drawn], **look.line(int(drawn.sum())))
    return line


def _draw_claim(axes: Axes, curve: Curve) -> Line2D:
    """Draw the ε that the paper of the published algorithm states, dotted and labelled as a claim."""
    claimed = curve.column(AS_PUBLISHED)
    label = f"as published, a claim and no guarantee: {format_epsilon(claimed[-1])}"
    (line,) = axes.plot(curve.rounds, claimed, color=GREY, linestyle=":", linewidth=1.4, label=label)
    return line


def _draw_run_utility(axes: Axes, curve: Curve, unit: str) -> Line2D:
    """Draw utility over ε, one point per measured round; without a guarantee, a level line at the last."""
    utility, kind = curve.column(curve.facts.utility.metric), curve.facts.utility.kind
    measured = np.isfinite(utility)  # not between two evaluations, nor once the model has diverged
    utility = utility[measured]
    if not curve.private:
        label = f"{curve.label}: {curve.why_not}"
        if curve.facts.stopped == DIVERGED or not len(utility):
            return Line2D([], [], linestyle="none", label=label)
        label += f", final {_short(kind, utility[-1])}"
        return axes.axhline(utility[-1], color=curve.look.colour, linestyle="--", label=label)
    epsilon = curve.epsilon(unit)[measured]
    drawn = np.isfinite(epsilon)
    measured_rounds = curve.look.line(int(drawn.sum())) | {"markevery": 1}
    (line,) = axes.plot(epsilon[drawn], utility[drawn], label=curve.label, **measured_rounds)
    return line


def _common_utility(curves: Sequence[Curve]) -> Utility:
    """Return the utility that all curves share; raise ResultsError if they are of different tasks."""
    columns = list(dict.fromkeys(curve.facts.utility.metric for curve in curves))
    if len(columns) > 1:
        raise ResultsError(f"the runs measure {' and '.join(columns)}; allowed in one plot: runs of one task")
    return curves[0].facts.utility.kind


def _short(utility: Utility, value: float) -> str:
    return f"{value:,.0f}" if utility.column == "perplexity" else utility.show(value)


def finish_axes(axes: Axes, x_words: str, y_words: str) -> None:
    """Set labels, a grid, and a scale on which every curve can be read."""
    axes.set_xlabel(x_words)
    axes.set_ylabel(y_words)
    axes.margins(x=0.02)
    axes.grid(color="#E3E3E3", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    drawn = [np.asarray(line.get_ydata(), dtype=float) for line in axes.lines]
    ends = [values[end] for values in drawn if len(values) for end in (0, -1)]
    set_scale(axes.yaxis, _LOG_FROM.get(y_words.partition(",")[0], math.inf), ends)
    if y_words.startswith("ε") and axes.get_yscale() == "linear" and ends:
        axes.set_ylim(bottom=0)


def set_scale(axis: Axis, log_from: float, ends: Sequence[float]) -> None:
    """Set a log scale with plain numbers if the ``ends`` of the curves differ by more than the ratio ``log_from``."""
    positive = [end for end in ends if 0 < end < math.inf]  # ε is 0 before the first round
    span = max(positive) / min(positive) if positive else 1.0
    if span <= log_from:
        return
    scale = axis.axes.set_xscale if axis is axis.axes.xaxis else axis.axes.set_yscale
    scale("log", nonpositive="mask")  # a zero is left out, not drawn at the floor
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if span > 20 else (1, 2, 3, 5, 7)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axis.set_minor_formatter(NullFormatter())


def _show_rounds(axes: Axes, curves: Sequence[Curve]) -> None:
    """Set the ticks to whole rounds, from 0 to the last round of the longest run."""
    last = max(int(curve.rounds[-1]) for curve in curves)
    axes.set_xlim(0, 1.02 * max(last, 1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def _title(axes: Axes, words: str, delta: str) -> None:
    axes.set_title(f"{words}{delta}", loc="left", fontsize="medium")


def _delta_words(curves: Sequence[Curve]) -> str:
    """Return δ of the plot in words; runs with different δ are not comparable."""
    deltas = sorted({c.facts.delta for c in curves if c.private and c.facts.delta is not None})
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


def _say_no_guarantee(axes: Axes, epsilon_axis: Axis, curves: Sequence[Curve]) -> None:
    """Write why there is no curve in place of the curves, and remove the ticks of the axis of ε."""
    epsilon_axis.set_ticks([])
    axes.text(
        0.5, 0.5, " or ".join(dict.fromkeys(curve.why_not for curve in curves)), transform=axes.transAxes, ha="center",
        va="center", fontsize="x-large", backgroundcolor="white",
    )  # fmt: skip


def present(run: RunFolder) -> None:
    """Write summary.txt, the model's card and the plots of ``run`` anew; no plots of an interrupted run."""
    facts = read_facts(run)
    replace_file(run.summary_file, report_text(facts).encode())
    if run.model_dir.is_dir():
        model_card.write_card(run, facts)
    if run.finished:
        write_run_plots(run)
