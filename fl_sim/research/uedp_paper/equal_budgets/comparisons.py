"""Compare the runs of a figure user by user: intervals, and differences from its reference.

>>> perplexities(np.array([0.0, 1.0])).round(3).tolist()
[1.0, 2.718]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fl_sim.config import ConfigError
from fl_sim.research.uedp_paper.equal_budgets.paired_bootstrap import (
    Function,
    Resampled,
    estimate,
    mean_figures,
    resampled_figures,
)
from fl_sim.research.uedp_paper.figure_records import Comparison, CurveRecord, Estimate, PointRecord
from fl_sim.research.uedp_paper.figures import TrainingFigure
from fl_sim.storage.run_folder import ResultsError, RunFolder
from fl_sim.strategies.primitives import streams

Predictions = tuple[tuple[int, ...], ...]
Runs = Mapping[tuple[str, float | None, int], RunFolder]
"""The folders of a panel's runs, by curve, joint ε and seed."""

_DIGITS = 3  # of a user's sum in the record


def perplexities(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the perplexities of losses in nats per token."""
    return np.exp(losses)


def add_comparisons(
    figure: TrainingFigure, curves: Sequence[CurveRecord], runs: Runs
) -> tuple[list[CurveRecord], Predictions]:
    """Return the curves with their comparisons, and each held-out user's prediction targets, a list per seed.

    Args:
        figure: with x = "joint".
        curves: of one panel.
        runs: all runs of the panel.

    Raises:
        ConfigError: the metric is not one of sums over users.
        ResultsError: a run is missing, or was measured on other users than those of the same seed.
    """
    column, function = _measure(figure.metric)
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
            utility=_record(estimate(resampled[key], values[key])),
            difference=None if difference is None else _record(difference),
            sums=tuple(tuple(s[column].round(_DIGITS).tolist()) for s in of_key),
            accuracy=float(np.mean(right)),
            initial_accuracy=_initial_accuracy([runs[(*key, seed)] for seed in figure.seeds]),
        )
        return point.model_copy(update={"comparison": comparison})

    added = [
        curve.model_copy(update={"points": tuple(compared(curve, point) for point in curve.points)}) for curve in curves
    ]
    return added, predictions


def _measure(metric: str) -> tuple[str, Function]:
    """Return the column of sums and the function of the ratio that make a metric."""
    measures: dict[str, tuple[str, Function]] = {"perplexity": ("nats", perplexities), "error": ("wrong", np.asarray)}
    if metric not in measures:
        raise ConfigError(f"metric is '{metric}'; allowed with x = 'joint': {', '.join(measures)}")
    return measures[metric]


def _sums(runs: Runs, name: str, x: float | None, seed: int) -> dict[str, NDArray[np.float64]]:
    folder = runs.get((name, x, seed))
    sums = None if folder is None else folder.held_out_users
    if sums is None:
        raise ResultsError(f"the run of curve {name}, seed {seed}, is missing, or has no figures by held-out user")
    return {column: np.array(values, dtype=np.float64) for column, values in sums.items()}


def _predictions(
    sums: Mapping[tuple[str, float | None, int], Mapping[str, NDArray[np.float64]]],
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
    results = [folder.result or {} for folder in folders]
    return float(
        np.mean([r["initial_accuracy"] if "initial_accuracy" in r else 1 - float(r["initial_error"]) for r in results])
    )


def _record(figure: Resampled) -> Estimate:
    return Estimate(value=figure.value, standard_error=figure.standard_error, low=figure.low, high=figure.high)
