"""Test that an audit refutes every mechanism broken on purpose, and passes the intact one."""

from __future__ import annotations

import numpy as np
import pytest

from fl_sim.auditing.audited_rounds import MUTATIONS, mutate, seam_of
from fl_sim.auditing.cases import Finding, examine, own_case
from fl_sim.strategies import aggregation
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound, PrivacyError
from fl_sim.strategies.primitives import noise, sampling

# Where each fault shows: the event, whom it protects, and how many other entities stand beside e'.
SHOWS = {
    "noise_halved": (RoundEvent("uedp", 1.0), Adjacency(1), 0),
    "sentence_clip_removed": (RoundEvent("uedp", 1.0, user_cap=10), Adjacency(0, ContributionBound(1, 1)), 0),
    "user_clip_removed": (RoundEvent("uedp", 1.0, user_cap=2), Adjacency(20), 0),
    "clip_removed": (RoundEvent("user_level", 1.0), Adjacency(1), 0),
    "entity_coins_per_user": (RoundEvent("uedp", 0.1, q_e=0.1, user_cap=5), Adjacency(0, ContributionBound(20, 1)), 0),
    "any_entity_active": (RoundEvent("uedp", 0.5, q_e=0.1, user_cap=2), Adjacency(0, ContributionBound(2, 1)), 10),
}
TRIALS = 4_000


def examined(name: str, mutation: str | None) -> Finding:
    event, adjacency, companions = SHOWS[name]
    case = own_case(name, event, adjacency, 1, 1e-5, mutation=mutation, companions=companions)
    return examine(case, trials=TRIALS, seed=0, confidence=0.95)


def test_every_mutation_has_its_test() -> None:
    assert SHOWS.keys() == MUTATIONS.keys()


@pytest.mark.nightly
@pytest.mark.parametrize("name", SHOWS)
def test_the_whole_mechanism_passes_and_the_broken_one_is_caught(name: str) -> None:
    assert examined(name, None).holds
    broken = examined(name, name)
    assert not broken.holds, broken.record()


def test_half_the_noise_in_the_product_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same fault in the product's own code, not at the seam: the audit runs that code."""
    monkeypatch.setattr(
        aggregation,
        "add_gaussian_noise",
        lambda total, seed, number, std, *stream: noise.add_gaussian_noise(total, seed, number, std / 2, *stream),
    )
    assert not examined("noise_halved", None).holds


def test_entities_always_included_in_the_product_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sampling, "sampled_entities", lambda seed, entities, q_e: np.ones(len(entities), dtype=np.bool_)
    )
    assert not examined("any_entity_active", None).holds


def test_users_that_are_always_sampled_in_the_product_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    event = RoundEvent("uedp", 0.5, q_u=0.1)
    monkeypatch.setattr(sampling, "sample_users", lambda seed, number, users, q_u: np.arange(users))
    case = own_case("user", event, Adjacency(1), 1, 1e-5)
    assert not examine(case, trials=TRIALS, seed=0, confidence=0.95).holds


def test_a_mutation_changes_the_seam_and_nothing_else() -> None:
    event = RoundEvent("uedp", 1.0, user_cap=3)
    seam = seam_of(event, 1, 1e-5)
    for name in MUTATIONS:
        mutated = mutate(seam, name)
        assert mutated != seam
        assert mutated.plan.with_noise(1.0) == seam.plan


def test_an_unknown_mutation_is_refused() -> None:
    with pytest.raises(PrivacyError, match=r"mutation is 'none'; allowed: any_entity_active, clip_removed"):
        mutate(seam_of(RoundEvent("uedp", 1.0), 1, 1e-5), "none")
