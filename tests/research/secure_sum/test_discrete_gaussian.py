"""Draws of the discrete Gaussian have its probabilities, from either source of randomness."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fl_sim.research.secure_sum.discrete_gaussian import (
    Words,
    discrete_gaussian,
    secure_words,
    seeded_words,
    square_parts,
    sum_of_shares,
    uniform_below,
)
from fl_sim.strategies.primitives.limits import PrivacyError
from tests.research.secure_sum import exact_sums

DRAWS = 120_000


def p_value(draws: np.ndarray, law: np.ndarray) -> float:
    """The p value of a chi-square test of integers against a law of :mod:`exact_sums`; tails are joined."""
    reach = int(4 * np.sqrt((law * np.arange(-exact_sums.HALF, exact_sums.HALF + 1) ** 2).sum()))
    inner = law[exact_sums.HALF - reach : exact_sums.HALF + reach + 1]
    counts = np.bincount(np.clip(draws, -reach - 1, reach + 1) + reach + 1, minlength=2 * reach + 3)
    observed = np.append(counts[1:-1], counts[0] + counts[-1])
    return float(stats.chisquare(observed, np.append(inner, 1 - inner.sum()) * len(draws)).pvalue)


@pytest.mark.sample(1)
@pytest.mark.parametrize("std", [1, 2, 7])
def test_draws_have_the_exact_probabilities(std: int) -> None:
    draws = discrete_gaussian(std, DRAWS, seeded_words(0, "noise share", std))
    assert p_value(draws, exact_sums.gaussian(std**2)) > 1e-3
    for wrong in (0.95, 1.05):  # the test would notice
        assert p_value(draws, exact_sums.gaussian((wrong * std) ** 2)) < 1e-9


def test_secure_draws_have_the_exact_probabilities_and_never_repeat() -> None:
    draws = discrete_gaussian(3, DRAWS, secure_words)
    assert p_value(draws, exact_sums.gaussian(9)) > 1e-6
    assert not np.array_equal(discrete_gaussian(3, 100, secure_words), discrete_gaussian(3, 100, secure_words))


def test_seeded_draws_are_a_function_of_the_stream() -> None:
    first, again, other = (discrete_gaussian(5, 1000, seeded_words(0, "noise share", index)) for index in (1, 1, 2))
    assert np.array_equal(first, again)
    assert abs(np.corrcoef(first, other)[0, 1]) < 0.15


@pytest.mark.nightly
def test_tails_are_as_heavy_as_they_should_be() -> None:
    draws = discrete_gaussian(1, 400_000, seeded_words(0, "tails"))
    expected = 400_000 * 2 * float(exact_sums.gaussian(1)[exact_sums.HALF + 4 :].sum())
    assert abs(int((np.abs(draws) >= 4).sum()) - expected) < 4 * np.sqrt(expected)


@pytest.mark.nightly
@pytest.mark.parametrize("shares", [1, 3, 7])
def test_several_shares_have_their_variance_together(shares: int) -> None:
    draws = sum_of_shares(2, shares, DRAWS, seeded_words(1, "top-up", shares))
    assert p_value(draws, exact_sums.gaussian(4 * shares)) > 1e-3
    assert not sum_of_shares(2, 0, 5, secure_words).any()


def test_every_number_is_a_sum_of_four_squares() -> None:
    for number in range(500):
        parts = square_parts(number)
        assert len(parts) <= 4
        assert sum(part * part for part in parts) == number


def test_uniform_integers_reject_the_words_that_would_be_too_many() -> None:
    """2⁶⁴ is eight times 2⁶¹: without rejection, thirds of 3·2⁶¹ get 3, 3 and 2 eighths of the words."""
    bound = 3 << 61
    draws = uniform_below(bound, 30_000, seeded_words(0, "uniform"))
    assert draws.min() >= 0
    assert draws.max() < bound
    thirds = np.bincount(draws // (1 << 61), minlength=3)
    assert stats.chisquare(thirds).pvalue > 1e-3


def test_words_are_drawn_again_when_rejected() -> None:
    words = iter([np.array([0, 2**63 + 1], dtype=np.uint64), np.array([5], dtype=np.uint64)])
    source: Words = lambda count: next(words)  # noqa: E731
    assert uniform_below(2**63 - 1, 2, source).tolist() == [5, 2]


@pytest.mark.parametrize("std", [0, -1, 1.5, 2**20 + 1])
def test_a_deviation_out_of_range_is_refused(std: float) -> None:
    with pytest.raises(PrivacyError, match=r"std is .*; allowed: a whole number from 1 to 1048576"):
        discrete_gaussian(std, 1, secure_words)  # type: ignore[arg-type]


def test_the_largest_deviation_stays_within_64_bits() -> None:
    draws = discrete_gaussian(2**20, 50_000, seeded_words(0, "largest"))
    assert stats.kstest(draws / 2**20, "norm").pvalue > 1e-3
