"""What an attacked comparison decides: its picture, and a short page with every method on every corpus.

>>> _bits((6.1, 3.1, 8.0), 3.2), _bits((1.4, 0.4, 3.1), 3.0), _bits(None, 3.0)
('6.1', '1.4', '–')
>>> _bits((6.1, 3.3, 8.0), 3.2)
'**6.1**'
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fl_sim.formats import format_delta, format_epsilon
from fl_sim.reporting.plots import GREY
from fl_sim.research.rivals.noise_by_sensitivity import AUDITED, audit
from fl_sim.research.study_files import markdown_table
from fl_sim.research.uedp_paper.figure_pictures import METRIC_WORDS, show_utility, tidy
from fl_sim.research.uedp_paper.figure_records import AttackedRunRecord, Epsilons, PanelRecord, TrainingRecord
from fl_sim.research.uedp_paper.leakage import Interval, Method, methods, of_canaries, over_seeds

_OWNERS = ("user", "entity")
_RED = "#B3261E"
_MOST_PROVEN = 16.0
_PROVEN = {
    (True, True): (f"ε ≤ {_MOST_PROVEN:g} of any user and any name", "#0072B2", "o"),
    (True, False): ("… of any user", "#E69F00", "s"),
    (False, True): ("… of any name", "#009E73", "^"),
    (False, False): ("of neither", _RED, "X"),
}
"""Of whom an ε of at most ``_MOST_PROVEN`` is proven, any user and any name: words, colour and mark."""


def draw_decision(record: TrainingRecord) -> Figure:
    """Return the picture of an attacked comparison: the exposure of secrets against utility, a row of two per panel.

    The secrets are those that were said most often: by one user, or of a name by as many users. Methods have numbers,
    which a list explains; colours and marks say for whom an ε is proven.
    """
    panels = _attacked(record)
    figure = Figure(figsize=(13.0, 5.0 * len(panels)), layout="constrained")
    grid: Any = figure.subplots(len(panels), 3, squeeze=False, width_ratios=(5, 5, 4))
    for panel, (users, names, words) in zip(panels, grid, strict=True):
        drawn = methods(panel.attacked)
        shown = [_PROVEN[_is_proven(panel, method.runs[0])] for method in drawn]
        most = _most_said(drawn)
        for axes, owner, who in ((users, "user", "one user said {}×"), (names, "entity", "{} users said of a name")):
            _draw_exposures(axes, drawn, shown, owner, most)
            axes.set_title(f"{panel.title}: what {who.format(most)}", loc="left", fontsize="medium")
            axes.set_xlabel(METRIC_WORDS[record.metric])
        users.set_ylabel("exposure, bits (dotted: chance, 97.5 %)")
        words.set_axis_off()
        for row, (method, (_, colour, _)) in enumerate(zip(drawn, shown, strict=True)):
            words.text(0.0, 1 - row / 25, f"{row + 1}  {method.label}", color=colour, fontsize="small", va="top")
        users.legend(frameon=False, fontsize="small")
    return figure


def _is_proven(panel: PanelRecord, run: AttackedRunRecord) -> tuple[bool, bool]:
    """Return whether an ε of any user, and one of any name, is proven that is no larger than ``_MOST_PROVEN``."""
    epsilon = _epsilons(panel, run)
    return epsilon.user <= _MOST_PROVEN, epsilon.any_name is not None and epsilon.any_name <= _MOST_PROVEN


def _draw_exposures(
    axes: Axes, drawn: Sequence[Method], shown: Sequence[tuple[str, str, str]], owner: str, most: int
) -> None:
    """Draw the mean exposure of the secrets of one kind of owner against utility, a numbered mark per method."""
    for number, (method, (words, colour, mark)) in enumerate(zip(drawn, shown, strict=True), start=1):
        interval = over_seeds(of_canaries(method.attacks("canaries"), owner, most))
        if interval is None:
            continue
        utility = statistics.fmean(run.utility for run in method.runs)
        seen = words in axes.get_legend_handles_labels()[1]
        axes.plot(utility, interval[0], marker=mark, color=colour, linestyle="", label=f"_{words}" if seen else words)
        axes.annotate(str(number), (utility, interval[0]), textcoords="offset points", xytext=(5, 3), fontsize="small")
    chance = of_canaries(drawn[0].attacks("canaries"), owner, most, "most_by_chance")
    if chance:
        axes.axhline(chance[0], color=GREY, linestyle=":", linewidth=1.2)
    tidy(axes)


def is_decision(record: object) -> bool:
    """Return whether a record is that of an attacked comparison."""
    return isinstance(record, TrainingRecord) and bool(_attacked(record))


def decision_page(record: TrainingRecord) -> list[str]:
    """Return the lines of the page between the finding and the picture: every method on every corpus, in two tables."""
    panels = _attacked(record)
    claims = ["", f"ε claimed, δ = {format_delta(record.delta)}", "proven: any user", "any name", "both"]
    names = [name for panel in panels for name in dict.fromkeys(run.curve for run in panel.attacked)]
    rows, measured = [], []
    for name in dict.fromkeys(names):
        of = [(panel, method) for panel in panels for method in methods(panel.attacked) if method.runs[0].curve == name]
        epsilons = [_epsilons(panel, method.runs[0]) for panel, method in of]
        label = of[0][1].label
        rows.append([
            label,
            _largest((epsilon.claimed for epsilon in epsilons), "none"),
            _largest((epsilon.user for epsilon in epsilons), "∞"),
            _largest((epsilon.any_name for epsilon in epsilons), "∞"),
            _largest((epsilon.any_entity for epsilon in epsilons), "∞"),
        ])  # fmt: skip
        there = {panel.name: method for panel, method in of}
        measured.append([label, *(_measured(record, panel, there.get(panel.name)) for panel in panels)])
    most = _most_said(methods(panels[0].attacked))
    audited = audit(**AUDITED)
    return [
        "**What each claims, and what is proven**: the largest over the corpora.",
        "",
        *markdown_table(claims, rows),
        "",
        f"**What each costs, and what it gives away**: {METRIC_WORDS[record.metric]}; then the exposure in bits of "
        f"secrets that one user said {most} times, and of those that {most} users said of a name. **Bold**: above what "
        "chance allows (97.5 %) with every seed.",
        "",
        *markdown_table(["", *(panel.title for panel in panels)], measured),
        "",
        "Noise whose scale follows the text, as two proposals of 2025 have it, is no row "
        "(fl_sim/research/rivals/noise_by_sensitivity.py says which, and what of them we could read): of one round "
        f"that would state ε {format_epsilon(audited.claimed)} an attack on its variance shows at least "
        f"{audited.at_least:.1f}.",
    ]


def _attacked(record: TrainingRecord) -> list[PanelRecord]:
    return [panel for panel in record.panels if panel.attacked]


def _most_said(drawn: Sequence[Method]) -> int:
    """Return how often the secrets were said that were said most often."""
    return max(group["repetitions"] or 0 for one in drawn[0].attacks("canaries") for group in one["groups"])


def _epsilons(panel: PanelRecord, run: AttackedRunRecord) -> Epsilons:
    """Return the ε of a run's method at the joint ε at which it was attacked."""
    curve = next(curve for curve in panel.curves if curve.name == run.curve)
    return next(point for point in curve.points if point.x == run.joint).epsilon


def _largest(epsilons: Iterable[float | None], nothing: str) -> str:
    known = list(epsilons)
    most = max((epsilon for epsilon in known if epsilon is not None), default=None)
    return nothing if most is None or None in known or math.isinf(most) else format_epsilon(most)


def _measured(record: TrainingRecord, panel: PanelRecord, method: Method | None) -> str:
    """Return a method's utility on a corpus, and the exposure of a user's secrets and of a name's."""
    if method is None:
        return "–"
    drawn, utility = methods(panel.attacked), statistics.fmean(run.utility for run in method.runs)
    cells = [show_utility(record.metric, utility)]
    for owner in _OWNERS:
        most = _most_said(drawn)
        seeds = of_canaries(method.attacks("canaries"), owner, most)
        chance = of_canaries(drawn[0].attacks("canaries"), owner, most, "most_by_chance")
        values = [float(seed["value"]) for seed in seeds if seed["value"] is not None]
        spread = (statistics.fmean(values), min(values), max(values)) if values else None
        cells.append(_bits(spread, chance[0] if chance else math.inf))
    return "; ".join(cells)


def _bits(exposure: Interval | None, chance: float) -> str:
    """Return a mean exposure, bold if every seed's is above chance; the ends are the lowest and the highest seed's."""
    if exposure is None:
        return "–"
    return f"**{exposure[0]:.1f}**" if exposure[1] > chance else f"{exposure[0]:.1f}"
