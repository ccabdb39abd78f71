"""Iterative null-space projection (Ravfogel et al. 2020): remove the directions that linear classifiers find.

In each round a linear classifier learns the private attribute from the projected vectors; the row space of its weights
is then projected away. After n rounds P is the orthogonal projection on the intersection of all null spaces,
I − (projection on the sum of the row spaces) (Ben-Israel 2015). It removes linear traces only, and gives no ε.

>>> row_space_projection(np.array([[0.0, 2.0]])).tolist()
[[0.0, 0.0], [0.0, 1.0]]
"""

from __future__ import annotations

import warnings
from typing import Any, TypeVar

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from fl_sim.stop_signals import raise_missed_stop

Estimator = TypeVar("Estimator")


def fit_quietly(estimator: Estimator, inputs: NDArray[Any], labels: NDArray[np.int64]) -> Estimator:
    """Return an estimator of scikit-learn fitted, without warnings that its solver has not converged.

    Online coding fits some classifiers on a handful of examples, and a null space needs a direction, not an optimum.
    A neural network of scikit-learn takes Ctrl-C for the end of its training; here a stop ends the command.
    """
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimator.fit(inputs, labels)  # type: ignore[attr-defined]
    raise_missed_stop()
    return estimator


Floats = NDArray[np.float64]

_MOST_ROWS = 10_000  # training rows of a linear classifier: enough for a direction, and quick


def row_space_projection(weights: Floats) -> Floats:
    """Return the orthogonal projection, float64 (k, k), on the rows of ``weights``, float64 (m, k)."""
    basis = scipy.linalg.orth(weights.T)
    return np.asarray(basis @ basis.T)


def null_space_projection(vectors: Floats, private: NDArray[np.int64], rounds: int, rng: np.random.Generator) -> Floats:
    """Return P, float64 (k, k), symmetric and idempotent, of rank k − (directions removed).

    ``vectors`` are float64 (n, k), ``private`` is one attribute, 0 or 1, int64 (n,); ``rng`` draws the training rows of
    each of the ``rounds`` classifiers.
    """
    from sklearn.linear_model import LogisticRegression

    size = vectors.shape[1]
    removed = np.zeros((0, size))
    projection = np.eye(size)
    for _ in range(rounds):
        rows = rng.permutation(len(vectors))[:_MOST_ROWS]
        projected = vectors[rows] @ projection
        classifier = fit_quietly(LogisticRegression(max_iter=200), projected, private[rows])
        # The part of the weights in directions that were removed before is the solver's rounding.
        removed = np.vstack([removed, classifier.coef_ @ projection])
        projection = np.eye(size) - row_space_projection(removed)
    return projection
