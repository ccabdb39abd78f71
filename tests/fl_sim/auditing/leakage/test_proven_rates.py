"""The rates that a ledger allows: against closed forms, never below the report's bound, and larger for larger units."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fl_sim.auditing.leakage.proven_rates import ALL_DELTAS, EntityContribution, LedgerProof
from fl_sim.config import RunConfig
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.plan.guarantees import EnforcedBounds
from fl_sim.strategies.accounting import accountant
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound
from fl_sim.strategies.accounting.attack_success import DELTAS, FALSE_POSITIVE_RATES, largest_true_positive_rate
from fl_sim.strategies.accounting.guarantee import Guarantee
from fl_sim.strategies.ledger import Entry, ReleaseRecord, epsilon_of_any
from fl_sim.strategies.noiseless import Noiseless
from fl_sim.strategies.uedp import UserEntityDP
from fl_sim.strategies.user_level import UserLevelDP

GUARANTEE = Guarantee(known="graph", entity_bound=10, user_sentences=32)


def proof(rounds: int = 1, strategy: str = "user_level", **changes: Any) -> LedgerProof:
    plain = {"population": 100, "q_u": 1.0, "q_e": 1.0, "q_s": 1.0, "clip_norm": 1.0, "user_cap": 1.0}
    made = {"uedp": UserEntityDP, "user_level": UserLevelDP, "noiseless": Noiseless}[strategy]
    mechanism = made(**{"strategy": strategy, "noise_multiplier": 1.0, **plain, **changes})
    terms = ReleaseRecord.of(mechanism, seed=0, guarantee=GUARANTEE)
    return LedgerProof(
        tuple(Entry("run", number + 1, terms, str(number)) for number in range(rounds)), "run", GUARANTEE
    )


@pytest.mark.parametrize("noise", [0.7, 2.0])
def test_one_gaussian_round(noise: float) -> None:
    """The best test of N(1, z²) against N(0, z²): TPR Φ(Φ⁻¹(FPR) + 1/z), advantage 2Φ(1/2z) − 1."""
    rates = proof(noise_multiplier=noise).of_user(5)
    for false in (0.001, 0.01, 0.1, 0.5, 0.9):
        best = stats.norm.cdf(stats.norm.ppf(false) + 1 / noise)
        assert best <= rates.largest_true_positive_rate(false) <= 1.12 * best + 2e-4
    advantage = 2 * stats.norm.cdf(1 / (2 * noise)) - 1
    assert advantage <= rates.largest_advantage <= 1.1 * advantage


def test_exchanging_two_users_is_a_gaussian_of_twice_the_shift() -> None:
    """F⁻¹ never exceeds, so never excludes, what N(2, z²) against N(0, z²) allows, and comes close to it."""
    rates = proof(noise_multiplier=2.0).of_user(5)
    inverse = rates.exchanged()
    for false in (0.05, 0.2, 0.5):
        best = stats.norm.cdf(stats.norm.ppf(false) + 1.0)
        assert 0.8 * false <= inverse(best) <= false
        assert best <= rates.largest_after_exchange(false) <= min(1.0, 1.3 * best)


@pytest.mark.parametrize(
    ("strategy", "changes"), [("user_level", {"q_u": 0.3}), ("uedp", {"q_s": 0.4, "user_cap": 2.0})]
)
def test_no_looser_than_the_bound_of_the_report_and_at_its_deltas_the_same(
    strategy: str, changes: dict[str, Any]
) -> None:
    """The report's bound of a user (PrivacySpent.attacker) takes the least over fewer δ of the same ε."""
    releases = proof(4, strategy, **changes)
    event = releases.entries[0].terms.mechanism.event()
    rates = releases.of_user(32)
    assert [delta for delta, _ in rates.claims] == list(ALL_DELTAS)
    for delta, epsilon in rates.claims:
        assert epsilon == pytest.approx(accountant.epsilon(event, Adjacency(32.0), 4, delta), rel=1e-9)
    for false in FALSE_POSITIVE_RATES:
        reported = largest_true_positive_rate(lambda d: accountant.epsilon(event, Adjacency(32.0), 4, d), false)
        at_its_deltas = replace(rates, claims=tuple(claim for claim in rates.claims if claim[0] in DELTAS))
        assert at_its_deltas.largest_true_positive_rate(false) == pytest.approx(reported, rel=1e-9)
        assert 0.9 * reported < rates.largest_true_positive_rate(false) <= reported * (1 + 1e-9)


@pytest.mark.nightly
def test_a_profile_costs_at_most_its_contribution_bound() -> None:
    releases = proof(3, "uedp", q_s=0.3, q_u=0.5, noise_multiplier=3.0)
    entity = EntityContribution.of_profile([1, 5, 0])
    assert entity.profile.tolist() == [5, 1]
    profile = releases.of_entity(entity)
    event = releases.entries[0].terms.mechanism.event()
    adjacency = Adjacency(0.0, entity.limit)
    for delta, epsilon in profile.claims:
        assert epsilon <= accountant.epsilon(event, adjacency, 3, delta) * 1.001


def test_any_user_with_any_entity_has_the_epsilon_that_the_run_states() -> None:
    releases = proof(3, "uedp", q_s=0.3, user_cap=2.0, noise_multiplier=3.0)
    rates = releases.of_any()
    assert rates.claims == tuple((delta, epsilon_of_any(releases.entries, delta)) for delta in ALL_DELTAS)
    assert rates.largest_advantage > releases.of_user(32).largest_advantage
    unbounded = replace(releases.entries[0], terms=replace(releases.entries[0].terms, guarantee=Guarantee()))
    assert not replace(releases, entries=(unbounded,)).of_any().is_proven
    assert proof(strategy="noiseless").of_any().reason == "noiseless guarantees nothing"


UEDP = {"strategy": "uedp", "q_s": 0.3, "q_e": 0.5, "user_cap": 2.0, "noise_multiplier": 3.0}


@pytest.mark.nightly
@pytest.mark.parametrize(
    "guarantee",
    [Guarantee(known="counts", entity_bound=2, user_sentences=32), replace(GUARANTEE, public_weights=True)],
    ids=["counts", "public weights"],
)
def test_an_entity_whose_profile_does_not_tell_all_counts_at_its_bound(guarantee: Guarantee) -> None:
    """Where its sentences have weights, the numbers of the profile are not what moves the sum."""
    contribution = EntityContribution(np.ones(6, np.int64), ContributionBound(6, 2, 2, weighted=True))
    plain = proof(3, **UEDP)
    stated = tuple(replace(entry, terms=replace(entry.terms, guarantee=guarantee)) for entry in plain.entries)
    releases = replace(plain, guarantee=guarantee, entries=stated)
    event = releases.entries[0].terms.mechanism.event()
    adjacency = replace(guarantee.with_entity(contribution.limit), user_sentences=0.0)
    expected = {delta: accountant.epsilon(event, adjacency, 3, delta) for delta in (1e-5, 1e-2, 0.2)}
    claims = dict(releases.of_entity(contribution).claims)
    assert {delta: claims[delta] for delta in expected} == pytest.approx(expected, rel=1e-6)
    profile = dict(proof(3, **UEDP).of_entity(EntityContribution.of_profile(contribution.profile)).claims)
    assert any(abs(profile[delta] / expected[delta] - 1) > 0.01 for delta in expected)  # the test can fail


def test_an_entity_in_a_round_with_two_sums_counts_as_in_one_with_less_noise() -> None:
    releases, entity = proof(**UEDP), EntityContribution.of_profile([2, 1])
    twice = replace(releases, entries=(*releases.entries, replace(releases.entries[0], sum="other")))
    event = replace(releases.entries[0].terms.mechanism.event(), noise_multiplier=3.0 / math.sqrt(2))
    adjacency = Adjacency(0.0, entity.limit)
    for delta, epsilon in twice.of_entity(entity).claims:
        assert epsilon == pytest.approx(accountant.epsilon(event, adjacency, 1, delta), rel=1e-6)


@pytest.mark.nightly
def test_an_ancestor_may_have_missed_the_entity() -> None:
    """Its release counts at its own largest entity, which it need not have sampled as one."""
    releases, entity = proof(**UEDP), EntityContribution.of_profile([2, 1])
    both = replace(releases, entries=(replace(releases.entries[0], run="ancestor"), *releases.entries))
    event = releases.entries[0].terms.mechanism.event()
    (largest, _) = GUARANTEE.units(clips_sentences=True, population=100)
    parts = [
        (event.robust(), replace(largest.adjacency, user_sentences=0.0), 1),
        (event, Adjacency(0.0, entity.limit), 1),
    ]
    claims = dict(both.of_entity(entity).claims)
    for delta in (1e-5, 1e-2, 0.2):
        assert claims[delta] == pytest.approx(accountant.composed_epsilon(parts, delta), rel=1e-6)


@pytest.mark.nightly
def test_the_releases_of_an_ancestor_count_at_its_own_bounds() -> None:
    releases = proof(noise_multiplier=2.0, strategy="uedp", q_s=0.2)
    assert releases.of_user(2).unit == "a user with 2 sentences that take part"
    earlier = replace(releases.entries[0], run="ancestor")
    both = replace(releases, entries=(earlier, *releases.entries))
    user = both.of_user(2)
    assert user.largest_advantage > releases.of_user(2).largest_advantage
    event = earlier.terms.mechanism.event()
    parts = [(event, Adjacency(32.0), 1), (event, Adjacency(2.0), 1)]
    assert dict(user.claims)[1e-3] == pytest.approx(accountant.composed_epsilon(parts, 1e-3), rel=1e-6)
    unbounded = replace(earlier, terms=replace(earlier.terms, guarantee=Guarantee()))
    entity = replace(both, entries=(unbounded, *releases.entries)).of_entity(EntityContribution.of_profile([1]))
    assert (entity.is_proven, entity.reason) == (False, "the run starts from one that bounds no entity's contribution")


def test_nothing_is_proven_of_a_run_without_noise() -> None:
    rates = proof(strategy="noiseless").of_user(3)
    assert (rates.is_proven, rates.reason) == (False, "noiseless guarantees nothing")
    assert (rates.largest_true_positive_rate(0.001), rates.largest_advantage) == (1.0, 1.0)
    assert rates.exchanged()(1.0) == 0.0
    assert rates.record()["reason"] == rates.reason
    hardly = proof(noise_multiplier=1e-4).of_user(3)
    assert (hardly.is_proven, hardly.reason) == (False, "a release had hardly any noise")


def test_a_run_without_a_release_gives_nothing_away() -> None:
    empty = replace(proof(), entries=())
    assert empty.of_user(3).largest_true_positive_rate(0.01) == pytest.approx(0.01)
    assert empty.of_user(3).largest_advantage == 0.0


def test_contributions_of_a_run_s_entities() -> None:
    offsets, entities = np.arange(0, 9, 4), np.zeros(8, dtype=np.int32)  # 2 users with 4 sentences on entity 0 each
    ownership = Ownership(offsets, np.arange(9), entities, num_entities=1)
    greedy = RunConfig.from_mapping({"privacy.known": "graph", "privacy.entity_bound": 3})
    kept = EntityContribution.of(EnforcedBounds.of(greedy.privacy, ownership), 0)
    assert kept.profile.sum() == kept.limit.total == 3
    weights = RunConfig.from_mapping({"privacy.entity_bound": 3})
    shared = EntityContribution.of(EnforcedBounds.of(weights.privacy, ownership), 0)
    assert (shared.profile.tolist(), shared.limit) == ([4, 4], ContributionBound(2, 4, 3, weighted=True))
