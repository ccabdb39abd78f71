"""Test the distribution of a canary's shift against draws of the round's own coins."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fl_sim.auditing.real_rounds.canary_audit import log_ratios, mean_shift, shift_distribution
from fl_sim.auditing.worst_case_corpora import Scenario
from fl_sim.strategies.accounting.accountant import RoundEvent


@pytest.mark.parametrize(
    "event",
    [
        RoundEvent("uedp", 1.0, q_u=0.6, q_e=0.5, q_s=0.4, user_cap=2.0),
        RoundEvent("uedp", 1.0, q_e=0.3, q_s=0.5, user_cap=1.5),
        RoundEvent("uedp", 1.0, q_u=0.6, q_e=0.5, q_s=0.4, clipping="user"),
        RoundEvent("user_level", 1.0, q_u=0.3),
    ],
)
def test_the_distribution_agrees_with_draws(event: RoundEvent) -> None:
    scenario, draws = Scenario(entity_users=2, entity_sentences=2, user_sentences=3), 40_000
    rng = np.random.default_rng(0)
    cap = event.user_cap if event.clips_sentences else 1.0

    def users(count: int, sentences: int) -> np.ndarray:
        eligible = rng.binomial(sentences, event.q_s, (count, draws)) * (rng.random((count, draws)) < event.q_u)
        return (np.minimum(eligible, cap) / cap).sum(axis=0)

    drawn = (rng.random(draws) < event.q_e) * users(2, 2) + users(1, 3)
    law = shift_distribution(event, scenario)
    observed = np.array([(np.abs(drawn - value) < 1e-6).sum() for value in law.values])
    assert observed.sum() == draws
    assert stats.chisquare(observed, draws * np.exp(law.log_weights)).pvalue > 1e-4
    assert mean_shift(law) == pytest.approx(drawn.mean(), abs=0.02)


def test_the_likelihood_ratio_is_that_of_the_mixture() -> None:
    law = shift_distribution(RoundEvent("uedp", 1.0, q_s=0.25), Scenario(user_sentences=1))
    outputs = np.array([[0.3, 1.2], [-0.4, 2.0]])
    expected = np.log(0.75 + 0.25 * stats.norm.pdf(outputs, 1, 0.5) / stats.norm.pdf(outputs, 0, 0.5)).sum(axis=0)
    assert log_ratios(law, outputs, 0.5) == pytest.approx(expected)
