"""Differences between two runs on the same held-out users, with 95 % intervals by paired bootstrap over the users.

Two runs that were measured on the same sentences differ by less than each one's interval suggests: what makes a user
hard to predict is common to both. So users are resampled, and the difference is taken within each resample.

>>> first = {"predictions": [4.0, 2.0, 6.0], "nats": [8.0, 5.0, 12.0], "wrong": [3.0, 1.0, 4.0]}
>>> second = first | {"nats": [7.0, 4.0, 11.0]}
>>> found = paired_difference(first, second, "error")
>>> found["value"], found["users"], found["better_for"]
(0.0, 3, 0.0)
>>> paired_difference(first, second, "perplexity")["high"] < 0
True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_sim.experiments.held_out_users.bootstrap import RESAMPLES, resampled_sums
from fl_sim.strategies.primitives import streams

METHOD = "paired percentile bootstrap over held-out users, 95 %"
"""What the intervals are, for records and reports."""

_LEVELS = (0.025, 0.975)

Sums = Mapping[str, Sequence[float]]


def are_same_users(first: Sums, second: Sums) -> bool:
    """Return whether two evaluations had as many prediction targets of every user, as those of one text and tokenizer.

    Args:
        first, second: as :func:`~fl_sim.experiments.held_out_users.user_utility.sums_by_user` returns them, of runs on
            one corpus.
    """
    return list(first["predictions"]) == list(second["predictions"])


def paired_difference(first: Sums, second: Sums, metric: str) -> dict[str, Any]:
    """Return the figure of the second run less that of the first, below 0 if the second is better.

    Args:
        first, second: sums by held-out user, of the same users.
        metric: "perplexity", per token, or "error".

    Returns:
        ``value``, ``low`` and ``high``; ``users``, how many; ``better_for``, the share of users for whom the second
        run is better.
    """
    wanted = "wrong" if metric == "error" else "nats"
    sums = np.array([first[wanted], second[wanted], first["predictions"]], dtype=float).T
    drawn = resampled_sums(sums, streams.generator(0, "bootstrap", 0), RESAMPLES)
    resampled = _difference(drawn, metric)
    low, high = np.quantile(resampled, _LEVELS) if len(sums) > 1 else (np.nan, np.nan)
    return {
        "metric": metric,
        "value": float(_difference(sums.sum(axis=0)[None], metric)[0]),
        "low": float(low),
        "high": float(high),
        "users": len(sums),
        "better_for": float(np.mean(sums[:, 1] < sums[:, 0])),
        "interval": METHOD,
    }


def _difference(sums: NDArray[np.float64], metric: str) -> NDArray[np.float64]:
    """Return the differences of figures, float64 (n,), of sums float64 (n, 3): first, second, targets."""
    first, second = sums[:, 0] / sums[:, 2], sums[:, 1] / sums[:, 2]
    return second - first if metric == "error" else np.exp(second) - np.exp(first)
