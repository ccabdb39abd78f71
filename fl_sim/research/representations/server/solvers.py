"""Fitting of scikit-learn's classifiers where an approximate solution suffices.

>>> from sklearn.linear_model import LogisticRegression
>>> inputs, labels = np.array([[-1.0], [1.0]]), np.array([0, 1])
>>> fit_quietly(LogisticRegression(max_iter=1), inputs, labels).predict(inputs).tolist()
[0, 1]
"""

from __future__ import annotations

import warnings
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fl_sim.stop_signals import raise_missed_stop

Estimator = TypeVar("Estimator")


def fit_quietly(estimator: Estimator, inputs: NDArray[Any], labels: NDArray[np.int64]) -> Estimator:
    """Return ``estimator`` fitted, without warnings that its solver has not converged.

    Online coding fits some classifiers on a handful of examples, and a null space needs a direction, not an optimum.
    A neural network of scikit-learn takes Ctrl-C for the end of its training; here a stop ends the command.

    Args:
        estimator: of scikit-learn.
        inputs: float (n, k).
        labels: int64 (n,).
    """
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimator.fit(inputs, labels)  # type: ignore[attr-defined]
    raise_missed_stop()
    return estimator
