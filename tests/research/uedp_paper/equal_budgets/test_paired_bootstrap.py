"""Paired bootstrap: standard errors against those of the same samples computed another way."""

from __future__ import annotations

import numpy as np
import pytest

from fl_sim.research.uedp_paper.equal_budgets.paired_bootstrap import estimate, mean_figures, resampled_figures

USERS = 400


def test_means_weigh_seeds_equally_and_users_by_their_targets() -> None:
    above = [np.array([[1.0, 3.0]]), np.array([[2.0, 2.0, 2.0]])]
    below = [np.array([2.0, 8.0]), np.array([4.0, 4.0, 4.0])]
    assert mean_figures(above, below) == pytest.approx([(0.4 + 0.5) / 2])
    assert mean_figures(above, below, np.exp) == pytest.approx([(np.exp(0.4) + np.exp(0.5)) / 2])


def test_one_seed_has_the_standard_error_of_a_mean() -> None:
    rng = np.random.default_rng(0)
    losses = rng.normal(3.0, 1.0, USERS)
    drawn = resampled_figures([losses[None]], [np.ones(USERS)], rng)
    figure = estimate(drawn[:, 0], losses.mean())
    assert figure.standard_error == pytest.approx(losses.std() / USERS**0.5, rel=0.08)
    assert figure.low == pytest.approx(losses.mean() - 1.96 * figure.standard_error, abs=0.02)


def test_a_difference_is_paired_by_user() -> None:
    rng = np.random.default_rng(0)
    first = rng.normal(3.0, 1.0, USERS)
    second = first + rng.normal(0.1, 0.01, USERS)  # hardly any noise beside what both share
    drawn = resampled_figures([np.stack([first, second])], [np.ones(USERS)], rng)
    difference = estimate(drawn[:, 1] - drawn[:, 0], 0.1)
    assert difference.standard_error == pytest.approx(0.01 / USERS**0.5, rel=0.1)
    assert estimate(drawn[:, 1], 3.1).standard_error > 50 * difference.standard_error


def test_the_spread_of_the_seeds_counts_besides_that_of_users() -> None:
    levels = [1.0, 2.0, 3.0]
    above = [np.full((1, USERS), level) for level in levels]  # no spread over users at all
    drawn = resampled_figures(above, [np.ones(USERS)] * 3, np.random.default_rng(0))
    assert drawn[:, 0].std() == pytest.approx(np.std(levels) / 3**0.5, rel=0.05)


def test_two_draws_of_a_seed_have_users_of_their_own() -> None:
    """A resample that draws one seed thrice averages three resamples of its users, not one."""
    losses = np.random.default_rng(1).normal(0.0, 1.0, USERS)[None]
    drawn = resampled_figures([losses] * 3, [np.ones(USERS)] * 3, np.random.default_rng(0))
    assert drawn[:, 0].std() == pytest.approx(losses.std() / (3 * USERS) ** 0.5, rel=0.08)
