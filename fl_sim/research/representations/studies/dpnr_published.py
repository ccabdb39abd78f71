"""The figures that DPNR (Lyu, He and Li 2020) publishes for its AG set, and its claim of fairness against their error.

Figures are in percent: means of 5 runs, without deviations. The gap of a person is the task's accuracy on texts with
them less that on texts without; the paper says that it *narrows*, in size, from NON-PRIV to DPNR (its table 7). The
standard error of that difference has two parts: the seeds' deviation over √n, and the sampling error of the groups'
accuracies, as if the two systems erred independently. (On the same texts the second part is somewhat smaller.)

>>> published_figures("dpnr-shared", 1.0, 0.5)
{'accuracy': 77.42}
>>> 3.0 < gap_error((80.0, -15.0), (1190, 267)) < 3.3  # texts without Arafat, and with him
True
>>> verdict([2.5, 3.1, 2.2]), verdict([2.5, 0.4, -0.3]), verdict([-3.0, -2.1, -4.0])
('narrower', 'not told apart', 'wider')
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from fl_sim.research.representations.corpora.labelled_text import AG_PERSONS
from fl_sim.research.representations.server.group_metrics import share_error
from fl_sim.research.representations.studies.agreement import estimate
from fl_sim.research.representations.studies.study_runs import Record

EPSILONS = (0.05, 0.1, 0.5, 1.0, 5.0)
RATES = (0.1, 0.3, 0.5, 0.8)
ATTACKED = 0.05
"""ε of DPNR in tables 4, 5 and 7."""
EPSILON_OF_RATES = 1.0
"""ε of table 3."""
PERSONS = AG_PERSONS[2:]
"""Entities 3, 4 and 5, the ones that the paper prints."""
LAYERS = ("dpnr", "dpnr-shared")
"""DPNR as in its paper, with independent noise on each coordinate, and as in its code, with one noise number."""

TABLE_2 = dict(zip(EPSILONS, (80.87, 80.78, 79.71, 79.36, 79.59), strict=True))
TABLE_3 = dict(zip(RATES, (80.71, 79.18, 77.42, 69.57), strict=True))
TABLE_4: dict[str, tuple[float, float]] = {
    "majority": (57.79, 49.34),
    "non-priv": (78.75, 23.24),
    "adv": (57.04, 49.67),
    "dpnr": (80.87, 54.37),
}
"""Accuracy and empirical privacy 1 − F."""
_TABLE_5 = {
    "non-priv": ((96.71, 81.99), (99.43, 47.20), (96.93, 68.29)),
    "adv": ((98.57, 39.71), (100.00, 0.00), (99.87, 12.96)),
    "dpnr": ((90.86, 8.46), (100.00, 0.00), (100.00, 0.00)),
}
_TABLE_7 = {
    "non-priv": ((82.67, -18.82), (80.86, -15.44), (80.22, -10.78)),
    "adv": ((48.92, 7.82), (49.64, 6.67), (49.43, 9.6)),
    "dpnr": ((83.60, -16.93), (81.79, -12.22), (81.04, -6.04)),
}
TABLE_5 = {system: dict(zip(PERSONS, rows, strict=True)) for system, rows in _TABLE_5.items()}
"""The attacker's accuracy on texts without and with a person."""
TABLE_7 = {system: dict(zip(PERSONS, rows, strict=True)) for system, rows in _TABLE_7.items()}
"""The task's accuracy on texts without a person, and the difference on texts with them."""


def published_figures(system: str, epsilon: float | None, rate: float) -> Record:
    """Return the paper's figures of a row; both versions of DPNR get its figures.

    ``system`` is "majority", "non-priv", "adv" or a layer, ``epsilon`` claimed (None without a layer), ``rate`` μ.
    """
    name = "dpnr" if system in LAYERS else system
    published: Record = {}
    if epsilon is None:
        published["accuracy"] = TABLE_4[name][0]
    elif rate:
        published["accuracy"] = TABLE_3[rate]
    else:
        published["accuracy"] = TABLE_2[epsilon]
    if epsilon is None or (epsilon == ATTACKED and not rate):
        published["privacy_f"] = TABLE_4[name][1]
        published["attacker"], published["task"] = TABLE_5.get(name, {}), TABLE_7.get(name, {})
    return published


_TOLD_APART = 2.0  # standard errors
_LEVEL_95 = 1.96


def verdict(standard_errors: Sequence[float]) -> str:
    """Return "narrower" or "wider" if all differences are, by more than two standard errors; else "not told apart"."""
    if all(error > _TOLD_APART for error in standard_errors):
        return "narrower"
    return "wider" if all(error < -_TOLD_APART for error in standard_errors) else "not told apart"


def fairness_row(system: str, person: str, plain: Sequence[Record], private: Sequence[Record]) -> Record:
    """Return by how much a person's gap narrows under "dpnr" or "dpnr-shared", JSON-ready.

    ``plain`` are NON-PRIV's figures of each seed: "task", accuracy without and what is added with a person, in percent,
    and "sizes", the numbers of texts without and with; ``private`` the system's of the same seeds.
    """
    narrower = [abs(a["task"][person][1]) - abs(b["task"][person][1]) for a, b in zip(plain, private, strict=True)]
    sampling = math.hypot(_mean_error(person, plain), _mean_error(person, private))
    over_seeds = statistics.stdev(narrower) / math.sqrt(len(narrower)) if len(narrower) > 1 else 0.0
    error = math.hypot(sampling, over_seeds)
    mean = statistics.fmean(narrower)
    row: Record = {
        "system": system,
        "person": person,
        "gap_non_priv": estimate([figures["task"][person][1] for figures in plain]),
        "gap": estimate([figures["task"][person][1] for figures in private]),
        "narrower_by": round(mean, 4),
        "standard_error": round(error, 4),
        "standard_errors": round(mean / error, 2),
    }
    if person in TABLE_7["dpnr"]:
        gaps = [abs(TABLE_7[name][person][1]) for name in ("non-priv", "dpnr")]
        published = row["published"] = round(gaps[0] - gaps[1], 2)
        sizes = plain[0]["sizes"][person]
        of_paper = math.hypot(*(gap_error(TABLE_7[name][person], sizes) for name in ("non-priv", "dpnr")))
        row["published_standard_errors"] = round(published / of_paper, 2)
        row["agrees"] = bool(abs(published - mean) <= _LEVEL_95 * error)
    return row


def verdict_lines(rows: Sequence[Record]) -> Iterator[str]:
    """Yield the verdict in words: of the published figures, then of each encoder and system."""
    printed = [row for row in rows if "published" in row]
    if not printed:
        return
    of_paper = {row["person"]: row for row in printed}
    yield (
        f"* Published: narrower by {_listed(row['published'] for row in of_paper.values())} points for "
        f"{', '.join(of_paper)}, which is {_listed(row['published_standard_errors'] for row in of_paper.values())} "
        "standard errors of a test set of this size; p < 0.0001 takes 3.9."
    )
    for key in dict.fromkeys((row["encoder"], row["system"]) for row in printed):
        own = [row for row in printed if (row["encoder"], row["system"]) == key]
        yield (
            f"* {key[1]}, {key[0]}: narrower by {_listed(row['narrower_by'] for row in own)} points, "
            f"{_listed(row['standard_errors'] for row in own)} standard errors: **{own[0]['verdict']}**; the accuracy "
            f"changes by {own[0]['accuracy_change']:+.1f} points. The published difference is in the 95 % interval for "
            f"{sum(row['agrees'] for row in own)} of {len(own)} persons."
        )


def _listed(values: Iterator[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in values)


def _mean_error(person: str, seeds: Sequence[Record]) -> float:
    """Return the sampling error of a gap, in percent: the mean over the seeds, which share their test texts."""
    return statistics.fmean(gap_error(figures["task"][person], figures["sizes"][person]) for figures in seeds)


def gap_error(task: Sequence[float], sizes: Sequence[int]) -> float:
    """Return the standard error, in percent, of a difference of accuracies of two groups of such sizes.

    ``task`` has the accuracy of the first group, and what is added to it in the second, in percent.
    """
    rates = (task[0] / 100, (task[0] + task[1]) / 100)
    return 100 * math.hypot(*(share_error(rate, size) for rate, size in zip(rates, sizes, strict=True)))
