"""Test the bounds on the shifts of an entity and of a user against exact distributions."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fl_sim.strategies.accounting.accountant import (
    RoundEvent,
    dominating_pairs_for,
    epsilon,
    user_distribution,
)
from fl_sim.strategies.accounting.adjacency import ANY_NUMBER, Adjacency, ContributionBound, PrivacyError
from fl_sim.strategies.accounting.losses.dominating_pairs import (
    Distribution,
    active_sentences,
    binomial,
    binomial_quantile,
    constant,
    entity_shift,
    exposure_from_bound,
    mixture,
    user_shift,
)

TAIL = 1e-12


def poisson_binomial(rates: np.ndarray) -> np.ndarray:
    """Return the exact probabilities of a sum of independent draws."""
    masses = np.ones(1)
    for rate in rates:
        masses = np.convolve(masses, [1 - rate, rate])
    return masses


def assert_at_least(bound: tuple[np.ndarray, np.ndarray], exact: np.ndarray) -> None:
    """Assert that a distribution, cut off at the top, is stochastically at least ``exact``."""
    values, probabilities = bound
    certain = 1.0 - probabilities.sum()  # what is cut off counts as larger than everything
    for t in range(len(exact) + 1):
        assert exact[t:].sum() <= probabilities[values >= t].sum() + certain + 1e-13


@pytest.mark.nightly
@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=25),
    st.sampled_from([1e-3, 0.05, 0.2, 0.7, 0.99, 1.0]),
    st.floats(1.0, 1.4),
    st.integers(0, 5),
)
def test_unequal_rates_are_bounded(weights: list[float], q_s: float, slack: float, more: int) -> None:
    """The sum of exact draws never exceeds the bound, whether the mean or the number of sentences binds."""
    rates = q_s * np.array(weights)
    bound = active_sentences(len(rates) + more, float(rates.max()), float(rates.sum()) * slack, TAIL)
    assert_at_least((bound.values, bound.probabilities), poisson_binomial(rates))
    loose = active_sentences(10**6, q_s, float(rates.sum()) * slack, TAIL)
    assert_at_least((loose.values, loose.probabilities), poisson_binomial(rates))


@pytest.mark.parametrize("tail", [1e-14, 1e-20, 1e-40])
@pytest.mark.parametrize("mean", [1e-6, 0.3, 32.0, 5000.0])
def test_the_smallest_tails_are_found(tail: float, mean: float) -> None:
    """As δ of 1e-12 and below ask for, where SciPy's inverse gives no number."""
    bound = active_sentences(1 << 31, 0.5, mean, tail)
    assert bound.cut is not None
    assert bound.cut <= tail
    assert bound.probabilities.sum() == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("q_s", [0.6, 1.0])
def test_two_sure_sentences_are_at_least_two(q_s: float) -> None:
    """Poisson(mean) alone is no bound: two sentences of full weight are both active with probability q_s²."""
    exact = poisson_binomial(np.full(2, q_s))
    assert stats.poisson.sf(1, 2 * q_s) < exact[2]
    bound = active_sentences(100, q_s, 2 * q_s, TAIL)
    assert_at_least((bound.values, bound.probabilities), exact)


def test_equal_weights_are_binomial() -> None:
    equal = active_sentences(12, 0.06, 12 * 0.06, TAIL)
    assert np.array_equal(equal.probabilities, binomial(12, 0.06, TAIL).probabilities)


@pytest.mark.parametrize("q_e", [0.5, 0.95, 0.999])
def test_an_entity_is_inactive_with_the_rest_of_its_rate(q_e: float) -> None:
    shift = entity_shift(q_e, constant(3.0), 2.0)
    assert (shift.values.tolist(), shift.probabilities) == ([0.0, 2.0], pytest.approx([1 - q_e, q_e]))
    assert entity_shift(1.0, constant(3.0), 2.0).values.tolist() == [2.0]


@pytest.mark.parametrize(("users", "q_u"), [(5, 0.3), (3000, 0.5)])
@pytest.mark.parametrize("tail", [1e-3, 1e-12])
def test_the_exposure_of_many_users_is_rounded_up(users: int, q_u: float, tail: float) -> None:
    """Thousands of numbers of sampled users share 128 cases: no number of them is more probable to be exceeded."""
    exposure = exposure_from_bound(ContributionBound(users, 2), q_u, tail)
    assert len(exposure.probabilities) <= 128
    assert exposure.cut is not None
    assert exposure.probabilities.sum() + exposure.cut == pytest.approx(1, abs=1e-12)
    above = np.cumsum(exposure.probabilities[::-1])[::-1] + exposure.cut
    for lower, bound in zip([-1, *exposure.users[:-1].tolist()], above, strict=True):
        assert bound >= stats.binom.sf(lower, users, q_u) - 1e-12
    assert (exposure.sentences == 2 * exposure.users).all()


def test_a_sum_of_weights_bounds_many_sentences() -> None:
    """Ten thousand sentences of weight 1/1000 cost about as much as ten; a user clip sees the users alone."""
    event = RoundEvent("uedp", 4.0, q_e=0.5, q_s=0.1, user_cap=2)
    light = Adjacency(32, ContributionBound(10_000, 1, sentences=10, weighted=True))
    ten = Adjacency(32, ContributionBound(10, 1))
    assert epsilon(event, ten, 30, 1e-5) < epsilon(event, light, 30, 1e-5) < 1.1 * epsilon(event, ten, 30, 1e-5)
    clipped = replace(event, clipping="user")
    users = Adjacency(32, ContributionBound(5, 2, sentences=1.5, weighted=True))
    assert epsilon(clipped, users, 30, 1e-5) == epsilon(clipped, Adjacency(32, ContributionBound(5, 2)), 30, 1e-5)


@pytest.mark.parametrize("bad", [{"sentences": 1.5}, {"sentences": math.inf, "weighted": True}])
def test_impossible_weights_are_refused(bad: dict) -> None:
    with pytest.raises(PrivacyError, match="allowed"):
        ContributionBound(3, 1, **bad)


@pytest.mark.parametrize("q_s", [0.05, 0.6, 1.0])
@pytest.mark.parametrize("cap", [1.0, 2.5])
def test_a_users_sum_of_weights_bounds_any_number_of_sentences(q_s: float, cap: float) -> None:
    """A thousand sentences of weight 1/500 and two of weight 1 are within the same bound."""
    bound = user_shift(0.4, q_s, 2, cap, TAIL, weighted=True)
    for rates in (np.full(1000, q_s / 500), np.full(2, q_s)):
        active = poisson_binomial(rates)
        exact = np.zeros(4)
        for count, mass in enumerate(active):
            exact[math.ceil(min(count, cap))] += 0.4 * mass
        exact[0] += 0.6
        rounded_up = Distribution(np.ceil(bound.values), bound.probabilities, bound.cut)
        assert_at_least((rounded_up.values, rounded_up.probabilities), exact)


def test_a_cap_of_one_sentence_makes_weights_free() -> None:
    """min(Poisson(-m·ln(1-q_s)), 1) and min(Binomial(m, q_s), 1) have the same law."""
    event = RoundEvent("uedp", 2.0, q_u=0.4, q_s=0.03)
    by_weight, by_number = (epsilon(event, Adjacency(32, weighted=weighted), 20, 1e-5) for weighted in (True, False))
    assert by_weight == pytest.approx(by_number, rel=1e-5)  # two grids
    wider = replace(event, user_cap=2.0)
    assert epsilon(wider, Adjacency(32, weighted=True), 20, 1e-5) > epsilon(wider, Adjacency(32), 20, 1e-5)


@pytest.mark.parametrize("tail", [1e-3, 1e-6, 1e-12, 1e-25])
@pytest.mark.parametrize(("n", "p"), [(400, 0.1), (7, 0.6), (30, 0.01)])
def test_a_binomial_knows_what_it_cuts_off(n: int, p: float, tail: float) -> None:
    kept = binomial(n, p, tail)
    assert kept.cut == pytest.approx(stats.binom.sf(kept.values[-1], n, p), rel=1e-6, abs=0)


@pytest.mark.parametrize("tail", [1e-3, 1e-20, 1e-36])
def test_a_quantile_is_the_smallest_number_that_is_rarely_exceeded(tail: float) -> None:
    for n, p in ((7, 0.6), (10**6, 0.05), (10**12, 0.05)):
        most = binomial_quantile(n, p, tail)
        assert stats.binom.sf(most, n, p) <= tail < stats.binom.sf(most - 1, n, p)
    assert binomial_quantile(7, 0.6, 1e-36) == 7


def test_what_the_shifts_of_a_case_cut_off_is_missing() -> None:
    user, entity = (
        Distribution(np.array([value]), np.array([0.9]), cut) for value, cut in ((1.0, 1e-20), (2.0, 3e-20))
    )
    assert mixture(user, entity, 1.0, 1.0, 1e-30, 0.0).cut == pytest.approx((4e-20, 0.0), rel=1e-12, abs=0)
    listed = mixture(user, entity, 1.0, 1.0, 1e-30, 1e-19)
    assert listed.cut == pytest.approx((14e-20, 10e-20), rel=1e-12, abs=0)
    rare = Distribution(np.array([1.0, 5.0]), np.array([0.9, 3e-26]), 1e-26)
    assert mixture(rare, Distribution(np.zeros(1), np.ones(1), 0.0), 1.0, 1.0, 1e-25, 0.0).cut == pytest.approx(
        (4e-26, 0.0), rel=1e-12, abs=0
    )


@pytest.mark.nightly
def test_what_truncations_cut_off_is_known_below_rounding() -> None:
    """At a tail of 1e-25, 1 less the sum of the probabilities is rounding error, and 10,000 times more."""
    kept = binomial(400, 0.1, 1e-25)
    assert kept.cut == pytest.approx(stats.binom.sf(kept.values[-1], 400, 0.1), rel=1e-6, abs=0)
    assert 0 < kept.cut < 2e-25
    event = RoundEvent("uedp", 1.0, q_u=0.3, q_e=0.5, q_s=0.1, user_cap=90)
    revealed, hidden = dominating_pairs_for(event, Adjacency(400, ContributionBound(200, 400)), 1e-25)
    (user, _), users = user_distribution(event, Adjacency(400), 1e-25), binomial(200, 0.3, 1e-25)
    missing = [sum(mixture.probability * mixture.missing[k] for mixture in revealed) for k in (0, 1)]
    assert users.cut is not None
    assert user.cut is not None
    assert missing[1] == pytest.approx(users.cut, rel=1e-6, abs=0)
    assert users.cut + user.cut < missing[0] < users.cut + user.cut + 4e-25
    assert hidden[0].missing[1] == pytest.approx(users.cut, rel=1e-6, abs=0)
    assert users.cut + user.cut / 2 < hidden[0].missing[0] < users.cut + 2 * user.cut + 2e-25


@pytest.mark.parametrize("each", [1 << 31, 10**12])
def test_more_sentences_of_a_user_are_never_counted_as_fewer(each: int) -> None:
    few = exposure_from_bound(ContributionBound(3, 1 << 20), 0.5, 1e-12)
    many = exposure_from_bound(ContributionBound(3, each), 0.5, 1e-12)
    np.testing.assert_array_equal(many.users, few.users)
    assert (many.sentences >= few.sentences).all()


@pytest.mark.parametrize("count", [-1, 1.5, math.inf, math.nan, 10**12 + 1, 10**26, 10**400, "a", None])
def test_what_cannot_be_counted_is_no_bound(count: Any) -> None:
    """A number that overflows an integer must not end as none at all, with ε 0."""
    for bound in (lambda: ContributionBound(count, 1), lambda: ContributionBound(1, count)):
        with pytest.raises(PrivacyError, match=r"allowed: an integer from 0 to 10\^12"):
            bound()
    if count != math.inf:
        with pytest.raises(PrivacyError, match=r"allowed: an integer from 0 to 10\^12, or inf"):
            Adjacency(count)


def test_as_many_users_as_a_run_may_state_are_counted_without_overflow() -> None:
    exposure = exposure_from_bound(ContributionBound(10**12, ANY_NUMBER, 10, weighted=True), 1.0, 1e-12)
    assert exposure.users.min() > 0
    assert exposure.sentences.min() >= 2**50  # more than any corpus has
    assert exposure.weights is not None
    assert set(exposure.weights) == {10.0}
