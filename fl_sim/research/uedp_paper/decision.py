"""What an attacked comparison decides: its picture, and a short page with every method on every corpus.

>>> Exposed((6.1, 7.0, 3.1), chance=3.2).words, Exposed((6.1, 7.0, 3.3), chance=3.2).words, Exposed((), 3.0).words
('5.4', '**5.5**', '–')
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from fl_sim.formats import format_delta, format_epsilon
from fl_sim.reporting.plots import BOUND, GREY
from fl_sim.research.rivals.noise_by_sensitivity import audit
from fl_sim.research.study_files import markdown_table
from fl_sim.research.uedp_paper.attack_tables import Method, methods, of_canaries
from fl_sim.research.uedp_paper.figure_pictures import METRIC_WORDS, show_utility, tidy
from fl_sim.research.uedp_paper.figure_records import Epsilons, PanelRecord, TrainingRecord
from fl_sim.research.uedp_paper.figure_tables import KNOWN_WORDS, shown_known

_OWNERS = ("user", "entity")
_MARKS = "osD^vP*X"
_LEAST_SHOWN = -0.5
_MOST_PROVEN = 16.0
_PROVEN = {
    (True, True): (f"ε ≤ {_MOST_PROVEN:g} proven of any user and any name", "#0072B2"),
    (True, False): ("… of any user", "#E69F00"),
    (False, True): ("… of any name", "#009E73"),
    (False, False): ("… of neither", BOUND),
}
"""Of whom an ε of at most ``_MOST_PROVEN`` is proven, any user and any name: words and colour."""


@dataclass(frozen=True)
class Exposed:
    """The mean exposure in bits of the secrets of one kind of owner that were said most often, with each seed.

    ``chance`` is what 97.5 % of such means stay below for secrets that the model never saw.
    """

    seeds: tuple[float, ...]
    chance: float

    @property
    def lost(self) -> bool:
        """Return whether every seed's is above chance."""
        return bool(self.seeds) and min(self.seeds) > self.chance

    @property
    def words(self) -> str:
        """Return the mean over the seeds, bold if the secrets are lost."""
        if not self.seeds:
            return "–"
        mean = f"{statistics.fmean(self.seeds):.1f}"
        return f"**{mean}**" if self.lost else mean


@dataclass(frozen=True)
class Outcome:
    """What came of a method on a corpus.

    ``way`` is the share of the way from the public start to noiseless, in log perplexity or in the error; ``known``
    what ε takes as known.
    """

    label: str
    known: str
    epsilon: Epsilons
    utility: float
    way: float
    exposed: Mapping[str, Exposed]

    @property
    def proven_for(self) -> tuple[bool, bool]:
        """Return whether an ε of any user, and one of any name, is proven that is no larger than ``_MOST_PROVEN``."""
        any_name = self.epsilon.any_name
        return self.epsilon.user <= _MOST_PROVEN, any_name is not None and any_name <= _MOST_PROVEN


def is_decision(record: object) -> bool:
    """Return whether a record is that of an attacked comparison."""
    return isinstance(record, TrainingRecord) and any(panel.attacked for panel in record.panels)


def draw_decision(record: TrainingRecord) -> Figure:
    """Return the picture of an attacked comparison: how far each method goes, and what it gives away.

    A row per method, in the colour of those for whom an ε is proven; a mark per corpus at the share of the way from
    the public start to noiseless, ringed in red if the secrets of users or of names are lost.
    """
    panels, outcomes = _outcomes(record)
    figure = Figure(figsize=(10.0, 1.6 + 0.3 * len(outcomes)), layout="constrained")
    axes = figure.add_subplot()
    labels = []
    for row, of_corpus in enumerate(outcomes.values()):
        words, colour = _PROVEN[next(iter(of_corpus.values())).proven_for]
        for number, panel in enumerate(panels):
            if panel.name not in of_corpus:
                continue
            outcome = of_corpus[panel.name]
            place = (max(outcome.way, _LEAST_SHOWN), row + 0.5 * ((number + 0.5) / len(panels) - 0.5))
            axes.plot(*place, marker=_MARKS[number], color=colour, linestyle="", markersize=6)
            if any(exposed.lost for exposed in outcome.exposed.values()):
                axes.plot(*place, marker="o", color=BOUND, fillstyle="none", linestyle="", markersize=12)
        labels.append((next(iter(of_corpus.values())).label, colour))
    axes.set_yticks(range(len(labels)), [label for label, _ in labels], fontsize="small")
    for tick, (_, colour) in zip(axes.get_yticklabels(), labels, strict=True):
        tick.set_color(colour)
    for number, panel in enumerate(panels):
        axes.plot([], [], marker=_MARKS[number], color=GREY, linestyle="", label=panel.title)
    axes.plot([], [], marker="o", color=BOUND, fillstyle="none", markersize=12, linestyle="", label="secrets lost")
    for words, colour in _PROVEN.values():
        axes.plot([], [], marker="s", color=colour, linestyle="", label=words)
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize="small")
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.axvline(0.0, color=GREY, linestyle=":", linewidth=1.2)
    axes.invert_yaxis()
    axes.set_xlabel("share of the way from the public start to noiseless, in log perplexity")
    tidy(axes)
    return figure


def decision_page(record: TrainingRecord) -> list[str]:
    """Return the lines of the page between the finding and the picture: every method on every corpus, in two tables."""
    panels, outcomes = _outcomes(record)
    claims = ["", f"ε claimed, δ = {format_delta(record.delta)}", "proven: any user", "any name", "both", "known"]
    rows, measured = [], []
    for of_corpus in outcomes.values():
        label, epsilons = next(iter(of_corpus.values())).label, [outcome.epsilon for outcome in of_corpus.values()]
        rows.append([
            label,
            _largest((epsilon.claimed for epsilon in epsilons), "none"),
            _largest((epsilon.user for epsilon in epsilons), "∞"),
            _largest((epsilon.any_name for epsilon in epsilons), "∞"),
            _largest((epsilon.any_entity for epsilon in epsilons), "∞"),
            ", ".join(dict.fromkeys(outcome.known for outcome in of_corpus.values())),
        ])  # fmt: skip
        there = [of_corpus.get(panel.name) for panel in panels]
        measured.append([label, *("–" if one is None else _measured(record.metric, one) for one in there)])
    most = max((_most_said(methods(panel.attacked)) for panel in panels), default=0)
    exposure = (
        f"; then the exposure in bits of secrets that one user said {most} times, and of those that {most} users said "
        "of a name. **Bold**: above what chance allows (97.5 %) with every seed."
    )
    audited = audit()
    return [
        "**What each claims, and what is proven**: the largest over the corpora, where what the last column names is "
        f"known: `graph`, {KNOWN_WORDS['graph']}; `counts`, {KNOWN_WORDS['counts']} (docs/privacy.md).",
        "",
        *markdown_table(claims, rows),
        "",
        f"**What each costs, and what it gives away**: {METRIC_WORDS[record.metric]}{exposure if most else '.'}",
        "",
        *markdown_table(["", *(panel.title for panel in panels)], measured),
        "",
        *(
            line
            for panel in panels
            for label, reason in panel.left_out.items()
            for line in (f"Left out of {panel.title}: {label}: {reason}.", "")
        ),
        "Noise whose scale follows the text, as two proposals of 2025 have it, is no row "
        "(fl_sim/research/rivals/noise_by_sensitivity.py says which, and what of them we could read): of one round "
        f"that would state ε {format_epsilon(audited.claimed)} an attack on its variance shows at least "
        f"{audited.at_least:.1f}.",
    ]


def _outcomes(record: TrainingRecord) -> tuple[list[PanelRecord], dict[str, dict[str, Outcome]]]:
    """Return the attacked panels, and what came of every curve by panel."""
    panels = [panel for panel in record.panels if panel.attacked]
    outcomes: dict[str, dict[str, Outcome]] = {}
    for panel in panels:
        drawn = methods(panel.attacked)
        most = _most_said(drawn)
        points = {(curve.name, point.x): point for curve in panel.curves for point in curve.points}
        best = points[record.baseline or "", None]
        for method in drawn:
            run = method.runs[0]
            point = points[run.curve, run.joint]
            utilities = (best.initial.mean, point.utility.mean, best.utility.mean)
            start, end, goal = map(math.log, utilities) if record.metric == "perplexity" else utilities
            outcomes.setdefault(run.curve, {})[panel.name] = Outcome(
                label=run.label,
                known=shown_known(point),
                epsilon=point.epsilon,
                utility=point.utility.mean,
                way=(start - end) / (start - goal),
                exposed={owner: _exposed(method, drawn, owner, most) for owner in _OWNERS},
            )
    return panels, outcomes


def _exposed(method: Method, drawn: Sequence[Method], owner: str, most: int) -> Exposed:
    seeds = of_canaries(method.attacks("canaries"), owner, most)
    chance = of_canaries(drawn[0].attacks("canaries"), owner, most, "most_by_chance")
    known = tuple(float(seed["value"]) for seed in seeds if seed["value"] is not None)
    return Exposed(known, chance[0] if chance else math.inf)


def _most_said(drawn: Sequence[Method]) -> int:
    """Return how often the secrets were said that were said most often; 0 if there are none."""
    said = (group["repetitions"] or 0 for one in drawn[0].attacks("canaries") for group in one["groups"])
    return max(said, default=0)


def _largest(epsilons: Iterable[float | None], nothing: str) -> str:
    known = list(epsilons)
    most = max((epsilon for epsilon in known if epsilon is not None), default=None)
    return nothing if most is None or None in known or math.isinf(most) else format_epsilon(most)


def _measured(metric: str, outcome: Outcome) -> str:
    """Return a method's utility on a corpus, and the exposure of a user's secrets and of a name's."""
    return "; ".join([show_utility(metric, outcome.utility), *(outcome.exposed[owner].words for owner in _OWNERS)])
