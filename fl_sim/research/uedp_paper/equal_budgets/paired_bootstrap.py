"""Paired bootstrap over held-out users and seeds: intervals of methods and of their differences.

All methods of a seed are measured on the same held-out users, so a difference is taken user by user. A resample draws
as many seeds as there are, with replacement, and for each of them as many of its users, with replacement; a method's
figure is the mean over the drawn seeds. So an interval has the sampling error of the held-out users and the spread of
sampling, noise and split over the seeds, as far as so few seeds show it.

>>> wrong = [np.array([[1.0, 0.0], [2.0, 1.0]]), np.array([[1.0, 1.0], [3.0, 2.0]])]  # two seeds of two users
>>> of = [np.array([4.0, 4.0]), np.array([4.0, 4.0])]
>>> figures = resampled_figures(wrong, of, np.random.default_rng(0), resamples=100)
>>> figures.shape, estimate(figures[:, 1] - figures[:, 0], 0.3125).low > 0
((100, 2), True)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl_sim.reporting.bootstrap import resampled_sums

RESAMPLES = 2000
_LEVELS = (0.025, 0.975)

FloatArray = NDArray[np.float64]
Function = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True)
class Resampled:
    """A figure with its standard error and 95 % interval over the resamples."""

    value: float
    standard_error: float
    low: float
    high: float


def mean_figures(
    above: Sequence[FloatArray], below: Sequence[FloatArray], function: Function = np.asarray
) -> FloatArray:
    """Return every method's figure, the mean over the seeds, float64 (methods,).

    Args:
        above: for each seed the numerators by method and user, float64 (methods, users).
        below: for each seed the denominators by user, float64 (users,).
        function: of the ratio of sums.
    """
    return np.mean([function(a.sum(axis=1) / b.sum()) for a, b in zip(above, below, strict=True)], axis=0)


def resampled_figures(
    above: Sequence[FloatArray],
    below: Sequence[FloatArray],
    rng: np.random.Generator,
    function: Function = np.asarray,
    resamples: int = RESAMPLES,
) -> FloatArray:
    """Return every method's figure in every resample, float64 (resamples, methods).

    Args:
        above: as for :func:`mean_figures`; the seeds may have different numbers of users.
        below: likewise.
        rng: draws seeds and users.
        function: of the ratio of sums.
        resamples: how many there are.
    """
    seeds = len(above)
    rows = np.arange(resamples)
    chosen = rng.integers(seeds, size=(resamples, seeds))
    total = np.zeros((resamples, len(above[0])))
    for place in range(seeds):  # every place has resamples of its own, also where it draws the same seed
        of_seeds = np.stack([_figures(a, b, rng, function, resamples) for a, b in zip(above, below, strict=True)])
        total += of_seeds[chosen[:, place], rows]
    return total / seeds


def estimate(resampled: FloatArray, value: float) -> Resampled:
    """Return a figure with its standard error and interval.

    Args:
        resampled: the figure in every resample, float64 (resamples,).
        value: the figure itself.
    """
    low, high = np.quantile(resampled, _LEVELS)
    return Resampled(float(value), float(resampled.std(ddof=1)), float(low), float(high))


def _figures(
    above: FloatArray, below: FloatArray, rng: np.random.Generator, function: Function, resamples: int
) -> FloatArray:
    """Return the figures of one seed in resamples of its users, float64 (resamples, methods)."""
    sums = resampled_sums(np.vstack([above, below]).T, rng, resamples)
    return function(sums[:, :-1] / sums[:, -1:])
