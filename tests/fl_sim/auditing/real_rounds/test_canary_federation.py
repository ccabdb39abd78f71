"""Test real rounds with canaries: their shifts have the distribution of the theorem; who is left out adds nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fl_sim.auditing.inline_rounds import Release
from fl_sim.auditing.real_rounds.canary_audit import mean_shift, shift_distribution
from fl_sim.auditing.real_rounds.canary_cases import CASES, GPT2, UNSAMPLED
from fl_sim.auditing.real_rounds.canary_federation import canary_model, release_along_canaries
from fl_sim.auditing.worst_case_corpora import BYSTANDER, Scenario, build
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.mechanism import PrivacyPlan

TEXTS = ("Ada left the house.", "It rained all day.", "Nobody came.")
EVENT = RoundEvent("uedp", 1.0, q_u=0.7, q_e=0.5, q_s=0.4, user_cap=2.0)
SCENARIO = Scenario(entity_users=3, entity_sentences=3, user_sentences=4)
UNITS = 144


def test_every_unit_has_its_users_and_its_entity() -> None:
    corpus = build(SCENARIO, 2, bystanders=3)
    assert corpus.ownership.sentences_per_user.tolist() == [3, 3, 3, 4, 3, 3, 3, 4, 1, 1, 1]
    assert corpus.copy_of_sentence.tolist() == [0] * 13 + [1] * 13 + [BYSTANDER] * 3
    assert corpus.ownership.entity_contributions().sentences.tolist() == [9, 9]
    assert set(corpus.copy_of_sentence[corpus.ownership.entities_per_sentence == 0]) == {0, 1, BYSTANDER}


@pytest.fixture(scope="module")
def quiet() -> tuple[np.ndarray, np.ndarray]:
    """Three rounds without noise: which units are included, and the sums along all of them."""
    model = canary_model(GPT2, 0, 12)
    corpus = build(SCENARIO, UNITS, bystanders=len(TEXTS))
    users = corpus.ownership.num_users
    mechanism = replace(UNSAMPLED, population=users, q_u=0.7, q_e=0.5, q_s=0.4, noise_multiplier=1e-9)
    included = np.arange(UNITS) % 3 > 0
    plan = PrivacyPlan(mechanism=mechanism, rounds=3, delta=0.5)
    return included, release_along_canaries(model, corpus, TEXTS, included, plan, seed=1)


@pytest.mark.nightly
def test_the_shifts_have_the_distribution_of_the_theorem(quiet: tuple[np.ndarray, np.ndarray]) -> None:
    included, along = quiet
    law = shift_distribution(EVENT, SCENARIO)
    observed = along[:, included].ravel()
    nearest = law.values[np.abs(observed[:, None] - law.values).argmin(axis=1)]
    assert np.abs(observed - nearest).max() < 1e-2  # a float32 model, times the denominator
    chances = np.exp(law.log_weights)
    spread = np.sqrt(law.values**2 @ chances - mean_shift(law) ** 2)
    assert abs(observed.mean() - mean_shift(law)) < 4 * spread / np.sqrt(len(observed))
    for value, chance in zip(law.values, chances, strict=True):
        error = 4 * np.sqrt(chance * (1 - chance) / len(observed)) + 1e-9
        assert abs((nearest == value).mean() - chance) < error


@pytest.mark.nightly
def test_units_that_are_left_out_add_nothing(quiet: tuple[np.ndarray, np.ndarray]) -> None:
    included, along = quiet
    assert np.abs(along[:, ~included]).max() < 1e-2


@pytest.mark.parametrize("name", ["user-level", "adaptive", "local-steps", "awd-lstm"])
def test_the_noise_and_the_clip_are_those_of_the_mechanism(name: str) -> None:
    """In units of the round's own clip the noise is σ/β, whatever the clip adapts to."""
    case = CASES[name]
    corpus = build(Scenario(user_sentences=3), 100, bystanders=len(TEXTS))
    mechanism = case.with_population(corpus.ownership.num_users)
    plan = PrivacyPlan(mechanism=mechanism, rounds=3, delta=0.5)
    model, nobody = canary_model(case.model, 0, 10), np.zeros(100, dtype=bool)
    releases = list[Release]()
    along = release_along_canaries(model, corpus, TEXTS, nobody, plan, 0, releases.append)
    assert along.std() == pytest.approx(mechanism.noise_per_clip, rel=0.15)
    assert (len({release.clip_norm for release in releases}) > 1) is (mechanism.adaptive is not None)
