"""Accuracy, gaps between groups with their sampling errors, and accuracy of each group; rates are shares of 1.

Predictions ŷ, labels y and groups s (0 or 1) are int64 (n,). A gap compares rates of small groups (of Adult's test
rows, some 340 are women with a high income), so it depends on who is in the test set. Its error is the deviation over
bootstrap draws of each group's rows. A draw needs no rows: of a group of n, the counts of every class, predicted right
and wrong, are multinomial.

>>> labels, group = np.repeat([1, 0, 1, 0], 50), np.repeat([1, 0], 100)
>>> predicted = np.where(np.arange(200) % 5 == 0, 1 - labels, labels)  # right in 80 %, of every class and group
>>> errors = sampling_errors(predicted, labels, group, np.random.default_rng(0))
>>> tpr_gap(predicted, labels, group), 0.07 < errors.tpr_gap < 0.09  # sqrt(2 * 0.8 * 0.2 / 50) is 0.08
(0.0, True)
"""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


def accuracy(predicted: Integers, labels: Integers) -> float:
    """Return the share of correct predictions; nan for no examples."""
    return float((predicted == labels).mean()) if len(labels) else math.nan


def tpr_gap(predicted: Integers, labels: Integers, group: Integers, positive: int = 1) -> float:
    """Return P(ŷ = c | y = c, s = 1) − P(ŷ = c | y = c, s = 0), c the class ``positive``; nan if a group lacks it."""
    return _rate(predicted, labels, group == 1, positive) - _rate(predicted, labels, group == 0, positive)


def grms(predicted: Integers, labels: Integers, group: Integers) -> float:
    """Return the root mean square of the TPR-gaps of all classes (FEDERATE, equation 5).

    Classes that a group lacks are left out; nan if none remains.
    """
    gaps = np.array([tpr_gap(predicted, labels, group, int(c)) for c in np.unique(labels)])
    known = gaps[~np.isnan(gaps)]
    return float(np.sqrt(np.square(known).mean())) if len(known) else math.nan


class GroupAccuracies(TypedDict):
    share_with: float
    accuracy_without: float
    accuracy_with: float


def group_accuracies(predicted: Integers, labels: Integers, group: Integers) -> GroupAccuracies:
    """Return the accuracy ``without`` and ``with`` the attribute (1 in ``group``), and the share with it."""
    return {
        "share_with": float((group == 1).mean()) if len(group) else math.nan,
        "accuracy_without": accuracy(predicted[group == 0], labels[group == 0]),
        "accuracy_with": accuracy(predicted[group == 1], labels[group == 1]),
    }


def f1(predicted: NDArray[np.int64], truth: NDArray[np.int64]) -> float:
    """Return the micro-averaged F1 of the value 1, of int64 (n, p) each; 0 if it is neither present nor predicted."""
    hits = int(((predicted == 1) & (truth == 1)).sum())
    wrong = int((predicted != truth).sum())
    return 2 * hits / (2 * hits + wrong) if 2 * hits + wrong else 0.0


def _rate(predicted: Integers, labels: Integers, member: NDArray[np.bool_], positive: int) -> float:
    """Return the share of correct predictions among members of the class ``positive``; nan for none."""
    counted = member & (labels == positive)
    return float((predicted[counted] == positive).mean()) if counted.any() else math.nan


Floats = NDArray[np.float64]

DRAWS = 2000
"""A deviation over so many draws is off by 1.6 %."""


class SamplingErrors(NamedTuple):
    """Standard errors of the TPR-gap of the positive class and of GRMS, shares of 1; nan where a rate has no rows."""

    tpr_gap: float
    grms: float


def share_error(share: float, rows: int) -> float:
    """Return the standard error of a share of so many rows, such as an accuracy."""
    return math.sqrt(share * (1 - share) / rows)


def sampling_errors(predicted: Integers, labels: Integers, group: Integers, rng: np.random.Generator) -> SamplingErrors:
    """Return the standard errors of :func:`tpr_gap` and :func:`grms`; ``rng`` draws the bootstrap."""
    classes = np.unique(labels)
    rates = [_drawn_rates(predicted[group == value], labels[group == value], classes, rng) for value in (0, 1)]
    gaps = rates[1] - rates[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the mean of no gap is nan
        grms = np.sqrt(np.nanmean(np.square(gaps), axis=1))
        own = gaps[:, classes == 1]
        return SamplingErrors(float(np.nanstd(own)) if own.size else float("nan"), float(np.nanstd(grms)))


def _drawn_rates(predicted: Integers, labels: Integers, classes: Integers, rng: np.random.Generator) -> Floats:
    """Return the share of each class that is predicted right, in each draw of a group's rows, float64 (draws, C)."""
    right = predicted == labels
    cells = np.array([[int((right[labels == c] == hit).sum()) for hit in (False, True)] for c in classes])
    if not len(labels):
        return np.full((DRAWS, len(classes)), np.nan)
    drawn = rng.multinomial(len(labels), cells.ravel() / len(labels), size=DRAWS).reshape(DRAWS, len(classes), 2)
    sizes = drawn.sum(axis=2)
    return np.divide(drawn[:, :, 1], sizes, out=np.full(sizes.shape, np.nan), where=sizes > 0)
