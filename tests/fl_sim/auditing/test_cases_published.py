"""Test attacks on the published algorithm: its ε fails for an entity of all users, and for the noise of its code."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fl_sim.auditing.audited_rounds import AuditedMechanism, published_target
from fl_sim.auditing.cases import Case, examine, published_case
from fl_sim.strategies.accounting import accountant
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound, PrivacyError
from fl_sim.strategies.accounting.paper_model import PublishedSettings

USERS, ENTITIES, DELTA = 946, 7610, 1e-5
SETTINGS = PublishedSettings(
    "f_e_plus", USERS, 50, noise_multiplier=2.0, q_e=0.5, sentences=14_040, sensitive_sentences=11_176
)
SMALL = replace(SETTINGS, users=40, users_per_round=20)
TRIALS = 2_000


def case_of(entity_users: int, *, user: bool = True, as_coded: bool = False, rounds: int = 50) -> Case:
    return published_case(
        "case", SETTINGS, rounds, DELTA, entity_users=entity_users, user=user, entities=ENTITIES, as_coded=as_coded
    )


def target(settings: PublishedSettings, entity_users: int, user: bool) -> AuditedMechanism:
    adjacency = Adjacency(math.inf if user else 0, ContributionBound(entity_users, 1 if entity_users else 0))
    return published_target(settings, ENTITIES, adjacency, 0.1, "as-stated")


def test_the_noise_is_that_of_the_paper_and_of_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """σ = z(q_u|U| + 1)β / D with D = 50·(0.5·7610 + 2864); on the sum, in units of β, that is z·51."""
    monkeypatch.setattr(accountant, "epsilon", lambda *args: 1e9)
    assert case_of(15).target.noise_std == pytest.approx(2 * 51)
    sigma = 2 * 51 * 0.1 / (50 * (0.5 * 7610 + 2864))
    assert sigma == pytest.approx(3.06e-5, rel=1e-3)
    assert case_of(15, as_coded=True).target.noise_std == pytest.approx(2 * 51 * sigma)


@pytest.mark.parametrize("estimator", ["f_e", "f_e_plus"])
def test_without_noise_the_round_is_the_algorithm(estimator: str) -> None:
    """Sampled users who mention e' pull −β without it and +β with it, and u' adds +β."""
    settings = replace(SMALL, estimator=estimator)
    sums = {
        present: target(settings, 3, user=True).outputs(present, 1, 8_000, seed=0, noise=False)[0]
        for present in (False, True)
    }
    rng = np.random.default_rng(0)
    expected = {False: -rng.binomial(3, 0.5, 8_000), True: rng.binomial(4, 0.5, 8_000)}
    for present, observed in sums.items():
        counts = [
            np.bincount((values + 3).round().astype(int), minlength=8) for values in (observed, expected[present])
        ]
        seen = counts[0] + counts[1] > 0
        assert stats.chi2_contingency(np.stack(counts)[:, seen]).pvalue > 1e-4
    noisy = target(settings, 3, user=True).outputs(True, 1, 8_000, seed=0)[0] - sums[True]
    assert stats.kstest(noisy / (2 * 21), "norm").pvalue > 1e-4


@pytest.mark.nightly
def test_as_stated_the_claim_fails_for_an_entity_of_all_users_and_ours_holds() -> None:
    finding = examine(case_of(USERS, user=False), trials=400, seed=0, confidence=0.95)
    assert finding.case.as_published == pytest.approx(0.52, abs=0.01)
    assert finding.epsilon_lower > 3
    assert finding.as_published_holds is False
    assert finding.holds


@pytest.mark.nightly
@pytest.mark.parametrize("entity_users", [0, 1, 15])
def test_as_stated_nothing_is_refuted_for_an_entity_of_few_users(entity_users: int) -> None:
    finding = examine(case_of(entity_users), trials=TRIALS, seed=0, confidence=0.95)
    assert finding.holds
    assert finding.as_published_holds


@pytest.mark.parametrize("entity_users", [0, 1])
def test_as_coded_the_claim_fails_even_for_one_user(entity_users: int) -> None:
    finding = examine(case_of(entity_users, as_coded=True), trials=TRIALS, seed=0, confidence=0.95)
    assert finding.epsilon_lower > 9 * 0.52
    assert finding.as_published_holds is False
    assert not finding.case.proven


def test_the_baseline_is_that_of_the_product() -> None:
    baseline = replace(SMALL, estimator="user_level")
    case = published_case("case", baseline, 5, DELTA, entity_users=0)
    assert case.as_published is not None
    assert case.target.noise_std == 2.0
    assert examine(case, trials=TRIALS, seed=0, confidence=0.95).holds
    assert published_case("case", baseline, 5, DELTA, entity_users=3).as_published is None, "it claims no entity"


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(PrivacyError, match="entity_users is 947"):
        case_of(947)
    with pytest.raises(PrivacyError, match="estimator is user_level"):
        published_case("case", replace(SMALL, estimator="user_level"), 5, DELTA, entity_users=0, as_coded=True)
