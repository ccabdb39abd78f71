"""What a classifier's answers are worth, and to whom: accuracy, gaps between groups, accuracy of each group.

Rates are shares of 1, not percent.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


def accuracy(predicted: Integers, labels: Integers) -> float:
    """The share of right answers; nan for none."""
    return float((predicted == labels).mean()) if len(labels) else math.nan


def tpr_gap(predicted: Integers, labels: Integers, group: Integers, positive: int = 1) -> float:
    """P(ŷ = c | y = c, s = 1) − P(ŷ = c | y = c, s = 0) for the class c = ``positive``; nan where a group lacks it."""
    return _rate(predicted, labels, group == 1, positive) - _rate(predicted, labels, group == 0, positive)


def grms(predicted: Integers, labels: Integers, group: Integers) -> float:
    """The root of the mean over classes of squared TPR-gaps (FEDERATE, equation 5); classes that a group lacks are
    left out, nan if all are."""
    gaps = np.array([tpr_gap(predicted, labels, group, int(c)) for c in np.unique(labels)])
    known = gaps[~np.isnan(gaps)]
    return float(np.sqrt(np.square(known).mean())) if len(known) else math.nan


def group_accuracies(predicted: Integers, labels: Integers, group: Integers) -> dict[str, float]:
    """``without`` and ``with`` the attribute: accuracy of either subgroup, and each's share of all."""
    return {
        "share_with": float((group == 1).mean()) if len(group) else math.nan,
        "accuracy_without": accuracy(predicted[group == 0], labels[group == 0]),
        "accuracy_with": accuracy(predicted[group == 1], labels[group == 1]),
    }


def f1(predicted: NDArray[np.int64], truth: NDArray[np.int64]) -> float:
    """F1 of "present" over all entries together (micro-averaged); 0 where nothing is present or predicted."""
    hits = int(((predicted == 1) & (truth == 1)).sum())
    wrong = int((predicted != truth).sum())
    return 2 * hits / (2 * hits + wrong) if 2 * hits + wrong else 0.0


def _rate(predicted: Integers, labels: Integers, member: NDArray[np.bool_], positive: int) -> float:
    asked = member & (labels == positive)
    return float((predicted[asked] == positive).mean()) if asked.any() else math.nan
