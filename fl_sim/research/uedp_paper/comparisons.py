"""Compare the runs of a figure user by user: intervals, and differences from its reference, by paired bootstrap.

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

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fl_sim.reporting.bootstrap import resampled_sums
from fl_sim.research.uedp_paper.figure_records import Comparison, CurveRecord, Estimate, PointRecord
from fl_sim.research.uedp_paper.figures import TrainingFigure
from fl_sim.storage.run_folder import ResultsError, RunFolder, numbers_of
from fl_sim.strategies.primitives import streams

RESAMPLES = 2000
_LEVELS = (0.025, 0.975)

FloatArray = NDArray[np.float64]
Function = Callable[[FloatArray], FloatArray]

_MEASURES: dict[str, tuple[str, Function]] = {"perplexity": ("nats", np.exp), "error": ("wrong", np.asarray)}
"""Of each metric: the sums over users, and the function of the ratio of sums that makes it."""

Predictions = tuple[tuple[int, ...], ...]
Runs = Mapping[tuple[str, float | None, int], RunFolder]
"""The folders of a panel's runs, by curve, joint ε and seed."""

_DIGITS = 3  # of a user's sum in the record


def add_comparisons(
    figure: TrainingFigure, curves: Sequence[CurveRecord], runs: Runs
) -> tuple[list[CurveRecord], Predictions]:
    """Return a panel's curves with their comparisons, and each held-out user's prediction targets, a list per seed.

    Raises:
        ResultsError: a run is missing, or was measured on other users than those of the same seed.
    """
    column, function = _MEASURES[figure.metric]
    keys = [(curve.name, point.x) for curve in curves for point in curve.points]
    sums = {(name, x, seed): _sums(runs, name, x, seed) for name, x in keys for seed in figure.seeds}
    predictions = tuple(_predictions(sums, keys, seed) for seed in figure.seeds)
    above = [np.stack([sums[(*key, seed)][column] for key in keys]) for seed in figure.seeds]
    below = [np.array(counts, dtype=np.float64) for counts in predictions]
    values = dict(zip(keys, mean_figures(above, below, function), strict=True))
    drawn = resampled_figures(above, below, streams.generator(figure.seeds[0], "paired bootstrap"), function)
    resampled = dict(zip(keys, drawn.T, strict=True))

    def compared(curve: CurveRecord, point: PointRecord) -> PointRecord:
        key, against = (curve.name, point.x), (str(figure.reference), point.x)
        difference = None
        if curve.budget is not None and key != against and against in values:
            difference = estimate(resampled[key] - resampled[against], values[key] - values[against])
        of_key = [sums[(*key, seed)] for seed in figure.seeds]
        right = [1 - s["wrong"].sum() / s["predictions"].sum() for s in of_key]
        comparison = Comparison(
            utility=estimate(resampled[key], values[key]),
            difference=difference,
            sums=tuple(tuple(s[column].round(_DIGITS).tolist()) for s in of_key),
            accuracy=float(np.mean(right)),
            initial_accuracy=_initial_accuracy([runs[(*key, seed)] for seed in figure.seeds]),
        )
        return point.model_copy(update={"comparison": comparison})

    added = [
        curve.model_copy(update={"points": tuple(compared(curve, point) for point in curve.points)}) for curve in curves
    ]
    return added, predictions


def _sums(runs: Runs, name: str, x: float | None, seed: int) -> dict[str, FloatArray]:
    folder = runs.get((name, x, seed))
    sums = None if folder is None else folder.held_out_users
    if sums is None:
        raise ResultsError(f"the run of curve {name}, seed {seed}, is missing, or has no figures by held-out user")
    return {column: np.array(values, dtype=np.float64) for column, values in sums.items()}


def _predictions(
    sums: Mapping[tuple[str, float | None, int], Mapping[str, FloatArray]],
    keys: Sequence[tuple[str, float | None]],
    seed: int,
) -> tuple[int, ...]:
    """Return the prediction targets of a seed's held-out users, which are the same for all runs."""
    first = sums[(*keys[0], seed)]["predictions"]
    for name, x in keys:
        if not np.array_equal(sums[(name, x, seed)]["predictions"], first):
            raise ResultsError(f"curve {name}, seed {seed}: was measured on other held-out users than {keys[0][0]}")
    return tuple(first.astype(int).tolist())


def _initial_accuracy(folders: Sequence[RunFolder]) -> float:
    results = [numbers_of(folder.result or {}) for folder in folders]
    return float(
        np.mean([r["initial_accuracy"] if "initial_accuracy" in r else 1 - r["initial_error"] for r in results])
    )


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

    ``above`` and ``below`` are as for :func:`mean_figures`, ``rng`` draws seeds and users.
    """
    seeds = len(above)
    rows = np.arange(resamples)
    chosen = rng.integers(seeds, size=(resamples, seeds))
    total = np.zeros((resamples, len(above[0])))
    for place in range(seeds):  # every place has resamples of its own, also where it draws the same seed
        of_seeds = np.stack([_figures(a, b, rng, function, resamples) for a, b in zip(above, below, strict=True)])
        total += of_seeds[chosen[:, place], rows]
    return total / seeds


def estimate(resampled: FloatArray, value: float) -> Estimate:
    """Return a figure with its standard error and interval, from the figure in every resample, float64 (resamples,)."""
    low, high = np.quantile(resampled, _LEVELS)
    error = float(resampled.std(ddof=1))
    return Estimate(value=float(value), standard_error=error, low=float(low), high=float(high))


def _figures(
    above: FloatArray, below: FloatArray, rng: np.random.Generator, function: Function, resamples: int
) -> FloatArray:
    """Return the figures of one seed in resamples of its users, float64 (resamples, methods)."""
    sums = resampled_sums(np.vstack([above, below]).T, rng, resamples)
    return function(sums[:, :-1] / sums[:, -1:])
