"""Intervals of ratios: they resample users, cover the truth as often as they say, and are undefined where they must."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fl_sim.reporting import bootstrap
from fl_sim.reporting.bootstrap import intervals, resampled_sums


def test_a_resample_has_as_many_users_as_there_are() -> None:
    sums = np.stack([np.ones(7), np.arange(7.0)], axis=1)
    drawn = resampled_sums(sums, np.random.default_rng(0), 500)
    assert drawn.shape == (500, 2)
    assert (drawn[:, 0] == 7).all()
    assert drawn[:, 1].mean() == pytest.approx(21, abs=1)
    assert len(np.unique(drawn[:, 1])) > 20


def test_memory_does_not_change_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = np.random.default_rng(1).random((9, 4))
    whole = resampled_sums(sums, np.random.default_rng(0), 40)
    monkeypatch.setattr(bootstrap, "_DRAWS_AT_ONCE", 25)
    np.testing.assert_allclose(resampled_sums(sums, np.random.default_rng(0), 40), whole)


def test_intervals_cover_the_truth() -> None:
    """Users differ from each other, so their sentences together say less than as many independent ones."""
    rng = np.random.default_rng(2)
    hits = 0
    for _ in range(200):
        sizes = rng.integers(1, 20, size=60)
        losses = rng.normal(3.0, 0.5, size=60) * sizes
        (figure,) = intervals(np.stack([losses, sizes], axis=1).astype(float), rng, 400)
        hits += figure.low <= 3.0 <= figure.high
    assert 180 <= hits <= 198  # 95 % of 200, give or take


def test_an_increasing_function_maps_the_interval() -> None:
    (figure,) = intervals(np.array([[1.0, 1], [2, 1], [4, 1]]), np.random.default_rng(0))
    mapped = figure.mapped(math.exp)
    assert (mapped.value, mapped.low, mapped.high) == tuple(map(math.exp, (figure.value, figure.low, figure.high)))
    assert mapped.record() == {"value": mapped.value, "low": mapped.low, "high": mapped.high}


def test_one_user_has_no_interval() -> None:
    (figure,) = intervals(np.array([[3.0, 2.0]]), np.random.default_rng(0))
    assert figure.value == 1.5
    assert math.isnan(figure.low)
    assert math.isnan(figure.high)


def test_resamples_without_a_denominator_are_left_out() -> None:
    rare, never = intervals(np.array([[2.0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]), np.random.default_rng(0))
    assert (rare.value, rare.low, rare.high) == (2, 2, 2)
    assert math.isnan(never.value)
    assert math.isnan(never.low)
