"""The mechanism in one object: what belongs together, what noise it means, and for whom ε is computed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fl_sim.strategies.accounting.accountant import RoundEvent, epsilon
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound, PrivacyError
from fl_sim.strategies.accounting.paper_model import epsilon_as_published, proven_event
from fl_sim.strategies.mechanism import PrivacyPlan
from fl_sim.strategies.primitives.adaptive_clip import AdaptiveClip
from fl_sim.strategies.primitives.limits import SMALLEST_NOISE
from fl_sim.strategies.registry import plan_from_record
from tests.strategies.federation import TERMS, plan

RATES = {"population": 946, "q_u": 50 / 946, "q_e": 0.5, "clip_norm": 0.1, "noise_multiplier": 2.0, "rounds": 50}
ADAPTIVE = AdaptiveClip(quantile=0.5, learning_rate=0.2, count_noise=5.0)


def published(**changes: object) -> PrivacyPlan:
    return plan(strategy="published", options=replace(TERMS, **changes), **RATES)


# --- the published algorithm ------------------------------------------------------------------------------------------


def test_the_published_noise_is_that_of_equation_6() -> None:
    """σ = z·(q_u|U| + 1)·β / D belongs to the average, D = q_u·W_u·(q_e·W_e + q_s·W_s)."""
    stated, coded = (published(noise=noise).mechanism for noise in ("as-stated", "as-coded"))
    denominator = 50 * (0.5 * 7610 + 2864)
    assert stated.denominator == pytest.approx(denominator)
    assert stated.noise_std(0.1) / stated.denominator == pytest.approx(2 * 51 * 0.1 / denominator)
    assert published(estimator="f_e").mechanism.denominator == pytest.approx(50 * 0.5 * 7610)
    assert coded.noise_std(0.1) / coded.denominator == pytest.approx((2 * 51 * 0.1 / denominator) ** 2)
    assert coded.noise_std(0.1) < 1e-4 * stated.noise_std(0.1)


def test_what_is_proven_for_published_is_what_the_accountant_was_given_before() -> None:
    stated = published().mechanism
    claim = stated.claim()
    assert stated.event().noise_multiplier == pytest.approx(proven_event(claim).noise_multiplier)
    assert stated.event() == replace(proven_event(claim), noise_multiplier=stated.event().noise_multiplier)
    assert epsilon_as_published(claim, 50, 1e-5) == pytest.approx(0.52, abs=0.01)


def test_weights_from_data_are_accounted_for_at_full_reach() -> None:
    """Of 200 users, because ε at full reach takes the longer the more there are."""
    rates = RATES | {"population": 200, "q_u": 0.05}
    fixed = plan(strategy="published", options=TERMS, **rates)
    everybody = fixed.epsilon_curve(Adjacency(5, ContributionBound(200, 1)), [3])
    for adjacency in (Adjacency(5), Adjacency(5, ContributionBound(2, 1))):
        few = fixed.epsilon_curve(adjacency, [3])
        assert everybody > 10 * few
        for cap in ("user_cap", "entity_cap", "extended_cap"):
            weighted = plan(strategy="published", options=replace(TERMS, **{cap: 3.0}), **rates)
            assert weighted.epsilon_curve(adjacency, [3]) == everybody


@pytest.mark.nightly
@pytest.mark.parametrize("robust", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {"q_e": 0.3, "q_s": 0.5, "user_cap": 3.0},
        {"strategy": "published", "options": TERMS, "q_u": 0.2, "population": 9},
        {"strategy": "published", "options": replace(TERMS, user_cap=3.0), "q_u": 0.2, "population": 9},
    ],
    ids=["uedp", "published", "weights from data"],
)
def test_the_noise_for_a_target_meets_it(changes: dict, robust: bool) -> None:
    """With the noise multiplier of the plan, for the unit that is exposed, and no more noise than that takes."""
    few = plan(**{"noise_multiplier": 3.0, "rounds": 2, **changes})
    for adjacency in (Adjacency(2.0, ContributionBound(2, 1)), Adjacency(20, ContributionBound(3, 2))):
        target = 0.5 * float(few.epsilon_curve(adjacency, [2], robust=robust)[0])
        met = few.with_noise(few.noise_for(target, adjacency, robust=robust))
        assert 0.99 * target <= met.epsilon_curve(adjacency, [2], robust=robust)[0] <= target


def test_no_target_has_less_noise_than_a_run_may_have() -> None:
    """Where the noise of the sum is many times z·β, a z below that would do for a large ε."""
    assert published().noise_for(1e5, Adjacency(1.0, ContributionBound(1, 1))) == SMALLEST_NOISE


def test_a_robust_curve_does_not_rely_on_the_tagger() -> None:
    adjacency = Adjacency(2.0, ContributionBound(3, 2))
    curves = {q_e: plan(q_e=q_e, q_s=0.5, noise_multiplier=2.0) for q_e in (0.2, 1.0)}
    robust, plain = (curves[0.2].epsilon_curve(adjacency, [1, 5], robust=choice) for choice in (True, False))
    assert robust == pytest.approx(curves[1.0].epsilon_curve(adjacency, [1, 5]))
    assert (plain < 0.9 * robust).all()


# --- clips that adapt -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9])
def test_sum_and_count_together_cost_what_z_costs(quantile: float) -> None:
    """1/z² = 1/z_Δ² + (h·ŵ/σ_b)², Andrew et al. 2021 with h = ½; here for any quantile, and counts of ŵ items."""
    adaptive = replace(ADAPTIVE, quantile=quantile, count_noise=3.0)
    adapts = plan(user_cap=4.0, noise_multiplier=1.5, adaptive=adaptive).mechanism
    z_sum = adapts.noise_per_clip
    sigma_count = adaptive.count_noise_std(1.5, adapts.items_per_user)
    share = adaptive.largest_vote * adapts.items_per_user
    assert 1 / z_sum**2 + (share / sigma_count) ** 2 == pytest.approx(1 / 1.5**2)
    assert sigma_count == pytest.approx(3.0 * share * 1.5)
    if quantile == 0.5:
        assert z_sum == pytest.approx((1.5**-2 - (2 * sigma_count / 4.0) ** -2) ** -0.5)


# --- what is accounted for, and what is refused -----------------------------------------------------------------------


def test_a_user_clip_alone_is_accounted_for_as_such() -> None:
    """A sampled user who knows the entity moves by two clips; q_s brings nothing (docs/privacy.md, remark v)."""
    rates = {"q_u": 0.1, "q_e": 0.5, "q_s": 0.2, "user_cap": 5.0, "noise_multiplier": 1.0, "rounds": 3}
    alone = plan(clipping="user", **rates)
    assert alone.mechanism.event() == RoundEvent("uedp", 1.0, 0.1, 0.5, 0.2, 5.0, clipping="user")
    rule = alone.mechanism.client_rule(1.0)
    assert (rule.sentence_clip, rule.user_clip) == (math.inf, 5.0)
    entity_bound = Adjacency(3, ContributionBound(4, 1))
    assert alone.epsilon_curve(entity_bound, [3]) > 2 * plan(**rates).epsilon_curve(entity_bound, [3])
    everybody = plan(clipping="user", **(rates | {"q_e": 1.0, "q_s": 1.0, "user_cap": 1.0}))
    level = plan(strategy="user_level", q_u=0.1, noise_multiplier=1.0, rounds=3)
    assert epsilon(everybody.mechanism.event(), entity_bound, 3, 1e-5) == pytest.approx(
        epsilon(level.mechanism.event(), entity_bound, 3, 1e-5)
    )


def test_random_allocation_puts_every_user_into_one_round_of_each_epoch() -> None:
    mechanism = plan(strategy="user_level", q_u=0.2, epoch_rounds=5).mechanism
    assert mechanism.event().epoch_rounds == 5  # accounted for as such (test_random_allocation.py)
    cohorts = [mechanism.cohort(3, number, 50) for number in range(1, 11)]
    for epoch in (cohorts[:5], cohorts[5:]):
        assert sorted(np.concatenate(epoch).tolist()) == list(range(50))
    assert [cohort.tolist() for cohort in cohorts[:5]] != [cohort.tolist() for cohort in cohorts[5:]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clipping": "both"}, "clipping is both"),
        ({"strategy": "noiseless", "adaptive": ADAPTIVE}, "adaptive is .* allowed: nothing under noiseless"),
        ({"strategy": "published"}, "options is None"),
        ({"strategy": "published", "options": TERMS, "user_cap": 2.0}, "user_cap is 2.0; allowed: 1 under published"),
        ({"strategy": "published", "options": TERMS, "adaptive": ADAPTIVE}, "allowed: nothing under published"),
        ({"noise_multiplier": 0.0}, "noise_multiplier is 0.0"),
    ],
)
def test_impossible_mechanisms_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(PrivacyError, match=message):
        plan(**changes)


@pytest.mark.parametrize("options", [{"clipping": "user"}, {"terms": None}])
def test_a_record_has_no_settings_of_another_strategy(options: dict) -> None:
    values = plan(strategy="user_level").record()
    with pytest.raises(TypeError, match=next(iter(options))):
        plan_from_record(values | {"options": options})


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        (ADAPTIVE, {"quantile": 1.0}, "clip_quantile is 1.0"),
        (ADAPTIVE, {"learning_rate": 0.0}, "clip_learning_rate is 0.0"),
        (ADAPTIVE, {"count_noise": 1.0}, "clip_count_noise is 1.0; allowed: above 1"),
        (TERMS, {"estimator": "user_level"}, "estimator is 'user_level'"),
        (TERMS, {"noise": "none"}, "noise is 'none'"),
        (TERMS, {"entity_weights": 0.0}, "entity_weights is 0.0"),
        (TERMS, {"extended_weights": -1.0}, "extended_weights is -1.0"),
        (TERMS, {"user_cap": 0.0}, "user_cap is 0.0"),
    ],
)
def test_impossible_parts_are_refused(part: object, changes: dict, message: str) -> None:
    with pytest.raises(PrivacyError, match=message):
        replace(part, **changes)


@pytest.mark.parametrize("recorded", [plan(), plan(adaptive=ADAPTIVE), published()])
def test_a_plan_is_read_from_its_record(recorded: PrivacyPlan) -> None:
    assert plan_from_record(recorded.record()) == recorded


def test_nodes_get_the_rates_that_are_accounted_for() -> None:
    mechanism = plan(q_u=0.9, q_e=0.5, q_s=0.2, user_cap=3.0).mechanism
    rule, event = mechanism.client_rule(0.5), mechanism.event()
    assert event is not None
    assert (rule.q_e, rule.q_s, rule.user_clip) == (0.5, 0.2, 1.5) == (event.q_e, event.q_s, 0.5 * event.user_cap)
