"""Accuracy, gaps between groups, and accuracy of each group; rates are shares of 1, not percent.

>>> labels, group = np.array([1, 1, 1, 1, 0, 0]), np.array([1, 1, 0, 0, 1, 0])
>>> predicted = np.array([1, 1, 1, 0, 0, 0])
>>> tpr_gap(predicted, labels, group)
0.5
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


def accuracy(predicted: Integers, labels: Integers) -> float:
    """Return the share of correct predictions; nan for no examples.

    Args:
        predicted: int64 (n,).
        labels: int64 (n,).
    """
    return float((predicted == labels).mean()) if len(labels) else math.nan


def tpr_gap(predicted: Integers, labels: Integers, group: Integers, positive: int = 1) -> float:
    """Return P(ŷ = c | y = c, s = 1) − P(ŷ = c | y = c, s = 0); nan if a group has no example of class c.

    Args:
        predicted: ŷ, int64 (n,).
        labels: y, int64 (n,).
        group: s, 0 or 1, int64 (n,).
        positive: the class c.
    """
    return _rate(predicted, labels, group == 1, positive) - _rate(predicted, labels, group == 0, positive)


def grms(predicted: Integers, labels: Integers, group: Integers) -> float:
    """Return the root mean square of the TPR-gaps of all classes (FEDERATE, equation 5).

    Classes that a group lacks are left out; nan if none remains.

    Args:
        predicted: ŷ, int64 (n,).
        labels: y, int64 (n,).
        group: s, 0 or 1, int64 (n,).
    """
    gaps = np.array([tpr_gap(predicted, labels, group, int(c)) for c in np.unique(labels)])
    known = gaps[~np.isnan(gaps)]
    return float(np.sqrt(np.square(known).mean())) if len(known) else math.nan


def group_accuracies(predicted: Integers, labels: Integers, group: Integers) -> dict[str, float]:
    """Return the accuracy ``without`` and ``with`` the attribute, and the share of examples with it.

    Args:
        predicted: int64 (n,).
        labels: int64 (n,).
        group: 1 with the attribute, else 0, int64 (n,).
    """
    return {
        "share_with": float((group == 1).mean()) if len(group) else math.nan,
        "accuracy_without": accuracy(predicted[group == 0], labels[group == 0]),
        "accuracy_with": accuracy(predicted[group == 1], labels[group == 1]),
    }


def f1(predicted: NDArray[np.int64], truth: NDArray[np.int64]) -> float:
    """Return the micro-averaged F1 of the value 1; 0 if it is neither present nor predicted.

    Args:
        predicted: 0 or 1, int64 (n, p).
        truth: 0 or 1, int64 (n, p).
    """
    hits = int(((predicted == 1) & (truth == 1)).sum())
    wrong = int((predicted != truth).sum())
    return 2 * hits / (2 * hits + wrong) if 2 * hits + wrong else 0.0


def _rate(predicted: Integers, labels: Integers, member: NDArray[np.bool_], positive: int) -> float:
    """Return the share of correct predictions among members of the class ``positive``; nan for none."""
    counted = member & (labels == positive)
    return float((predicted[counted] == positive).mean()) if counted.any() else math.nan
