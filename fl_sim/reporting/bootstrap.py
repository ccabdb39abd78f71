"""Percentile bootstrap over users: 95 % intervals of ratios such as bits per byte, and of differences of two runs.

A user's sentences are not independent of each other, so users are resampled, with all of their sentences. The interval
runs from the 2.5th to the 97.5th percentile over the resamples. Two runs that were measured on the same users differ by
less than each one's interval suggests, so their difference is taken within each resample.

>>> sums = np.array([[10.0, 4.0], [6.0, 4.0], [8.0, 4.0]])  # three users: nats and tokens
>>> figure = intervals(sums, np.random.default_rng(0))[0]
>>> figure.value, 1.5 <= figure.low <= figure.value <= figure.high <= 2.5
(2.0, True)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from fl_sim.strategies.primitives import streams

RESAMPLES = 1000
METHOD = "percentile bootstrap over users, 95 %"
"""What the intervals are, for records and reports."""

_LEVELS = (0.025, 0.975)
_DRAWS_AT_ONCE = 1 << 22  # bounds the memory, also for many users


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with its 95 % interval; NaN if it is undefined, an interval also for fewer than two users."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, record: Mapping[str, float | None]) -> Figure:
        """Return the figure whose :meth:`record` is given."""
        return cls(**{name: math.nan if value is None else value for name, value in record.items()})

    def mapped(self, function: Callable[[float], float]) -> Figure:
        """Return the figure of an increasing function of this one."""
        return Figure(function(self.value), function(self.low), function(self.high))

    def ends(self) -> tuple[float, float]:
        """Return the ends of the interval; the figure itself where there is none."""
        return (self.value, self.value) if math.isnan(self.low) else (self.low, self.high)

    def record(self) -> dict[str, float | None]:
        """Return the figure as JSON values: None where it is undefined."""
        return {name: None if math.isnan(value) else value for name, value in asdict(self).items()}


def intervals(sums: NDArray[np.float64], rng: np.random.Generator, resamples: int = RESAMPLES) -> list[Figure]:
    """Return the ratios of users' sums with their intervals.

    All ratios share the resamples, so that intervals of the same users compare.

    Args:
        sums: float64 (U, 2·k): per user the numerator and the denominator of each of k ratios.

    Returns:
        k figures; a resample in which a ratio is undefined is left out of its interval.
    """
    total = sums.sum(axis=0)
    drawn = resampled_sums(sums, rng, resamples) if len(sums) > 1 else np.full((1, len(total)), math.nan)
    figures = []
    for column in range(0, len(total), 2):
        ratios = _ratio(drawn[:, column], drawn[:, column + 1])
        defined = ratios[~np.isnan(ratios)]
        low, high = np.quantile(defined, _LEVELS) if len(defined) else (math.nan, math.nan)
        figures.append(Figure(float(_ratio(total[column], total[column + 1])), float(low), float(high)))
    return figures


def resampled_sums(sums: NDArray[np.float64], rng: np.random.Generator, resamples: int) -> NDArray[np.float64]:
    """Return column sums, float64 (resamples, columns), of samples of U ≥ 1 users (U, columns) with replacement."""
    users = len(sums)
    at_once = max(1, _DRAWS_AT_ONCE // users)
    parts = []
    for start in range(0, resamples, at_once):
        rows = min(at_once, resamples - start)
        chosen = rng.integers(users, size=(rows, users)) + users * np.arange(rows)[:, None]
        times = np.bincount(chosen.ravel(), minlength=rows * users).reshape(rows, users)
        parts.append(times @ sums)
    return np.concatenate(parts)


def _ratio(numerator: NDArray[np.float64], denominator: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(denominator > 0, np.divide(numerator, denominator), math.nan)


PAIRED_METHOD = "paired percentile bootstrap over held-out users, 95 %"
"""What the intervals are, for records and reports."""


Sums = Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """The figure of the second of two runs less that of the first, below 0 if the second is better.

    Attributes:
        metric: "perplexity", per token, or "error".
        value, low, high: the difference and its interval; NaN for fewer than two users.
        users: how many there are.
        better_for: the share of users for whom the second run is better.
    """

    metric: str
    value: float
    low: float
    high: float
    users: int
    better_for: float
    interval: str = PAIRED_METHOD


def are_same_users(first: Sums, second: Sums) -> bool:
    """Return whether two evaluations had as many prediction targets of every user, as those of one text and tokenizer.

    Both are sums by user (:func:`~fl_sim.experiments.user_utility.sums_by_user`) of runs on one corpus.
    """
    return list(first["predictions"]) == list(second["predictions"])


def paired_difference(first: Sums, second: Sums, metric: str) -> PairedDifference:
    """Return how two runs differ in "perplexity", per token, or "error", by sums of the same held-out users."""
    wanted = "wrong" if metric == "error" else "nats"
    sums = np.array([first[wanted], second[wanted], first["predictions"]], dtype=float).T
    resampled = _difference(resampled_sums(sums, streams.generator(0, "bootstrap", 0), RESAMPLES), metric)
    low, high = np.quantile(resampled, _LEVELS) if len(sums) > 1 else (np.nan, np.nan)
    value = float(_difference(sums.sum(axis=0)[None], metric)[0])
    better_for = float(np.mean(sums[:, 1] < sums[:, 0]))
    return PairedDifference(metric, value, float(low), float(high), len(sums), better_for)


def _difference(sums: NDArray[np.float64], metric: str) -> NDArray[np.float64]:
    """Return the differences of figures, float64 (n,), of sums float64 (n, 3): first, second, targets."""
    first, second = sums[:, 0] / sums[:, 2], sums[:, 1] / sums[:, 2]
    return second - first if metric == "error" else np.exp(second) - np.exp(first)
