"""Test attacks on the published algorithm: its ε fails for an entity of all users, and for its code."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fl_sim.auditing.audited_rounds import OwnMechanism, published_target
from fl_sim.auditing.cases import Case, examine, published_case
from fl_sim.auditing.published_round import AS_CODED, AS_STATED, Defects, PublishedMechanism, adamw_update_norm
from fl_sim.strategies.accounting import accountant
from fl_sim.strategies.accounting.adjacency import PrivacyError
from fl_sim.strategies.accounting.paper_model import PublishedSettings

USERS, ENTITIES, DELTA = 946, 7610, 1e-5
SETTINGS = PublishedSettings(
    "f_e_plus", USERS, 50, noise_multiplier=2.0, q_e=0.5, sentences=14_040, sensitive_sentences=11_176
)
STATED = PublishedMechanism("f_e_plus", USERS, 50, 0.5, 2.0, entities=ENTITIES, plain_sentences=2_864)
TRIALS = 4_000


def case_of(entity_bound: int, defects: Defects = AS_STATED, *, user: bool = True, rounds: int = 50) -> Case:
    return published_case(
        "case", SETTINGS, rounds, DELTA, entities=ENTITIES, reach_users=entity_bound, user=user, defects=defects
    )


def test_the_noise_is_that_of_the_paper_and_of_its_code() -> None:
    """σ = z(q_u|U| + 1)β / D with D = 50·(0.5·7610 + 2864); on the sum, in units of β, that is z·51."""
    assert STATED.noise_std == pytest.approx(2 * 51)
    sigma = 2 * 51 * 0.1 / (50 * (0.5 * 7610 + 2864))
    assert sigma == pytest.approx(3.06e-5, rel=1e-3)
    coded = replace(STATED, defects=Defects(variance_as_std=True))
    assert coded.noise_std == pytest.approx(2 * 51 * sigma)


def test_without_noise_the_round_is_the_algorithm() -> None:
    """All users who mention e' pull −β without it and +β with it; the cohort is random as stated, fixed as coded."""
    mechanism = replace(STATED, reach_users=USERS, user=False)
    stated = {p: mechanism.outputs(p, 1, 4_000, seed=0, noise=False)[0] for p in (False, True)}
    assert stated[False].max() < 0 < stated[True].min()
    assert np.abs(stated[True]).mean() == pytest.approx(50, abs=0.5)
    assert np.abs(stated[True]).std() == pytest.approx((50 * (1 - 50 / USERS)) ** 0.5, rel=0.1)
    fixed = replace(mechanism, defects=Defects(fixed_cohort=True))
    assert set(fixed.outputs(False, 1, 100, seed=0, noise=False)[0]) == {-50.0}
    assert set(fixed.outputs(True, 1, 100, seed=0, noise=False)[0]) == {50.0}


def test_a_sentence_takes_part_as_soon_as_any_of_its_entities_does() -> None:
    alone = replace(STATED, reach_users=USERS, user=False, companions=0)
    with_companions = replace(alone, companions=3)
    turned = [np.mean(m.outputs(True, 1, 20_000, seed=0, noise=False) > 0) for m in (alone, with_companions)]
    assert turned[0] == pytest.approx(0.5, abs=0.02)
    assert turned[1] == pytest.approx(1 - 0.5**4, abs=0.02)


def test_a_fixed_cohort_puts_the_user_in_the_place_of_another() -> None:
    fixed = replace(STATED, defects=Defects(fixed_cohort=True))
    assert set(fixed.outputs(False, 1, 2_000, seed=0, noise=False)[0]) == {-50.0}
    assert set(fixed.outputs(True, 1, 2_000, seed=0, noise=False)[0]) == {-50.0, -48.0}


@pytest.mark.parametrize("present", [False, True])
def test_the_product_runs_what_the_model_says(present: bool) -> None:
    """Three affected users and u', half the users sampled: equal distributions of the sum, and equal noise."""
    settings = replace(SETTINGS, users=40, users_per_round=20)
    real = published_target(settings, ENTITIES, 0.1, reach_users=3, user=True)
    model = replace(STATED, users=40, users_per_round=20, reach_users=3, companions=16)
    assert real.noise_std == pytest.approx(model.noise_std) == 2 * 21
    observed, expected = (
        np.bincount((target.outputs(present, 1, 8_000, seed=0, noise=False)[0] + 3).round().astype(int), minlength=8)
        for target in (real, model)
    )
    seen = observed + expected > 0
    assert stats.chi2_contingency(np.stack([observed, expected])[:, seen]).pvalue > 1e-4
    noisy = real.outputs(present, 1, 8_000, seed=1)[0] - real.outputs(present, 1, 8_000, seed=1, noise=False)[0]
    assert stats.kstest(noisy / real.noise_std, "norm").pvalue > 1e-4


def test_as_stated_the_attack_is_on_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """No ε decides it, and at full reach one takes seconds."""
    monkeypatch.setattr(accountant, "epsilon", lambda *args: 1e9)
    assert isinstance(case_of(15, rounds=1).target, OwnMechanism)
    assert isinstance(case_of(USERS, rounds=1).target, PublishedMechanism)
    assert isinstance(case_of(15, AS_CODED, rounds=1).target, PublishedMechanism)


@pytest.mark.nightly
def test_as_stated_the_claim_fails_for_an_entity_of_all_users_and_ours_holds() -> None:
    finding = examine(case_of(USERS), trials=TRIALS, seed=0, confidence=0.95)
    assert finding.case.as_published == pytest.approx(0.52, abs=0.01)
    assert finding.epsilon_lower > 5
    assert finding.as_published_holds is False
    assert finding.holds


@pytest.mark.nightly
@pytest.mark.parametrize("entity_bound", [0, 1, 15])
def test_as_stated_nothing_is_refuted_for_an_entity_of_few_users(entity_bound: int) -> None:
    finding = examine(case_of(entity_bound), trials=TRIALS, seed=0, confidence=0.95)
    assert finding.holds
    assert finding.as_published_holds


@pytest.mark.nightly
@pytest.mark.parametrize("defects", [Defects(variance_as_std=True), AS_CODED])
@pytest.mark.parametrize("entity_bound", [0, 1])
def test_as_coded_the_claim_fails_even_for_one_user(defects: Defects, entity_bound: int) -> None:
    finding = examine(case_of(entity_bound, defects), trials=TRIALS, seed=0, confidence=0.95)
    assert finding.epsilon_lower > 10 * 0.52
    assert finding.as_published_holds is False
    assert not finding.case.proven


def test_one_round_as_coded_is_enough() -> None:
    finding = examine(case_of(USERS, AS_CODED, user=False, rounds=1), trials=TRIALS, seed=0, confidence=0.95)
    assert finding.audit.gaussian is not None
    assert finding.audit.gaussian.epsilon > 20


def test_adamw_forgets_the_clip() -> None:
    """One step moves every coordinate by the learning rate, whatever the gradient was clipped to."""
    norms = [adamw_update_norm(10**6, 1e-3, 1, clip) for clip in (0.1, 10.0)]
    assert norms == pytest.approx([1.0, 1.0], rel=1e-3)
    assert adamw_update_norm(10**6, 1e-3, 3, 0.1) == pytest.approx(3.0, rel=1e-2)
    coded = replace(STATED, reach_users=USERS, user=False, update_norm=0.5, defects=AS_CODED)
    assert coded.outputs(True, 1, 10, seed=0, noise=False) == pytest.approx(np.full((1, 10), 250.0))


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(PrivacyError, match="reach_users is 947"):
        replace(STATED, reach_users=947)
    with pytest.raises(PrivacyError, match=r"users_per_round is 50\.5"):
        replace(STATED, users_per_round=50.5, defects=AS_CODED)
    with pytest.raises(PrivacyError, match="estimator is user_level"):
        replace(STATED, estimator="user_level", defects=AS_CODED)
