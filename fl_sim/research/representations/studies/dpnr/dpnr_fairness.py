"""DPNR's claim that noise makes a classifier fairer: its table 7 against the error of test sets of this size.

The gap of a person is the task's accuracy on texts with them less that on texts without. It *narrows* if its size is
smaller under DPNR than under NON-PRIV. The standard error of that difference has two parts: the seeds' deviation over
√n, and the sampling error of the groups' accuracies, as if the two systems erred independently. (On the same texts the
second part is somewhat smaller.)

>>> error = gap_error(0.8, 1190, 0.65, 267)  # texts without Arafat, and with him
>>> 3.0 < 100 * error < 3.3
True
>>> verdict([2.5, 3.1, 2.2]), verdict([2.5, 0.4, -0.3]), verdict([-3.0, -2.1, -4.0])
('narrower', 'not told apart', 'wider')
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from fl_sim.research.representations.server.group_metrics import share_error
from fl_sim.research.representations.studies.agreement import estimate
from fl_sim.research.representations.studies.dpnr.dpnr_published import TABLE_7, narrowing

Figures = dict[str, Any]

_TOLD_APART = 2.0  # standard errors
_LEVEL_95 = 1.96


def gap_error(absent: float, absences: int, present: float, presences: int) -> float:
    """Return the standard error of the difference of two groups' accuracies, shares of 1.

    Args:
        absent: accuracy on texts without a person.
        absences: their number.
        present: accuracy on texts with the person.
        presences: their number.
    """
    return math.hypot(share_error(absent, absences), share_error(present, presences))


def verdict(standard_errors: Sequence[float]) -> str:
    """Return "narrower" or "wider" if all differences are, by more than two standard errors; else "not told apart"."""
    if all(error > _TOLD_APART for error in standard_errors):
        return "narrower"
    return "wider" if all(error < -_TOLD_APART for error in standard_errors) else "not told apart"


def fairness_row(system: str, person: str, plain: Sequence[Figures], private: Sequence[Figures]) -> dict[str, Any]:
    """Return by how much a person's gap narrows, JSON-ready.

    Args:
        system: "dpnr" or "dpnr-shared".
        person: whose gap.
        plain: NON-PRIV's figures of each seed: "task", accuracy without and what is added with each person, in
            percent, and "sizes", the numbers of texts without and with.
        private: the system's figures of the same seeds.
    """
    narrower = [abs(a["task"][person][1]) - abs(b["task"][person][1]) for a, b in zip(plain, private, strict=True)]
    sampling = math.hypot(_mean_error(person, plain), _mean_error(person, private))
    over_seeds = statistics.stdev(narrower) / math.sqrt(len(narrower)) if len(narrower) > 1 else 0.0
    error = math.hypot(sampling, over_seeds)
    mean = statistics.fmean(narrower)
    row: dict[str, Any] = {
        "system": system,
        "person": person,
        "gap_non_priv": estimate([figures["task"][person][1] for figures in plain]),
        "gap": estimate([figures["task"][person][1] for figures in private]),
        "narrower_by": round(mean, 4),
        "standard_error": round(error, 4),
        "standard_errors": round(mean / error, 2),
    }
    if person in TABLE_7["dpnr"]:
        published = narrowing(person)
        row["published"] = published
        row["published_standard_errors"] = round(published / _published_error(person, plain[0]["sizes"][person]), 2)
        row["agrees"] = bool(abs(published - mean) <= _LEVEL_95 * error)
    return row


def verdict_lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
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


def _mean_error(person: str, seeds: Sequence[Figures]) -> float:
    """Return the sampling error of a gap, in percent: the mean over the seeds, which share their test texts."""
    return statistics.fmean(_gap_error(figures["task"][person], figures["sizes"][person]) for figures in seeds)


def _gap_error(task: Sequence[float], sizes: Sequence[int]) -> float:
    return 100 * gap_error(task[0] / 100, sizes[0], (task[0] + task[1]) / 100, sizes[1])


def _published_error(person: str, sizes: Sequence[int]) -> float:
    return math.hypot(*(_gap_error(TABLE_7[system][person], sizes) for system in ("non-priv", "dpnr")))
