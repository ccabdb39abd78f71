"""Test the bound on an attacker's true positive rate against the closed form of the Gaussian mechanism."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from fl_sim.strategies.accounting.accountant import RoundEvent, epsilon
from fl_sim.strategies.accounting.adjacency import Adjacency
from fl_sim.strategies.accounting.attack_success import FALSE_POSITIVE_RATES, largest_true_positive_rate
from fl_sim.strategies.primitives.limits import PrivacyError


@pytest.mark.parametrize("false_positive_rate", FALSE_POSITIVE_RATES)
@pytest.mark.parametrize("noise_multiplier", [0.5, 1.0, 2.0, 10.0])
def test_the_bound_is_never_below_the_best_test_and_close_to_it(
    noise_multiplier: float, false_positive_rate: float
) -> None:
    """The best test of N(1, z²) against N(0, z²) has TPR Φ(Φ⁻¹(FPR) + 1/z) (Dong, Roth and Su 2022)."""
    event = RoundEvent("user_level", noise_multiplier)
    bound = largest_true_positive_rate(lambda delta: epsilon(event, Adjacency(), 1, delta), false_positive_rate)
    best = stats.norm.cdf(stats.norm.ppf(false_positive_rate) + 1 / noise_multiplier)
    assert best <= bound <= 1.12 * best + 2e-4


def test_without_a_guarantee_everything_is_possible() -> None:
    assert largest_true_positive_rate(lambda delta: math.inf, 0.01) == 1.0
    assert largest_true_positive_rate(lambda delta: 5000.0, 0.01) == 1.0


def test_a_perfect_guarantee_leaves_a_guess() -> None:
    assert largest_true_positive_rate(lambda delta: 0.0, 0.01) == pytest.approx(0.01 + 1e-5)


def test_impossible_rates_are_refused() -> None:
    with pytest.raises(PrivacyError, match="false_positive_rate is 0"):
        largest_true_positive_rate(lambda delta: 1.0, 0)
