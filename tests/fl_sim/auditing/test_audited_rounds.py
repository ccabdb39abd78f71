"""Test the real rounds on many copies of a small federation: within ε, and refuted where broken on purpose."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from scipy import stats

import fl_sim
from fl_sim.auditing.audited_rounds import AuditedMechanism, mechanism_of, worst_case
from fl_sim.auditing.cases import Finding, examine, own_case
from fl_sim.auditing.worst_case_corpora import ENTITY, Scenario, build
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound, PrivacyError
from fl_sim.strategies.primitives import sampling
from tests.fl_sim.auditing.faults import _clips_off, fault

DELTA = 1e-5
SAMPLED = RoundEvent("uedp", 1.0, q_u=0.3, q_e=0.4, q_s=0.5, user_cap=3)


def quiet_sums(event: RoundEvent, scenario: Scenario, present: bool, copies: int, rounds: int = 1) -> np.ndarray:
    return AuditedMechanism(mechanism_of(event), scenario).outputs(present, rounds, copies, seed=1, noise=False)


def test_the_two_corpora_differ_by_what_is_protected() -> None:
    scenario = Scenario(entity_users=2, entity_sentences=3, user_sentences=4, background=1, companions=2)
    with_it, without = (build(scenario, 5, present=present) for present in (True, False))
    assert with_it.ownership.num_users == 5 * 3
    assert without.ownership.num_users == 5 * 2
    assert np.bincount(with_it.kinds).tolist() == [10, 30, 20]
    assert np.bincount(without.kinds).tolist() == [10]
    assert with_it.ownership.num_entities == 15
    per_sentence = with_it.ownership.entities_per_sentence
    assert set(per_sentence[with_it.kinds == ENTITY]) == {3}
    assert set(per_sentence[with_it.kinds != ENTITY]) == {0}


@pytest.mark.parametrize(
    ("event", "adjacency", "without", "present"),
    [
        (RoundEvent("uedp", 1.0, user_cap=4), Adjacency(2, ContributionBound(3, 2)), 0.0, (2 + 3 * 2) / 4),
        (RoundEvent("uedp", 1.0, user_cap=4), Adjacency(math.inf), 0.0, 1.0),
        (RoundEvent("uedp", 1.0, user_cap=2), Adjacency(0, ContributionBound(3, 9)), -3.0, 3.0),
        (RoundEvent("uedp", 1.0, user_cap=2, clipping="user"), Adjacency(0, ContributionBound(3, 1)), -3.0, 3.0),
        (RoundEvent("user_level", 1.0), Adjacency(5, ContributionBound(3, 1)), -3.0, 4.0),
    ],
)
def test_without_sampling_the_protected_data_move_the_sum_as_far_as_proven(
    event: RoundEvent, adjacency: Adjacency, without: float, present: float
) -> None:
    scenario = worst_case(event, adjacency)
    assert quiet_sums(event, scenario, False, copies=3) == pytest.approx(np.full((1, 3), without), abs=1e-5)
    assert quiet_sums(event, scenario, True, copies=3) == pytest.approx(np.full((1, 3), present), abs=1e-5)


def test_the_shift_has_the_distribution_of_the_theorem() -> None:
    """( min(B·K', ŵ) + A·K ) / ŵ, with M ~ Binomial(F, q_u) sampled users."""
    n_user, entity_bound, copies = 5, ContributionBound(2, 1), 40_000
    shifts = (
        quiet_sums(SAMPLED, worst_case(SAMPLED, Adjacency(n_user, entity_bound)), True, copies)[0] * SAMPLED.user_cap
    )
    rng = np.random.default_rng(0)
    user = np.minimum((rng.random(copies) < SAMPLED.q_u) * rng.binomial(n_user, SAMPLED.q_s, copies), 3)
    affected = rng.binomial(entity_bound.users, SAMPLED.q_u, copies)
    entity = (rng.random(copies) < SAMPLED.q_e) * rng.binomial(affected, SAMPLED.q_s)
    expected = np.bincount(user + entity, minlength=6)
    observed = np.bincount(shifts.round().astype(int), minlength=6)
    assert stats.chi2_contingency(np.stack([expected, observed])).pvalue > 1e-4


def test_copies_and_rounds_are_independent() -> None:
    sums = quiet_sums(
        SAMPLED, worst_case(SAMPLED, Adjacency(5, ContributionBound(2, 1))), True, copies=20_000, rounds=2
    )
    neighbours = np.corrcoef(sums[0, ::2], sums[0, 1::2])[0, 1]
    rounds = np.corrcoef(sums[0], sums[1])[0, 1]
    assert abs(neighbours) < 4 / math.sqrt(10_000)
    assert abs(rounds) < 4 / math.sqrt(20_000)


def test_the_noise_is_that_of_the_plan() -> None:
    target = AuditedMechanism(mechanism_of(RoundEvent("uedp", 0.7, user_cap=3)), Scenario(user_sentences=1))
    outputs = target.outputs(False, 2, 20_000, seed=5)
    assert stats.kstest(outputs.ravel() / 0.7, "norm").pvalue > 1e-4
    assert stats.kstest(outputs.ravel() / 0.7 / 1.05, "norm").pvalue < 1e-4


AUDITED = [  # event, adjacency, rounds
    (RoundEvent("uedp", 1.0), Adjacency(1), 1),
    (RoundEvent("uedp", 2.0, user_cap=5), Adjacency(math.inf, ContributionBound(4, 1)), 5),
    (RoundEvent("uedp", 0.5, q_u=0.2, q_e=0.5, user_cap=5), Adjacency(5, ContributionBound(3, 2)), 5),
    (RoundEvent("uedp", 0.5, q_s=0.2, q_e=0.5, user_cap=3), Adjacency(6, ContributionBound(3, 2)), 5),
    (RoundEvent("uedp", 1.0, q_u=0.3, q_e=0.5, clipping="user"), Adjacency(1, ContributionBound(3, 1)), 3),
    (RoundEvent("user_level", 1.0, q_u=0.1), Adjacency(1), 10),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("event", "adjacency", "rounds"), AUDITED)
def test_the_audit_never_exceeds_our_epsilon(event: RoundEvent, adjacency: Adjacency, rounds: int, seed: int) -> None:
    case = own_case("audited", event, adjacency, rounds, DELTA)
    finding = examine(case, trials=10_000 if seed else 1_500, seed=seed, confidence=0.95)
    assert finding.holds, finding.record()


def test_the_audit_comes_close_where_theory_is_exact() -> None:
    """One certain user and Gaussian noise: nothing is lost in the proof, so little may be lost in the audit."""
    case = own_case("user", RoundEvent("uedp", 1.0), Adjacency(1), 1, DELTA)
    finding = examine(case, trials=10_000, seed=0, confidence=0.95)
    assert finding.epsilon_lower_gaussian is not None
    assert 0.75 * finding.epsilon_proven < finding.epsilon_lower_gaussian < finding.epsilon_proven


@pytest.mark.nightly
def test_the_noise_is_pinned_down() -> None:
    """An audit that could not tell the claimed noise from one a third larger would not notice a small bug either."""
    event = RoundEvent("uedp", 1.0, q_s=0.5, q_e=0.5, user_cap=2)
    case = own_case("both", event, Adjacency(2, ContributionBound(2, 1)), 4, DELTA)
    finding = examine(case, trials=10_000, seed=0, confidence=0.95, pin_noise=True)
    assert finding.noise_at_most is not None
    assert 1.0 < finding.noise_at_most < 1.33
    assert finding.epsilon_lower_model is not None
    assert finding.epsilon_lower < finding.epsilon_lower_model < finding.epsilon_proven


def test_a_scenario_without_anyone_is_refused() -> None:
    with pytest.raises(PrivacyError, match="protects neither"):
        Scenario(background=3)
    case = own_case("user", SAMPLED, Adjacency(2), 1, DELTA)
    with pytest.raises(PrivacyError, match="trials is 7"):
        examine(case, trials=7, seed=0, confidence=0.95)


def test_an_audit_of_nobody_or_of_corpora_beyond_memory_is_refused() -> None:
    with pytest.raises(PrivacyError, match="nobody to audit for"):
        fl_sim.audit(noise_multiplier=1.0, user_sentences=0, entity=(0, 0), trials=8)
    with pytest.raises(PrivacyError, match="allowed: at most 10,000,000"):
        worst_case(RoundEvent("uedp", 1.0, q_s=1e-9), Adjacency())


# Where each fault shows: the event (a sentence's clip is 1), whom it protects, how many other entities stand beside e'.
SHOWS: dict[str, tuple[RoundEvent, Adjacency, int]] = {
    "noise_halved": (RoundEvent("uedp", 1.0), Adjacency(1), 0),
    "sentence_clip_off": (RoundEvent("uedp", 1.0, user_cap=10), Adjacency(0, ContributionBound(1, 1)), 0),
    "user_clip_off": (RoundEvent("uedp", 1.0, user_cap=2), Adjacency(20), 0),
    "clips_off": (RoundEvent("user_level", 1.0), Adjacency(1), 0),
    "entities_sampled_per_user": (
        RoundEvent("uedp", 0.1, q_e=0.1, user_cap=5), Adjacency(0, ContributionBound(20, 1)), 0,
    ),
    "any_entity_active": (RoundEvent("uedp", 0.5, q_e=0.1, user_cap=2), Adjacency(0, ContributionBound(2, 1)), 10),
    "users_always_sampled": (RoundEvent("uedp", 0.5, q_u=0.1), Adjacency(1), 0),
}  # fmt: skip


def broken(name: str) -> AbstractContextManager[Any]:
    """Break the mechanism; its clips where the audit's gradients are clipped."""
    if name == "users_always_sampled":
        return patch.object(sampling, "sample_users", lambda seed, number, users, q_u: np.arange(users))
    radii = {"sentence_clip_off": (1.0,), "user_clip_off": (2.0,), "clips_off": ()}
    return _clips_off(*radii[name]) if name in radii else fault(name)


def examined(name: str, block: AbstractContextManager[Any]) -> Finding:
    event, adjacency, companions = SHOWS[name]
    case = own_case(name, event, adjacency, 1, 1e-5)
    target = replace(case.target, scenario=replace(case.target.scenario, companions=companions))
    with block:
        return examine(replace(case, target=target), trials=4_000, seed=0, confidence=0.95)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", SHOWS)
def test_the_whole_mechanism_passes_and_the_broken_one_is_caught(name: str) -> None:
    assert examined(name, nullcontext()).holds
    found = examined(name, broken(name))
    assert not found.holds, found.record()
