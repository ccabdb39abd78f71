"""Sampling errors of gaps, intervals over seeds, and the rule of agreement."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fl_sim.research.representations.server.group_metrics import grms, sampling_errors, tpr_gap
from fl_sim.research.representations.studies.agreement import Published, estimate, reproduces


def drawn(rng: np.random.Generator, rows: int = 4000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predictions, labels and groups of a population whose rates differ between groups and classes."""
    group = (rng.random(rows) < 0.3).astype(np.int64)
    labels = (rng.random(rows) < 0.25 - 0.15 * group).astype(np.int64)
    right = rng.random(rows) < np.where(labels == 1, 0.6 + 0.1 * group, 0.9)
    return np.where(right, labels, 1 - labels), labels, group


@pytest.mark.nightly
def test_the_bootstrap_tells_how_far_gaps_move_between_test_sets() -> None:
    """Its reference is the deviation over 800 test sets that are drawn from the population itself."""
    rng = np.random.default_rng(0)
    sets = [drawn(rng) for _ in range(800)]
    errors = [sampling_errors(*one, rng) for one in sets[:20]]
    for number, metric in enumerate((tpr_gap, grms)):
        true = np.std([metric(*one) for one in sets])
        told = np.mean([error[number] for error in errors])
        assert abs(told / true - 1) < 0.08, metric


def test_more_rows_of_the_small_group_halve_the_error() -> None:
    rng = np.random.default_rng(1)
    small, large = sampling_errors(*drawn(rng, 4000), rng), sampling_errors(*drawn(rng, 16000), rng)
    assert large.tpr_gap == pytest.approx(small.tpr_gap / 2, rel=0.2)


def test_a_group_without_rows_of_a_class_has_no_error_of_its_gap() -> None:
    labels, group = np.array([1, 1, 0, 0]), np.array([1, 1, 0, 0])
    errors = sampling_errors(labels, labels, group, np.random.default_rng(0))
    assert math.isnan(errors.tpr_gap)
    nobody = sampling_errors(labels, labels, np.zeros(4, dtype=np.int64), np.random.default_rng(0))
    assert math.isnan(nobody.tpr_gap)
    assert math.isnan(nobody.grms)


@pytest.mark.nightly
@pytest.mark.parametrize("seeds", [2, 5, 10])
def test_95_percent_of_the_intervals_hold_the_true_mean(seeds: int) -> None:
    rng = np.random.default_rng(2)
    runs = 4000
    held = 0
    for _ in range(runs):
        ours = estimate(rng.normal(3.0, 2.0, seeds).tolist())
        held += abs(ours["mean"] - 3.0) <= ours["half_width"]
    assert abs(held / runs - 0.95) < 3.5 * math.sqrt(0.95 * 0.05 / runs)


def test_the_interval_of_a_size_does_not_hold_a_true_gap_of_zero() -> None:
    rng = np.random.default_rng(0)
    sizes = [estimate(np.abs(rng.normal(0.0, 3.0, 10)).tolist(), [3.0] * 10) for _ in range(1000)]
    assert np.mean([size["mean"] for size in sizes]) == pytest.approx(0.8 * 3.0, abs=0.05)
    assert 0.1 < np.mean([size["mean"] <= size["half_width"] for size in sizes]) < 0.25


def test_a_small_deviation_by_chance_does_not_shrink_the_interval_below_the_sampling_error() -> None:
    assert estimate([4.0, 4.0], [3.0, 3.0])["half_width"] == pytest.approx(1.96 * 3 / math.sqrt(2), abs=1e-3)
    assert estimate([4.0], [3.0])["half_width"] == pytest.approx(1.96 * 3, abs=1e-2)
    assert estimate([4.0])["half_width"] == 0
    assert estimate([4.0, 4.5], [math.nan, math.nan])["sampling_error"] is None


def test_agreement_is_about_intervals_of_means_not_sums_of_deviations() -> None:
    """INLP's published gap, 3.91 ± 2.43, beside ours of ten seeds, 9.2 ± 4.5."""
    ours = estimate([9.2 + 4.5 * step for step in (-1.5, -1.1, -0.8, -0.3, -0.1, 0.1, 0.3, 0.8, 1.1, 1.5)])
    inlp = Published(3.91, 2.43)
    assert not reproduces(ours, inlp)
    assert reproduces(ours, Published(6.5, 2.43)), "in our interval"
    assert reproduces(estimate([5.9, 6.0, 6.1]), Published(3.91, 2.43)), "ours in the publication's: ± 3.0"
    assert not reproduces(estimate([7.4, 7.5, 7.6]), Published(3.91, 2.43))
    assert reproduces(estimate([25.4, 25.4]), Published(25.0, rounding=0.5)), "a published figure is rounded"
