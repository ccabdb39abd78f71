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

Estimator = TypeVar("Estimator")


def fit_quietly(estimator: Estimator, inputs: NDArray[Any], labels: NDArray[np.int64]) -> Estimator:
    """Return ``estimator`` fitted, without warnings that its solver has not converged.

    Online coding fits some classifiers on a handful of examples, and a null space needs a direction, not an optimum.

    Args:
        estimator: of scikit-learn.
        inputs: float (n, k).
        labels: int64 (n,).
    """
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimator.fit(inputs, labels)  # type: ignore[attr-defined]
    return estimator
