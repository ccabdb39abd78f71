"""Test bounds from scores: exact where theory is exact, above the truth no more often than the confidence allows."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from scipy import stats

from fl_sim.auditing.lower_bounds import (
    Scores,
    epsilon_lower_bound,
    gaussian_epsilon,
    gaussian_lower_bound,
    judge_claims,
    lower_limit,
    noise_at_most,
    upper_limit,
)
from fl_sim.strategies.accounting.adjacency import PrivacyError

CONFIDENCE = 0.95


def gaussian_scores(mu: float, trials: int, seed: int) -> Scores:
    rng = np.random.default_rng(seed)
    return Scores(rng.normal(0, 1, trials), rng.normal(mu, 1, trials))


def randomized_response(epsilon: float, trials: int, seed: int) -> Scores:
    """Scores of a mechanism that is exactly ε-DP: a bit, flipped with probability 1 / (1 + e^ε)."""
    rng = np.random.default_rng(seed)
    truth = 1 / (1 + math.exp(-epsilon))
    return Scores((rng.random(trials) >= truth).astype(float), (rng.random(trials) < truth).astype(float))


@pytest.mark.parametrize("probability", [0.0, 0.003, 0.1, 0.5, 0.97, 1.0])
@pytest.mark.parametrize("failure", [0.05, 0.01])
def test_clopper_pearson_covers_exactly(probability: float, failure: float) -> None:
    trials = 60
    hits = np.arange(trials + 1)
    distribution = stats.binom.pmf(hits, trials, probability)
    assert distribution[upper_limit(hits, trials, failure) < probability].sum() <= failure
    assert distribution[lower_limit(hits, trials, failure) > probability].sum() <= failure


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0, 7.0, 30.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-3])
def test_gaussian_epsilon_agrees_with_dp_accounting(mu: float, delta: float) -> None:
    expected = dp_accounting.get_epsilon_gaussian(1 / mu, delta)
    assert gaussian_epsilon(mu, delta) == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_no_leak_costs_nothing() -> None:
    assert gaussian_epsilon(0.0, 1e-5) == 0
    assert gaussian_epsilon(0.1, 0.5) == 0
    scores = gaussian_scores(0.0, 4_000, 0)
    assert epsilon_lower_bound(scores, 1e-5, CONFIDENCE) < 0.1


@pytest.mark.nightly
def test_the_bound_fails_no_more_often_than_its_confidence_says() -> None:
    epsilon, seeds = 1.0, 400
    bounds = np.array(
        [epsilon_lower_bound(randomized_response(epsilon, 2_000, s), 0.0, CONFIDENCE) for s in range(seeds)]
    )
    assert (bounds > epsilon).sum() <= stats.binom.isf(1e-3, seeds, 1 - CONFIDENCE)
    assert np.median(bounds) > 0.75 * epsilon


@pytest.mark.nightly
def test_the_gaussian_bound_is_valid_and_nearly_tight() -> None:
    mu, delta, seeds = 1.0, 1e-5, 200
    truth = gaussian_epsilon(mu, delta)
    bounds = np.array([gaussian_lower_bound(gaussian_scores(mu, 4_000, s), delta, CONFIDENCE) for s in range(seeds)])
    assert (bounds > truth).sum() <= stats.binom.isf(1e-3, seeds, 1 - CONFIDENCE)
    assert np.median(bounds) > 0.7 * truth


def test_a_claim_is_refuted_where_it_is_wrong() -> None:
    scores = gaussian_scores(2.0, 20_000, 0)
    honest = [(delta, gaussian_epsilon(2.0, delta)) for delta in (1e-5, 1e-2, 0.3)]
    assert not judge_claims(scores, honest, CONFIDENCE).refuted
    wrong = [honest[0], (0.3, 0.0), honest[1]]  # δ(0) of a 2-GDP mechanism is 0.68
    verdict = judge_claims(scores, wrong, CONFIDENCE)
    assert verdict.refuted
    assert verdict.delta == 0.3
    # Chosen on one half of the scores and tested on the other: what only the first half tells refutes nothing.
    by_chance = Scores(without=np.zeros(200), present=np.repeat([1.0, 0.0], 100))
    assert not judge_claims(by_chance, [(0.0, 0.0)], CONFIDENCE).refuted


@pytest.mark.nightly
def test_the_noise_is_found_within_a_tenth() -> None:
    def claims_at(noise_multiplier: float) -> list[tuple[float, float]]:
        deltas = (1e-5, 1e-3, 0.01, 0.05, 0.1, 0.2, 0.3)
        return [(delta, gaussian_epsilon(1 / noise_multiplier, delta)) for delta in deltas]

    noise = noise_at_most(gaussian_scores(1.0, 20_000, 0), claims_at, 1.0, CONFIDENCE)
    assert 1.0 < noise < 1.15
    assert noise_at_most(gaussian_scores(0.0, 2_000, 0), claims_at, 1.0, CONFIDENCE) == math.inf


@pytest.mark.parametrize(
    ("without", "present", "message"),
    [
        ([0.0] * 4, [0.0] * 5, "4 without and 5 with"),
        ([0.0] * 3, [0.0] * 3, "at least 4"),
        ([math.nan] * 4, [0.0] * 4, "not a number"),
    ],
)
def test_impossible_scores_are_refused(without: list[float], present: list[float], message: str) -> None:
    with pytest.raises(PrivacyError, match=message):
        Scores(np.array(without), np.array(present))


def test_impossible_questions_are_refused() -> None:
    scores = gaussian_scores(1.0, 100, 0)
    with pytest.raises(PrivacyError, match=r"confidence is 1\.0"):
        epsilon_lower_bound(scores, 1e-5, 1.0)
