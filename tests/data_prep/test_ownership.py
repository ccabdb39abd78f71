"""The incidence arrays: what they refuse, and that the vectorised reach is the reach one would count by hand."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.ownership import EntityReach, Ownership
from data_prep.records import CorpusError

SENTENCE = st.sets(st.integers(0, 6), max_size=4)
USERS = st.lists(st.lists(SENTENCE, max_size=5), min_size=1, max_size=6)


def incidence(users: list[list[set[int]]], num_entities: int = 7) -> Ownership:
    """Ownership of ``users``: per user a list of sentences, per sentence its entities."""
    sentences = [sorted(entities) for user in users for entities in user]
    return Ownership(
        user_offsets=np.cumsum([0, *map(len, users)]).astype(np.int64),
        entity_offsets=np.cumsum([0, *map(len, sentences)]).astype(np.int64),
        entity_ids=np.array([e for sentence in sentences for e in sentence], dtype=np.int32),
        num_entities=num_entities,
    )


@given(USERS)
def test_reach_equals_counting_by_hand(users: list[list[set[int]]]) -> None:
    reach = incidence(users).entity_profiles()
    for entity in range(7):
        per_user = [sum(entity in sentence for sentence in user) for user in users]
        assert reach.users[entity] == sum(count > 0 for count in per_user)
        assert reach.sentences[entity] == sum(per_user)
        assert reach.max_per_user[entity] == max(per_user)


@given(USERS)
def test_profiles_equal_counting_by_hand(users: list[list[set[int]]]) -> None:
    profiles = incidence(users).sentences_per_entity_user()
    for entity in range(7):
        per_user = [sum(entity in sentence for sentence in user) for user in users]
        found = profiles.sentences[profiles.offsets[entity] : profiles.offsets[entity + 1]]
        assert found.tolist() == sorted(filter(None, per_user), reverse=True)


@given(USERS)
def test_counts_and_owners(users: list[list[set[int]]]) -> None:
    ownership = incidence(users)
    assert ownership.num_users == len(users)
    assert ownership.num_sentences == sum(map(len, users))
    assert ownership.sentences_per_user.tolist() == [len(user) for user in users]
    assert ownership.user_of_sentence.tolist() == [u for u, user in enumerate(users) for _ in user]
    assert ownership.entities_per_sentence.tolist() == [len(s) for user in users for s in user]


def test_quantiles_are_values_that_occur_and_independent_of_one_another() -> None:
    reach = EntityReach(
        users=np.array([1, 1, 1, 9], dtype=np.int64),
        sentences=np.array([40, 2, 2, 9], dtype=np.int64),
        max_per_user=np.array([40, 2, 2, 1], dtype=np.int64),
    )
    assert reach.quantile(0.5) == (1, 2, 2)
    assert reach.quantile(0.75) == (1, 2, 9)
    assert reach.quantile(0.76) == (9, 40, 40)
    assert reach.quantile(1.0) == (9, 40, 40)
    assert all(type(value) is int for value in reach.quantile(0.95))


@pytest.mark.parametrize("q", [-0.1, 1.1, float("nan")])
def test_quantile_outside_unit_interval_is_refused(q: float) -> None:
    reach = incidence([[{0}]]).entity_profiles()
    with pytest.raises(CorpusError, match="must lie in"):
        reach.quantile(q)


def test_quantile_without_entities_is_refused() -> None:
    with pytest.raises(CorpusError, match="no entity"):
        incidence([[set()]], num_entities=0).entity_profiles().quantile(0.5)


def vector(*values: int, dtype: type = np.int64) -> np.ndarray:
    return np.array(values, dtype=dtype)


GOOD = {
    "user_offsets": vector(0, 1, 2),
    "entity_offsets": vector(0, 2, 3),
    "entity_ids": vector(0, 2, 1, dtype=np.int32),
    "num_entities": 3,
}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("user_offsets", vector(0, 1, 2, dtype=np.int32), "user_offsets must be a vector of int64"),
        ("user_offsets", [0, 1, 2], "user_offsets must be a vector of int64, not list"),
        ("user_offsets", vector(), "user_offsets must rise"),
        ("user_offsets", vector(1, 1, 2), "user_offsets must rise"),
        ("user_offsets", vector(0, 2, 1, 2), "user_offsets must rise"),
        ("user_offsets", vector(0, 1, 3), "user_offsets must rise"),
        ("entity_offsets", vector(0, 2, 4), "entity_offsets must rise"),
        ("entity_ids", vector(0, 2, 1), "entity_ids must be a vector of int32"),
        ("entity_ids", vector(0, 3, 1, dtype=np.int32), "must lie in"),
        ("entity_ids", vector(-1, 2, 1, dtype=np.int32), "must lie in"),
        ("entity_ids", vector(2, 0, 1, dtype=np.int32), "sorted and unique"),
        ("entity_ids", vector(2, 2, 1, dtype=np.int32), "sorted and unique"),
        ("num_entities", -1, "must not be negative"),
    ],
)
def test_contradictory_arrays_are_refused(key: str, value: object, message: str) -> None:
    Ownership(**GOOD)  # type: ignore[arg-type]
    with pytest.raises(CorpusError, match=message):
        Ownership(**{**GOOD, key: value})  # type: ignore[arg-type]


def test_a_million_sentences_take_about_a_second() -> None:
    rng = np.random.default_rng(0)
    sentences, entities = 1_000_000, 200_000
    first = rng.integers(0, entities - 1, size=sentences)
    ids = np.stack([first, first + 1], axis=1).astype(np.int32).ravel()
    started = time.perf_counter()
    ownership = Ownership(
        np.arange(0, sentences + 1, 10, dtype=np.int64),
        np.arange(0, 2 * sentences + 1, 2, dtype=np.int64),
        ids,
        entities,
    )
    reach = ownership.entity_profiles()
    assert time.perf_counter() - started < 10
    assert reach.sentences.sum() == len(ids)
    assert (reach.users <= reach.sentences).all()
