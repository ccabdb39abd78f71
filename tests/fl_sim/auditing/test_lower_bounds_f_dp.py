"""Test the one-run bounds: as an independent implementation, valid on known mechanisms, sharper than ε alone."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from scipy import optimize, special, stats

from fl_sim.auditing import lower_bounds
from fl_sim.auditing.lower_bounds import (
    InverseTradeOff,
    curve_trade_off,
    f_dp_epsilon,
    fitted_gaussian_epsilon,
    gaussian_epsilon,
    refutes,
    refutes_by_ranking,
)
from fl_sim.strategies.accounting.adjacency import PrivacyError

DELTA, CONFIDENCE = 1e-5, 0.95
ALLOWED = stats.binom.isf(1e-3, 100, 1 - CONFIDENCE)  # failures of 100 audits


def gaussian_trade_off(mu: float) -> InverseTradeOff:
    """F⁻¹(r) = Φ(Φ⁻¹(r) − μ) of a μ-GDP mechanism."""
    return lambda right: float(special.ndtr(special.ndtri(right) - mu))


def gaussian_canaries(mu: float, canaries: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    included = rng.random(canaries) < 0.5
    return included, rng.normal(0.0, 1.0, canaries) + mu * included


@pytest.mark.parametrize(
    ("canaries", "guesses", "correct", "failure", "delta", "epsilon"),
    [  # computed with jax_privacy 2.0.0 (auditing._epsilon_one_run_fdp), whose family is that of Gaussians
        (1000, 100, 95, 0.05, 1e-5, 3.3233004900323655),
        (1000, 1000, 700, 0.05, 1e-5, 1.3719800500431791),
        (500, 200, 200, 0.01, 1e-5, 6.399987550820364),
        (100, 100, 70, 0.05, 1e-3, 0.6855415903094405),
        (100, 50, 30, 0.05, 1e-5, 0.0),
        (10000, 1500, 1429, 0.05, 1e-5, 4.0520297731202),
    ],
)
def test_the_gaussian_family_agrees_with_an_independent_implementation(
    canaries: int, guesses: int, correct: int, failure: float, delta: float, epsilon: float
) -> None:
    mu = lower_bounds._largest_refuted(lambda mu: refutes(gaussian_trade_off(mu), canaries, guesses, correct, failure))
    assert gaussian_epsilon(mu, delta) == pytest.approx(epsilon, abs=2e-3)


@pytest.mark.parametrize(
    ("canaries", "guesses", "correct", "failure", "delta", "epsilon"),
    [  # computed with jax_privacy 2.0.0 (auditing._epsilon_one_run), the theorem of Steinke, Nasr and Jagielski 2023
        (1000, 100, 95, 0.05, 1e-5, 2.165175787875041),
        (1000, 1000, 700, 0.05, 0.0, 0.7320110250757831),
        (500, 200, 200, 0.01, 1e-5, 3.728678446511751),
        (100, 100, 70, 0.05, 1e-3, 0.44462420155126864),
        (100, 50, 30, 0.05, 1e-5, 0.0),
        (10000, 1500, 1429, 0.05, 1e-5, 2.791400132867656),
    ],
)
def test_the_bound_for_any_mechanism_is_as_sharp_as_an_independent_theorem(
    canaries: int, guesses: int, correct: int, failure: float, delta: float, epsilon: float
) -> None:
    """The share of guesses is one, and the ranks are so that ``correct`` of them are right."""
    included = np.arange(canaries) >= canaries // 2
    included[: guesses - correct] = True  # as many wrong guesses
    scores = np.arange(canaries, dtype=float)
    bound = f_dp_epsilon(included, scores, delta, 1 - failure, (guesses / canaries,))
    assert bound == pytest.approx(epsilon, rel=0.02)


@pytest.mark.parametrize(("guesses", "correct"), [(6, 6), (6, 5), (10, 8), (12, 9)])
@pytest.mark.parametrize("claims", [[(0.0, 1.0)], [(0.01, 0.5), (1e-3, 1.5)]])
def test_the_least_mass_is_the_optimum_of_a_linear_programme(
    guesses: int, correct: int, claims: list[tuple[float, float]]
) -> None:
    """The largest P[C ≥ v] under all inequalities is where the recursion begins to refute."""
    canaries = 15
    bound = largest_tail(canaries, guesses, correct, claims)
    for failure, expected in ((bound * 0.999, False), (bound * 1.001, True)):
        # refutes(...) says that P[C ≥ v] = failure is impossible
        assert refutes(curve_trade_off(claims), canaries, guesses, correct, min(failure, 1.0)) is (
            expected and failure < 1
        )


def largest_tail(canaries: int, guesses: int, correct: int, claims: list[tuple[float, float]]) -> float:
    counts = np.arange(guesses + 1)
    rows, limits = [], []
    for i in range(1, guesses + 1):
        right = np.where(counts >= i, counts / canaries, 0.0)
        wrong = np.where(counts >= i - 1, (guesses - counts) / canaries, 0.0)
        for delta, epsilon in claims:
            rows.append(right - math.exp(epsilon) * wrong)
            limits.append(delta)
            rows.append(right - math.exp(-epsilon) * wrong)
            limits.append(1 - math.exp(-epsilon) * (1 - delta))
    solved = optimize.linprog(
        -(counts >= correct).astype(float), A_ub=rows, b_ub=limits, A_eq=np.ones((1, guesses + 1)), b_eq=[1.0]
    )
    assert solved.success
    return float(-solved.fun)


@pytest.mark.nightly
def test_trade_off_curves_are_inverted() -> None:
    """F⁻¹ of many pairs of a Gaussian's curve lies below F⁻¹ of the Gaussian, and close to it."""
    mu = 1.5
    pairs = [(float(delta), gaussian_epsilon(mu, float(delta))) for delta in np.geomspace(1e-6, 0.54, 200)]
    exact, of_pairs = gaussian_trade_off(mu), curve_trade_off(pairs)
    for right in (0.01, 0.2, 0.5, 0.9, 0.99):
        assert 0.9 * exact(right) - 1e-6 < of_pairs(right) <= exact(right) + 1e-9
    assert curve_trade_off([(0.0, math.inf)])(0.999) == 0.0
    assert curve_trade_off([(0.1, 0.0)])(0.6) == pytest.approx(0.5)


@pytest.mark.nightly
def test_the_fit_is_valid_for_gaussians_and_nearly_tight() -> None:
    mu = 2.0
    truth = gaussian_epsilon(mu, DELTA)
    bounds = [fitted_gaussian_epsilon(*gaussian_canaries(mu, 300, seed), DELTA, CONFIDENCE) for seed in range(100)]
    exceeded = sum(bound > truth for bound in bounds)
    assert 1 <= exceeded <= ALLOWED  # the limit is exact: five are expected
    assert np.median(bounds) > 0.8 * truth


def test_one_pair_is_valid_for_randomized_response(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of right guesses alone decides a verdict, and many of the hundred have the same."""
    monkeypatch.setattr(lower_bounds, "refutes", functools.cache(lower_bounds.refutes))
    epsilon, canaries, exceeded, trade_off = 1.0, 200, 0, curve_trade_off([(0.0, 1.0)])
    for seed in range(100):
        rng = np.random.default_rng(seed)
        included = rng.random(canaries) < 0.5
        guessed_right = rng.random(canaries) < 1 / (1 + math.exp(-epsilon))
        scores = np.where(included == guessed_right, 1.0, -1.0) + 0.1 * rng.random(canaries)
        exceeded += refutes_by_ranking(trade_off, included, scores, CONFIDENCE)
    assert exceeded <= ALLOWED


def test_shares_of_guesses_share_the_failure_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[float] = []

    def within(trade_off: InverseTradeOff, canaries: int, guesses: int, correct: int, failure: float) -> bool:
        failures.append(failure)
        return False

    monkeypatch.setattr(lower_bounds, "refutes", within)
    assert not refutes_by_ranking(gaussian_trade_off(1.0), np.arange(9) < 4, np.arange(9.0), 0.9, (0.5, 1.0))
    assert failures == pytest.approx([0.05, 0.05])


def test_impossible_questions_are_refused() -> None:
    with pytest.raises(PrivacyError, match="1 with 1 scores"):
        f_dp_epsilon(np.ones(1, dtype=bool), np.ones(1), DELTA, CONFIDENCE)
