"""Test the audit by random canaries: the intact product passes, faults do not, and shifts are as drawn."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fl_sim.auditing.audited_rounds import Distribution
from fl_sim.auditing.lower_bounds import gaussian_epsilon
from fl_sim.auditing.real_rounds.canary_audit import (
    CanaryAudit,
    CanaryClaim,
    bound_canaries,
    log_ratios,
    mean_shift,
    shift_distribution,
)
from fl_sim.auditing.real_rounds.canary_cases import CASES, audit_case, table_of
from fl_sim.auditing.worst_case_corpora import Scenario
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.accounting.adjacency import PrivacyError
from tests.fl_sim.auditing.faults import fault


def audited(name: str, mutation: str | None = None, canaries: int = 144, rounds: int = 6) -> CanaryAudit:
    if mutation is None:
        return audit_case(name, canaries=canaries, rounds=rounds)
    with fault(mutation):
        return audit_case(name, canaries=canaries, rounds=rounds)


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
def test_the_intact_product_passes(name: str) -> None:
    audit = audit_case(name) if name in ("awd-lstm", "user-level") else audited(name)
    assert audit.holds, audit.record()
    assert audit.epsilon_lower < audit.claim.proven[0][1]
    assert json.loads(json.dumps(audit.record(), allow_nan=False))["holds"] is True
    assert name in table_of([audit])


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "mutation", "test"),
    [
        ("nothing-sampled", "noise_reduced", "noise"),
        ("nothing-sampled", "noise_off", "epsilon"),
        ("uedp", "user_clip_off", "shift"),
        ("uedp", "sentences_twice_as_often", "shift"),
        ("uedp", "realised_denominator", "shift"),
    ],
)
def test_a_fault_in_the_product_is_refuted(name: str, mutation: str, test: str) -> None:
    rounds = 12 if mutation in ("noise_reduced", "sentences_twice_as_often") else 6
    broken = audited(name, mutation, canaries=256 if rounds == 12 else 144, rounds=rounds)
    assert test in broken.refuted, broken.record()


def simulated(seed: int, noise: float = 4.0, shift: float = 1.0) -> CanaryAudit:
    """One Gaussian user in four rounds, μ = ½, without the real rounds."""
    rng = np.random.default_rng(seed)
    included = rng.random(100) < 0.5
    along = rng.normal(0.0, noise, (4, 100)) + shift * included
    proven = tuple((delta, gaussian_epsilon(0.5, delta)) for delta in (1e-5, 1e-2, 0.1))
    return bound_canaries(
        CanaryClaim("simulated", Distribution(np.ones(1), np.zeros(1)), 4.0, 4.0, proven, 4), included, along, 0.95
    )


@pytest.mark.nightly
def test_an_intact_mechanism_is_refuted_no_more_often_than_the_confidence_says() -> None:
    assert sum(not simulated(seed).holds for seed in range(40)) <= 6


@pytest.mark.nightly
def test_each_test_sees_its_fault() -> None:
    assert "noise" in simulated(0, noise=3.0).refuted
    assert "shift" in simulated(0, shift=3.0).refuted
    assert {"epsilon", "curve", "fit", "noise"} <= set(simulated(0, noise=0.02).refuted)


def test_the_table_rounds_every_bound_to_its_safe_side() -> None:
    bounds = {"epsilon_lower": 1.9799, "epsilon_fitted": 1.8699, "noise_at_most": 4.0611, "shift_at_least": 0.8679}
    line = table_of([replace(simulated(0), **bounds)]).splitlines()[1]
    assert line.split() == ["simulated", "2", "1.97", "1.86", "4", "4.07", "1", "0.867", "–"]


def test_an_impossible_confidence_is_refused() -> None:
    with pytest.raises(PrivacyError, match="confidence is 1"):
        audit_case("uedp", confidence=1)


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
