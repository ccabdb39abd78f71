"""What the records of attacks on trained models hold, as tables.

A figure is the mean over the seeds; the interval beside it runs from the lowest to the highest end of the seeds'
intervals, so it is wider than that of the mean.

>>> seeds = [{"value": 0.5, "low": 0.4, "high": 0.6}, {"value": 0.7, "low": 0.6, "high": 0.8}]
>>> shown(seeds, "{:.2f}"), shown([None, None], "{:.2f}"), over_seeds(seeds)
('0.60 (0.40–0.80)', '–', (0.6, 0.4, 0.8))
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fl_sim.auditing.leakage.canary_exposure import CanaryGroup, are_known
from fl_sim.formats import format_epsilon, round_up
from fl_sim.reporting import bootstrap
from fl_sim.research.uedp_paper.figure_pictures import METRIC_WORDS, show_utility
from fl_sim.research.uedp_paper.figure_records import AttackedRunRecord

Measured = Mapping[str, float | None]
Interval = tuple[float, float, float]
"""Value, and the ends of its interval."""
Runs = Sequence[AttackedRunRecord]
Rows = tuple[list[str], list[list[str]]]
"""The heads of a table's columns, and its rows."""

_RATE = "0.01"
_EXPOSURES = ("exposure", "initial_exposure")
_OWNERS = (("user", "a user"), ("entity", "an entity"))


@dataclass(frozen=True)
class Method:
    """The runs of one curve at one ε, a run per seed."""

    runs: tuple[AttackedRunRecord, ...]

    @property
    def label(self) -> str:
        """Return the curve's label."""
        return self.runs[0].label

    @property
    def epsilon(self) -> str:
        """Return ε of any user with any entity that the runs spent, the largest; a dash without a guarantee."""
        spent = [run.epsilon_any for run in self.runs if run.epsilon_any is not None]
        return format_epsilon(max(spent)) if spent else "–"

    @property
    def is_protected(self) -> bool:
        """Return whether the runs have an ε of any user with any entity."""
        return any(run.epsilon_any is not None for run in self.runs)

    def attacks(self, name: str) -> list[Mapping[str, Any]]:
        """Return the records of one attack, of the runs that it made sense for."""
        return [run.attacks[name] for run in self.runs if "left_out" not in run.attacks.get(name, {"left_out": ""})]


def methods(attacked: Runs) -> list[Method]:
    """Return the methods of a panel, in the order of its runs."""
    return [Method(tuple(runs)) for _, runs in itertools.groupby(attacked, key=lambda run: (run.curve, run.joint))]


def over_seeds(seeds: Iterable[Measured | None]) -> Interval | None:
    """Return the mean of the seeds' figures, and the lowest and highest end of their intervals; None for none.

    The ends are the mean itself where no seed has an interval.
    """
    known = [one for one in seeds if one is not None and one["value"] is not None]
    if not known:
        return None
    mean = statistics.fmean(float(one["value"] or 0.0) for one in known)
    lows, highs = ([end for one in known if (end := one[name]) is not None] for name in ("low", "high"))
    return (mean, min(lows), max(highs)) if lows and highs else (mean, mean, mean)


def shown(seeds: Iterable[Measured | None], words: str) -> str:
    """Return :func:`over_seeds` as text, each number in the format ``words``; a dash for none."""
    known = list(seeds)
    interval = over_seeds(known)
    if interval is None:
        return "–"
    mean, low, high = interval
    if not any(one is not None and one["low"] is not None for one in known):
        return words.format(mean)
    return f"{words.format(mean)} ({words.format(low)}–{words.format(high)})"


def membership_table(metric: str, attacked: Runs) -> Rows:
    """Return how well users who trained are told from others."""
    head = ["", "ε", METRIC_WORDS[metric], "users: area", "found at 1 %", "at most"]
    rows = []
    for method in methods(attacked):
        utility = statistics.fmean(run.utility for run in method.runs)
        row = [method.label, method.epsilon, show_utility(metric, utility)]
        attacks = method.attacks("users")
        row += [
            shown([one["auc"] for one in attacks], "{:.3f}"),
            shown([one["tpr_at_fpr"][_RATE] for one in attacks], "{:.1%}"),
            largest([one["bound"] for one in attacks]),
        ]
        rows.append(row)
    return head, rows


def largest(bounds: Sequence[Mapping[str, Any]]) -> str:
    """Return the largest rate at 1 % that the runs' ledgers allow, rounded up."""
    if not bounds:
        return "–"
    if not all(bound["proven"] for bound in bounds):
        return "no bound"
    return f"{round_up(100 * max(bound['largest_tpr_at_fpr'][_RATE] for bound in bounds), 3)}%"


def canary_table(attacked: Runs) -> Rows:
    """Return the exposure of planted secrets in bits, by owner and repetitions, and of those that were left out."""
    of_panel = [one for method in methods(attacked) for one in method.attacks("canaries")]
    repeated = sorted({group["repetitions"] for one in of_panel for group in one["groups"]} - {None})
    head = ["", "ε", "secret of", *(f"said {number}×" for number in repeated), "left out"]
    head.append("any attack at 1 %, most said")
    rows = []
    for method in methods(attacked):
        attacks = method.attacks("canaries")
        for owner, words in _OWNERS if attacks else ():
            cells = [shown(of_canaries(attacks, owner, number), "{:.1f}") for number in repeated]
            cells.append(shown(of_canaries(attacks, owner, None, included=False), "{:.1f}"))
            bounds = [
                bound
                for one in attacks
                for bound in one["bounds"]
                if (bound["owner"], bound["repetitions"]) == (owner, repeated[-1])
            ]
            rows.append([method.label, method.epsilon, words, *cells, largest(bounds)])
    for owner, words in _OWNERS:
        start = [shown(at_start(attacked, owner, number), "{:.1f}") for number in repeated]
        rows.append(["the model before training", "", words, *start, "", ""])
        chance = [next(iter(of_canaries(of_panel, owner, number, "most_by_chance")), None) for number in repeated]
        cells = ["–" if most is None else f"{most:.1f}" for most in chance]
        rows.append(["a secret never seen stays below, 97.5 %", "", words, *cells, "", ""])
    return head, rows if repeated else []


def of_canaries(
    attacks: Iterable[Mapping[str, Any]],
    owner: str,
    repetitions: int | None,
    name: str = "exposure",
    *,
    included: bool = True,
) -> list[Any]:
    """Return the figure ``name`` of the canaries of one kind, of every attack that has such canaries.

    ``repetitions`` is how often they were said, None for those that were left out (``included`` false).
    """
    wanted = (owner, repetitions, included)
    return [
        group[name]
        for one in attacks
        for group in one["groups"]
        if (group["owner"], group["repetitions"], group["included"]) == wanted
    ]


def at_start(attacked: Runs, owner: str, repetitions: int) -> list[Measured | None]:
    """Return the mean exposure of the same canaries under the model before training, a figure per seed."""
    found = (method.attacks("canaries") for method in methods(attacked))
    return of_canaries(next((one for one in found if one), []), owner, repetitions, "initial_exposure")


def name_table(attacked: Runs) -> Rows:
    """Return how the models rank private names."""
    head = ["", "ε", "ranked before", "at the start", "gain"]
    rows = []
    for method in methods(attacked):
        groups = [one["groups"][0] for one in method.attacks("entities")]
        if groups:
            cells = [shown([group[name] for group in groups], "{:.1%}") for name in ("ahead", "initial_ahead", "gain")]
            rows.append([method.label, method.epsilon, *cells])
    return head, rows


def conclusions(attacked: Runs) -> list[str]:
    """Say for each attack whether the models without a guarantee remember, without which no protection shows."""
    free = [method for method in methods(attacked) if not method.is_protected]
    lines = []
    for name in ("users", "canaries", "entities"):
        remembers = [
            method.label
            for method in free
            if method.attacks(name) and all(beats_chance(name, one) for one in method.attacks(name))
        ]
        found = f"better than guessing with every seed on: {', '.join(remembers)}"
        none = "nothing can be concluded, because no model without a guarantee is told from guessing with every seed"
        lines.append(f"{name.capitalize()}: {found if remembers else none}.")
    return lines


def beats_chance(name: str, attack: Mapping[str, Any]) -> bool:
    """Return whether the record of an attack has more than guessing would find, at 95 %."""
    if name == "canaries":
        figures = [{key: bootstrap.Figure.of(one[key]) for key in _EXPOSURES} for one in attack["groups"]]
        return are_known([CanaryGroup(**group | own) for group, own in zip(attack["groups"], figures, strict=True)])
    figure, guessed = (attack["groups"][0]["gain"], 0.0) if name == "entities" else (attack["auc"], 0.5)
    return bootstrap.Figure.of(figure).low > guessed


def verdicts(attacked: Runs) -> list[str]:
    """Return the states of all tests, counted, and the seconds that each attack took."""
    records: list[tuple[str, Mapping[str, Any]]] = [one for run in attacked for one in run.attacks.items()]
    states = [one["verdict"]["state"] for _, one in records if "verdict" in one]
    counted = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))
    seconds: dict[str, list[float]] = {}
    for name, one in records:
        if "seconds" in one:
            seconds.setdefault(name, []).append(float(one["seconds"]))
    times = ", ".join(f"{name} {statistics.fmean(values):.0f} s" for name, values in seconds.items())
    return [f"Tests against the ledgers: {counted}.", f"Time of an attack on a run, one core: {times}."]
