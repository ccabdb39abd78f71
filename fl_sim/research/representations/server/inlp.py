"""Iterative null-space projection (Ravfogel et al. 2020): remove what linear classifiers find, again and again.

In each round a linear classifier learns the private attribute from what is left; what it looked at (the row space of
its weights) is projected away. After n rounds P is the orthogonal projection on the intersection of all null spaces,
I − (projection on the sum of the row spaces) (Ben-Israel 2015). Only linear traces go, and no ε follows.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from fl_sim.research.representations.server.solvers import unfinished_is_fine

Floats = NDArray[np.float64]

_MOST_ROWS = 10_000  # of a linear classifier's training; enough for a direction, and quick


def row_space_projection(weights: Floats) -> Floats:
    """The orthogonal projection (k, k) on the rows of ``weights`` (m, k)."""
    basis = scipy.linalg.orth(weights.T)
    return np.asarray(basis @ basis.T)


def null_space_projection(
    vectors: Floats, private: NDArray[np.int64], rounds: int, rng: np.random.Generator
) -> tuple[Floats, list[float]]:
    """P (k, k), symmetric and idempotent, of rank k − (directions removed), and what each round's classifier got right.

    Args:
        vectors: (n, k). private: one attribute, 0 or 1, (n,).
        rounds: how many classifiers. rng: draws the rows that each of them learns from.
    """
    from sklearn.linear_model import LogisticRegression

    size = vectors.shape[1]
    removed = np.zeros((0, size))
    projection = np.eye(size)
    found = []
    for _ in range(rounds):
        rows = rng.permutation(len(vectors))[:_MOST_ROWS]
        left = vectors[rows] @ projection
        with unfinished_is_fine():
            classifier = LogisticRegression(max_iter=200).fit(left, private[rows])
        found.append(float(classifier.score(left, private[rows])))
        # The part of the weights that is in what was removed before is the solver's rounding.
        removed = np.vstack([removed, classifier.coef_ @ projection])
        projection = np.eye(size) - row_space_projection(removed)
    return projection, found
