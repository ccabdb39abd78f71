"""Test the bounds on an attacker against the best test of exact mechanisms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize, stats

from fl_sim.strategies.accounting.accountant import RoundEvent, delta, epsilon
from fl_sim.strategies.accounting.adjacency import NO_ENTITY, Adjacency, ContributionBound, PrivacyError
from fl_sim.strategies.accounting.attacker import composed_true_positive_rates, true_positive_rates

RATES = np.array([1e-3, 1e-2, 0.2, 0.8])
NORMAL = stats.norm


@pytest.mark.parametrize(("z", "rounds"), [(1.0, 1), (20.0, 30), (5.0, 40), (100.0, 10_000), (1e4, 7)])
def test_the_gaussian_mechanism_has_its_trade_off(z: float, rounds: int) -> None:
    """Dong, Roth and Su 2022: Φ(Φ⁻¹(α) + μ), μ = √T/z."""
    exact = NORMAL.cdf(NORMAL.ppf(RATES) + math.sqrt(rounds) / z)
    bounds = true_positive_rates(RoundEvent("user_level", z), Adjacency(), rounds, RATES.tolist())
    assert (bounds >= exact).all()
    assert bounds == pytest.approx(exact, rel=2e-3)


def test_gaussians_of_several_scales_compose() -> None:
    parts = [
        (RoundEvent("user_level", z), Adjacency(), count) for z, count in ((6.0, 4), (10.0, 9), (10.0, 1), (3.0, 0))
    ]
    exact = NORMAL.cdf(NORMAL.ppf(RATES) + math.sqrt(4 / 36 + 10 / 100))
    bounds = composed_true_positive_rates(parts, RATES.tolist())
    assert (bounds >= exact).all()
    assert bounds == pytest.approx(exact, rel=2e-3)


@pytest.mark.parametrize(("q", "z"), [(0.2, 0.7), (0.7, 1.5)])
def test_one_subsampled_round_has_the_power_of_the_best_test(q: float, z: float) -> None:
    """P = (1−q)·N(0, z²) + q·N(1, z²) against Q = N(0, z²): thresholds are best; Q may also be looked for."""
    event = RoundEvent("user_level", z, q_u=q)
    for rate, bound in zip(RATES, true_positive_rates(event, Adjacency(), 1, RATES.tolist()), strict=True):
        presence = (1 - q) * rate + q * NORMAL.sf(NORMAL.isf(rate) - 1 / z)

        def false_absence(x: float, rate: float = rate) -> float:
            return float((1 - q) * NORMAL.cdf(x / z) + q * NORMAL.cdf((x - 1) / z) - rate)

        absence = NORMAL.cdf(optimize.brentq(false_absence, -20 * z, 20 * z) / z)
        exact = max(presence, float(absence))
        assert exact <= bound <= exact * (1 + 2e-3)


def test_the_bound_is_no_weaker_than_that_of_one_epsilon() -> None:
    event = RoundEvent("uedp", 4.0, q_e=0.5, q_s=0.1, user_cap=2)
    adjacency = Adjacency(32, ContributionBound(10, 1))
    bounds = true_positive_rates(event, adjacency, 30, RATES.tolist())
    for at in (0.5, 1.0, epsilon(event, adjacency, 30, 1e-2), epsilon(event, adjacency, 30, 1e-5)):
        assert (bounds <= math.exp(at) * RATES + delta(event, adjacency, 30, at) + 1e-9).all()
    assert (bounds > RATES).all()


def test_the_better_of_two_proofs_counts() -> None:
    """A reversed update: revealing the sampled users is a shift of 2 in their rounds, which Theorem 2 avoids."""
    event = RoundEvent("uedp", 1.0, q_u=0.05, clipping="user")
    bound = true_positive_rates(event, Adjacency(0, ContributionBound(1, 1)), 50, [1e-3])
    revealed = true_positive_rates(RoundEvent("user_level", 0.5, q_u=0.05), Adjacency(), 50, [1e-3])
    assert bound[0] < 0.7 * revealed[0]


def test_nothing_protected_is_nothing_learned() -> None:
    event = RoundEvent("user_level", 1.0)
    assert true_positive_rates(event, Adjacency(0, NO_ENTITY), 5, [0.1])[0] == pytest.approx(0.1, rel=1e-9)
    assert composed_true_positive_rates([], [0.1]) == pytest.approx(0.1)


def test_no_noise_to_speak_of_is_certainty() -> None:
    assert true_positive_rates(RoundEvent("user_level", 0.05), Adjacency(), 100, [1e-3])[0] == pytest.approx(1.0)


@pytest.mark.parametrize("bad", [0.0, 1.0, -0.1, math.nan])
def test_impossible_rates_are_refused(bad: float) -> None:
    with pytest.raises(PrivacyError, match="false_positive_rate is"):
        true_positive_rates(RoundEvent("user_level", 1.0), Adjacency(), 5, [0.1, bad])
