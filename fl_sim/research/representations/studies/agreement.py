"""A figure over seeds with its 95 % interval, and whether it reproduces a published one.

The interval of a mean over n seeds is max(t·s, z·e)/√n wide to each side: s is the deviation between the seeds, e the
sampling error of one seed's figure, t and z the 97.5 % quantiles of Student's distribution with n − 1 degrees of
freedom and of the normal one. A published figure is *reproduced* if its mean is in our interval, or our mean in its
own, which follows from its deviation, its number of runs, and e (docs/representations.md).

Of a size, such as |TPR-gap|, this is the interval of the mean size, not of the size of the mean: at a true gap of 0
and a sampling error of e the mean size of one seed is 0.8·e, and the interval of ten seeds holds 0 in 18 % of cases.

>>> ours = estimate([82.0, 84.0, 83.0])
>>> ours["mean"], round(ours["half_width"], 2)  # 4.30 · 1/√3
(83.0, 2.48)
>>> reproduces(ours, Published(85.0, 0.2)), reproduces(ours, Published(86.0, 0.2))
(True, False)
>>> counted_words(count_verdicts({"accuracy": True, "gaps": [False, True]}))
'2 of 3 published figures'
>>> table_cell(ours, seeds=3, digits=1, published="79", reproduced=False)
'83.0 ± 1.0 [± 2.5] (79)'
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from scipy import stats

_LEVEL = 0.975
_DIGITS = 4


class Estimate(TypedDict):
    """A figure over seeds, JSON-ready.

    Attributes:
        mean: over the seeds.
        deviation: s, the sample deviation; 0 for one seed.
        sampling_error: e, that of one seed's figure; None if it was not measured.
        half_width: of the 95 % interval of the mean.
    """

    mean: float
    deviation: float
    sampling_error: float | None
    half_width: float


@dataclass(frozen=True, slots=True)
class Published:
    """A published figure: mean and deviation over its runs, and half of the last published digit."""

    mean: float
    deviation: float | None = None
    runs: int = 5
    rounding: float = 0.005

    def half_width(self, sampling_error: float | None) -> float:
        """Return the half width of the 95 % interval of the mean; 0 if no deviation is published.

        ``sampling_error`` is that of one run's figure, on a test set of the size of ours.
        """
        return 0.0 if self.deviation is None else _half_width(self.deviation, sampling_error, self.runs)


def estimate(values: Sequence[float], errors: Sequence[float] = ()) -> Estimate:
    """Return the mean of a figure over seeds, with its interval; ``errors`` are the sampling errors, if measured."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    known = [error for error in errors if not math.isnan(error)]
    error = statistics.fmean(known) if known else None
    half_width = _half_width(deviation, error, len(values))
    return Estimate(
        mean=round(statistics.fmean(values), _DIGITS),
        deviation=round(deviation, _DIGITS),
        sampling_error=None if error is None else round(error, _DIGITS),
        half_width=round(half_width, _DIGITS),
    )


def reproduces(ours: Estimate, published: Published) -> bool:
    """Return whether the published mean is in our 95 % interval, or our mean in the publication's."""
    widest = max(ours["half_width"], published.half_width(ours["sampling_error"]))
    return abs(ours["mean"] - published.mean) <= widest + published.rounding


class Counts(TypedDict):
    """Published figures, and those of them that are reproduced; None if some have no verdict."""

    published: int
    reproduced: int | None


def count_verdicts(verdicts: Any) -> Counts:
    """Return the counts of nested mappings and lists of verdicts, a bool each, or None where too few seeds ran."""
    found = list(_flat(verdicts))
    return Counts(published=len(found), reproduced=None if None in found else sum(filter(None, found)))


def counted_words(counts: Counts) -> str:
    """Return the counts in words."""
    if counts["reproduced"] is None:
        return f"no verdict on {counts['published']} published figures, too few seeds"
    return f"{counts['reproduced']} of {counts['published']} published figures"


def _flat(verdicts: Any) -> Iterator[bool | None]:
    if verdicts is None or isinstance(verdicts, bool):
        yield verdicts
        return
    for part in verdicts.values() if isinstance(verdicts, dict) else verdicts:
        yield from _flat(part)


def spread(measured: Estimate, seeds: int, digits: int) -> str:
    """Return ``mean ± deviation [± half width of the 95 % interval]``; without what a single seed does not have."""
    text = f"{measured['mean']:.{digits}f}"
    if seeds > 1:
        text += f" ± {measured['deviation']:.{digits}f}"
    return text + (f" [± {measured['half_width']:.{digits}f}]" if measured["half_width"] > 0 else "")


def table_cell(measured: Estimate, seeds: int, digits: int, published: str | None, reproduced: bool | None) -> str:
    """Return ``mean ± deviation [± half width] (published) ✓``; a figure that is not published is a dash."""
    shown = "–" if published is None else published
    return f"{spread(measured, seeds, digits)} ({shown}){mark(reproduced)}"


def mark(reproduced: bool | None) -> str:
    """Return the mark of a reproduced figure, after a space; nothing for another."""
    return " ✓" if reproduced else ""


def _half_width(deviation: float, error: float | None, runs: int) -> float:
    """Return max(t·s, z·e)/√n; a single run has no s."""
    of_seeds = float(stats.t.ppf(_LEVEL, runs - 1)) * deviation if runs > 1 else 0.0
    of_sampling = float(stats.norm.ppf(_LEVEL)) * (error or 0.0)
    return max(of_seeds, of_sampling) / math.sqrt(runs)
