"""The ε that a run may print: what the accountant says, at the reach of the corpus, never falling."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fl_sim.config import PrivacyConfig
from fl_sim.experiments import guarantees
from fl_sim.experiments.guarantees import Guarantees, Protected, epsilon_name
from fl_sim.strategies.accounting import accountant
from fl_sim.strategies.accounting.adjacency import NO_ENTITY, Adjacency, ContributionBound
from fl_sim.strategies.mechanism import PrivacyPlan
from fl_sim.strategies.uedp import UserEntityDP
from tests.fl_sim.ownerships import ownership, village

MECHANISM = UserEntityDP(population=50, q_u=1.0, q_e=0.5, q_s=0.1, clip_norm=1.0, user_cap=2.0, noise_multiplier=4.0)
PLAN = PrivacyPlan(mechanism=MECHANISM, rounds=30, delta=1e-5)


def protected() -> Protected:
    return Protected.of(village(), PrivacyConfig())


def test_whom_a_corpus_protects() -> None:
    parties = protected()
    assert parties.user_sentences == parties.largest_user == 12
    assert parties.entity_bounds["median"] == ContributionBound(users=1, sentences_per_user=1, sentences=1)
    assert parties.entity_bounds["max"] == ContributionBound(users=20, sentences_per_user=3, sentences=22)
    assert parties.coverage == {"median": 19 / 21, "p95": 20 / 21, "max": 1.0}
    assert parties.target("user") == Adjacency(12, NO_ENTITY)
    assert parties.target("user_entity") == Adjacency(12, parties.entity_bounds["p95"])


def test_each_quantile_is_taken_on_its_own() -> None:
    few_users_much_text = [[0]] * 9
    parties = Protected.of(ownership(few_users_much_text, [[1]], [[1]], [[1]]), PrivacyConfig())
    assert parties.entity_bounds["max"] == ContributionBound(users=3, sentences_per_user=9, sentences=9)


@pytest.mark.parametrize("rounds", [1, 7, 30])
def test_the_figures_are_the_accountants(rounds: int) -> None:
    parties = protected()
    after = Guarantees.of(PLAN, parties).after(rounds)
    event, n = MECHANISM.event(), parties.user_sentences
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
    curves = Guarantees.of(PLAN, protected()).curves
    assert len(curves) == 8
    for curve in curves.values():
        assert len(curve) == 31
        assert curve[0] == 0
        assert (np.diff(curve) >= 0).all()


def test_the_order_of_the_promises() -> None:
    after = Guarantees.of(PLAN, protected()).after(30)
    assert after["epsilon_user"] < after["epsilon_user_unbounded"]
    assert after["epsilon_user"] < after["epsilon_user_entity_median"] < after["epsilon_user_entity_max"]
    for entity_bound in ("median", "p95", "max"):
        assert after[f"epsilon_user_entity_{entity_bound}"] < after[f"epsilon_user_entity_robust_{entity_bound}"]


def test_without_entity_coins_nothing_relies_on_detection() -> None:
    after = Guarantees.of(replace(PLAN, mechanism=replace(MECHANISM, q_e=1.0)), protected()).after(30)
    for entity_bound in ("median", "p95", "max"):
        assert after[f"epsilon_user_entity_{entity_bound}"] == after[f"epsilon_user_entity_robust_{entity_bound}"]


def test_a_long_run_has_fewer_figures_that_still_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = Guarantees.of(PLAN, protected())
    monkeypatch.setattr(guarantees, "_MOST_COUNTS", 7)
    coarse = Guarantees.of(PLAN, protected())
    for name, curve in exact.curves.items():
        assert len(coarse.curves[name]) == 31
        assert (coarse.curves[name] >= curve * (1 - 1e-3)).all()
        assert (np.diff(coarse.curves[name]) >= 0).all()
        assert coarse.curves[name][30] == pytest.approx(curve[30], rel=1e-3)
        assert len(np.unique(coarse.curves[name])) <= 8


def test_rounds_within_a_budget() -> None:
    promised = Guarantees.of(PLAN, protected())
    for unit in ("user", "user_entity"):
        curve = promised.curves[epsilon_name(unit)]
        assert promised.rounds_within(float(curve[12]), unit) == 12
        assert promised.rounds_within(float(np.nextafter(curve[12], 0)), unit) == 11
        assert promised.rounds_within(1e9, unit) == 30
        assert promised.rounds_within(float(curve[1]) / 2, unit) == 0
