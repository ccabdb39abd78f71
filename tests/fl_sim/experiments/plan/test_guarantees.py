"""The ε that a run may print: that of the accountant, at bounds that are set or read off the corpus; never falling."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fl_sim.config import RunConfig
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.plan import guarantees
from fl_sim.experiments.plan.guarantees import EnforcedBounds, EpsilonCurves
from fl_sim.strategies.accounting import accountant
from fl_sim.strategies.accounting.adjacency import ANY_NUMBER, Adjacency, ContributionBound
from fl_sim.strategies.accounting.guarantee import ProtectedUnit
from fl_sim.strategies.accounting.paper_model import AS_PUBLISHED
from fl_sim.strategies.mechanism import PrivacyPlan
from fl_sim.strategies.uedp import UserEntityDP
from tests.fl_sim.ownerships import ownership, village

MECHANISM = UserEntityDP(population=50, q_u=1.0, q_e=0.5, q_s=0.1, clip_norm=1.0, user_cap=2.0, noise_multiplier=4.0)
PLAN = PrivacyPlan(mechanism=MECHANISM, rounds=30, delta=1e-5)


GRAPH = {"known": "graph"}
UNBOUNDED = GRAPH | {"entity_bound": "unbounded", "user_sentences": "corpus"}
STATED = {"known": "nothing", "entity_bound": 5}
A_SENTENCE = ContributionBound(users=1, sentences_per_user=1)
"""A sentence without a detected entity, which is an entity of its own."""


def protected(incidence: Ownership | None = None, **privacy: Any) -> EnforcedBounds:
    """Return whom a run protects, by default without enforced bounds and with n' read off the corpus."""
    config = RunConfig.from_mapping({"privacy": {"settings_from_corpus": True} | (privacy or UNBOUNDED)})
    return EnforcedBounds.of(config.privacy, incidence or village())


def curves_of(parties: EnforcedBounds, plan: PrivacyPlan = PLAN) -> EpsilonCurves:
    return EpsilonCurves.of(plan, parties.units(plan.mechanism))


def target(parties: EnforcedBounds, unit: str) -> tuple[str, tuple[ProtectedUnit, ...]]:
    """The metric of a target, and its units."""
    metric, units = parties.target(unit, clips_sentences=True, population=MECHANISM.population)
    return metric, tuple(units.values())


def test_whom_a_corpus_protects() -> None:
    parties = protected()
    assert parties.guarantee.user.user_sentences == 12
    assert parties.entity_bounds["median"] == ContributionBound(users=1, sentences_per_user=1, sentences=1)
    assert parties.entity_bounds["max"] == ContributionBound(users=20, sentences_per_user=3, sentences=22)
    assert parties.coverage == {"median": 19 / 21, "p95": 20 / 21, "max": 1.0}


@pytest.mark.system
def test_by_counts_the_headline_is_the_accountants_at_sums_of_weights() -> None:
    after = curves_of(protected(entity_bound=5, user_sentences=8)).after(30)
    weights = ContributionBound(50, ANY_NUMBER, 5, weighted=True)
    user = Adjacency(8, weighted=True)
    entity = accountant.epsilon(MECHANISM.event(), replace(user, entity_bound=weights), 30, 1e-5)
    sentence = accountant.epsilon(MECHANISM.event().robust(), replace(user, entity_bound=A_SENTENCE), 30, 1e-5)
    assert after["epsilon_any"] == max(entity, sentence)
    assert after["epsilon_user"] == accountant.epsilon(MECHANISM.event(), user, 30, 1e-5)
    by_number = curves_of(protected(**GRAPH, entity_bound=5, user_sentences=8)).after(30)
    assert by_number["epsilon_any"] < after["epsilon_any"] < 1.05 * by_number["epsilon_any"]


def test_each_quantile_is_taken_on_its_own() -> None:
    few_users_much_text = [[0]] * 9
    parties = protected(ownership(few_users_much_text, [[1]], [[1]], [[1]]))
    assert parties.entity_bounds["max"] == ContributionBound(users=3, sentences_per_user=9, sentences=9)


def test_contributions_are_those_under_the_bounds() -> None:
    parties = protected(**GRAPH, entity_bound=5, user_sentences=8)
    assert parties.guarantee.user.user_sentences == 8
    assert parties.entity_bounds["max"].total == 5
    assert parties.entity_bounds["max"].users <= 5
    weighted = protected(entity_bound=5)
    assert weighted.entity_bounds["max"].weighted
    assert (weighted.entity_bounds["max"].users, weighted.entity_bounds["max"].total_weight) == (20, 5)


# Targets


def test_a_target_rests_on_the_bounds_that_are_set() -> None:
    parties = protected(**GRAPH, entity_bound=5, user_sentences=8)
    user = Adjacency(8)
    assert target(parties, "user") == ("epsilon_user", (ProtectedUnit(user, robust=False),))
    units = (
        ProtectedUnit(replace(user, entity_bound=ContributionBound(5, 5, 5)), robust=False),
        ProtectedUnit(replace(user, entity_bound=A_SENTENCE), robust=True),
    )
    assert target(parties, "user_entity") == ("epsilon_any", units)


def test_a_target_rests_on_the_corpus_only_if_that_is_stated() -> None:
    parties = protected()
    at_p95 = ProtectedUnit(Adjacency(12, parties.entity_bounds["p95"]), robust=False)
    assert target(parties, "user_entity") == ("epsilon_user_entity_p95", (at_p95,))
    assert target(replace(parties, settings_from_corpus=False), "user_entity")[1] == ()
    # With bounds, what may be read off the corpus is not read.
    bounded = protected(entity_bound=5)
    assert target(bounded, "user_entity") == target(replace(bounded, settings_from_corpus=False), "user_entity")


@pytest.mark.system
def test_a_stated_bound_has_a_name_of_its_own() -> None:
    parties = protected(**STATED)
    assert target(parties, "user_entity")[0] == "epsilon_stated"
    after = curves_of(parties).after(30)
    assert math.isinf(after["epsilon_any"])
    enforced = curves_of(protected(**GRAPH, entity_bound=5, user_sentences="unbounded")).after(30)
    assert after["epsilon_stated"] == enforced["epsilon_any"]


# Curves


@pytest.mark.system
@pytest.mark.parametrize("rounds", [1, 7, 30])
def test_the_figures_are_the_accountants(rounds: int) -> None:
    parties = protected()
    after = curves_of(parties).after(rounds)
    event, n = MECHANISM.event(), parties.guarantee.user.user_sentences
    for name, (what, adjacency) in {
        "epsilon_user": (event, Adjacency(n)),
        "epsilon_user_unbounded": (event, Adjacency()),
        "epsilon_user_entity_median": (event, Adjacency(n, parties.entity_bounds["median"])),
        "epsilon_user_entity_max": (event, Adjacency(n, parties.entity_bounds["max"])),
        "epsilon_user_entity_robust_max": (event.robust(), Adjacency(n, parties.entity_bounds["max"])),
    }.items():
        epsilon = accountant.epsilon(what, adjacency, rounds, 1e-5)
        assert after[name] == pytest.approx(epsilon, rel=2e-3)
        if rounds == PLAN.rounds:  # where targets are met: on the same grid as the search for the noise
            assert after[name] <= epsilon


def test_epsilon_begins_at_zero_and_never_falls() -> None:
    for bounds in (UNBOUNDED, {"entity_bound": 5, "missed_mentions": 2}):
        curves = curves_of(protected(**bounds)).curves
        assert len(curves) == 9 + ("missed_mentions" in bounds)
        for curve in curves.values():
            assert len(curve) == 31
            assert curve[0] == 0
            assert (np.diff(curve[np.isfinite(curve)]) >= 0).all()
            assert np.isfinite(curve).all() or np.isinf(curve[1:]).all()


def test_a_strategys_claim_takes_the_place_of_no_proven_epsilon() -> None:
    class Claims(UserEntityDP):
        def claims(self, rounds: int, delta: float) -> dict[str, np.ndarray]:
            return dict.fromkeys(("epsilon_user", "epsilon_stated", AS_PUBLISHED), np.zeros(rounds + 1))

    parties, plan = protected(entity_bound=5), replace(PLAN, mechanism=Claims(**vars(MECHANISM)))
    assert curves_of(parties, plan).after(30) == curves_of(parties).after(30) | {AS_PUBLISHED: 0.0}


def test_without_a_bound_no_epsilon_holds_for_any_entity() -> None:
    curves = curves_of(protected()).curves
    assert np.isinf(curves.pop("epsilon_any")[1:]).all()
    assert all(np.isfinite(curve).all() for curve in curves.values())


@pytest.mark.system
def test_the_headline_is_the_largest_epsilon_of_a_bounded_entity_and_of_a_sentence() -> None:
    after = curves_of(protected(**GRAPH, entity_bound=5, user_sentences=8, missed_mentions=2)).after(30)
    event = MECHANISM.event()
    entity = accountant.epsilon(event, Adjacency(8, ContributionBound(5, 5, 5)), 30, 1e-5)
    sentence = accountant.epsilon(event.robust(), Adjacency(8, A_SENTENCE), 30, 1e-5)
    missed = accountant.epsilon(event.robust(), Adjacency(8, ContributionBound(7, 7, 7)), 30, 1e-5)
    assert after["epsilon_any"] == max(entity, sentence) < after["epsilon_any_robust"] == missed
    one = curves_of(protected(**GRAPH, entity_bound=1, user_sentences=8)).after(30)
    assert one["epsilon_any"] == sentence > accountant.epsilon(event, Adjacency(8, A_SENTENCE), 30, 1e-5)


@pytest.mark.parametrize(
    "bounds", [{"entity_bound": 5}, GRAPH | {"entity_bound": 5, "entity_users": 2}, {"entity_bound": 30}]
)
def test_under_a_bound_no_entity_of_the_corpus_exceeds_the_headline(bounds: dict[str, Any]) -> None:
    after = curves_of(protected(**bounds)).after(30)
    for name in guarantees.CONTRIBUTION_QUANTILES:
        assert after[f"epsilon_user_entity_{name}"] <= after["epsilon_any"]


@pytest.mark.parametrize("q_e", [1.0, 0.95])
def test_entity_coins_are_relied_on_however_rarely_they_fall_and_only_if_there_are_any(q_e: float) -> None:
    after = curves_of(protected(), replace(PLAN, mechanism=replace(MECHANISM, q_e=q_e))).after(30)
    for name in guarantees.CONTRIBUTION_QUANTILES:
        detected, robust = (after[f"epsilon_user_entity{kind}_{name}"] for kind in ("", "_robust"))
        assert detected == robust if q_e == 1 else detected < robust


@pytest.mark.system
def test_a_long_run_has_fewer_figures_that_still_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = curves_of(protected(entity_bound=22))
    monkeypatch.setattr(guarantees, "_MOST_COUNTS", 7)
    coarse = curves_of(protected(entity_bound=22))
    for name, curve in exact.curves.items():
        assert len(coarse.curves[name]) == 31
        assert (coarse.curves[name] >= curve * (1 - 1e-3)).all()
        assert (np.diff(coarse.curves[name]) >= 0).all()
        assert coarse.curves[name][30] == pytest.approx(curve[30], rel=1e-3)
        assert len(np.unique(coarse.curves[name])) <= 8


def test_rounds_within_a_budget() -> None:
    after = curves_of(protected(entity_bound=5))
    for name in ("epsilon_user", "epsilon_any", "epsilon_user_entity_p95"):
        curve = after.curves[name]
        assert after.rounds_within(float(curve[12]), name) == 12
        assert after.rounds_within(float(np.nextafter(curve[12], 0)), name) == 11
        assert after.rounds_within(1e9, name) == 30
        assert after.rounds_within(float(curve[1]) / 2, name) == 0
