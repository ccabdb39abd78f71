"""The incidence arrays: what they refuse, and that the vectorised reach is the reach one would count by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.ownership import EntityContributions, EntityProfiles, Ownership, join_parts

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
def test_contributions_and_profiles_equal_counting_by_hand(users: list[list[set[int]]]) -> None:
    entity_bound, profiles = incidence(users).entity_contributions(), incidence(users).entity_profiles()
    for entity in range(7):
        per_user = [sum(entity in sentence for sentence in user) for user in users]
        assert entity_bound.users[entity] == sum(count > 0 for count in per_user)
        assert entity_bound.sentences[entity] == sum(per_user)
        assert entity_bound.max_per_user[entity] == max(per_user)
        found = profiles.sentences[profiles.offsets[entity] : profiles.offsets[entity + 1]]
        assert found.tolist() == sorted(filter(None, per_user), reverse=True)


@pytest.mark.nightly
@given(USERS, st.data())
def test_what_grew_is_the_corpus_with_every_sentence_at_its_user(
    users: list[list[set[int]]], data: st.DataObject
) -> None:
    """Sentences come in three parts; ids count on in the order of the parts, owners and mentions stay together."""
    part_of = [[data.draw(st.integers(0, 2)) for _ in user] for user in users]
    by_part = [
        [
            [s for s, of in zip(user, parts, strict=True) if of == part]
            for user, parts in zip(users, part_of, strict=True)
        ]
        for part in range(3)
    ]
    known = [
        max((u + 1 for u, parts in enumerate(part_of) if min(parts, default=2) <= part), default=0) for part in range(2)
    ]
    grown = join_parts([incidence(by_part[0][: known[0]]), incidence(by_part[1][: known[1]]), incidence(by_part[2])])
    expected = [(u, sorted(s)) for part in by_part for u, sentences in enumerate(part) for s in sentences]
    mentioned = [grown.entities_of(np.array([s]))[0].tolist() for s in range(grown.num_sentences)]
    assert list(zip(grown.user_of_sentence.tolist(), mentioned, strict=True)) == expected
    for user in range(grown.num_users):
        sentences, counts = grown.sentences_of(np.array([user]))
        assert sentences.tolist() == [s for s, (owner, _) in enumerate(expected) if owner == user]
        assert counts.tolist() == [len(sentences)]
    whole, again = incidence(users).entity_profiles(), grown.entity_profiles()
    assert (whole.offsets.tolist(), whole.sentences.tolist()) == (again.offsets.tolist(), again.sentences.tolist())


def test_stored_profiles_are_used_and_must_fit() -> None:
    plain = incidence([[{0}, {0, 1}], [{1}]], num_entities=2)
    stored = plain.entity_profiles()
    assert dataclasses.replace(plain, stored_profiles=stored).entity_profiles() is stored
    with pytest.raises(CorpusError, match="stored profiles are of 2 entities, must be of 7"):
        dataclasses.replace(incidence([[{0}]]), stored_profiles=stored)
    with pytest.raises(CorpusError, match="profile offsets must rise"):
        EntityProfiles(np.array([0, 2, 4]), np.array([2, 1, 1], dtype=np.int32))


@pytest.mark.parametrize("ids", [[0, 0], [0], [0, 2], [-1, 0]])
def test_sentence_ids_are_every_sentence_once(ids: list[int]) -> None:
    with pytest.raises(CorpusError, match="each of the 2 sentences once"):
        dataclasses.replace(incidence([[{0}, {1}]]), sentence_ids=np.array(ids, dtype=np.int64))


def test_quantiles_are_values_that_occur_and_independent_of_one_another() -> None:
    entity_bound = EntityContributions(
        users=np.array([1, 1, 1, 9], dtype=np.int64),
        sentences=np.array([40, 2, 2, 9], dtype=np.int64),
        max_per_user=np.array([40, 2, 2, 1], dtype=np.int64),
    )
    assert entity_bound.quantile(0.5) == (1, 2, 2)
    assert entity_bound.quantile(0.75) == (1, 2, 9)
    assert entity_bound.quantile(0.76) == (9, 40, 40)
    assert entity_bound.quantile(1.0) == (9, 40, 40)
    assert all(type(value) is int for value in entity_bound.quantile(0.95))


def test_quantiles_outside_the_unit_interval_or_without_entities_are_refused() -> None:
    for q in (-0.1, 1.1, float("nan")):
        with pytest.raises(CorpusError, match="must lie in"):
            incidence([[{0}]]).entity_contributions().quantile(q)
    with pytest.raises(CorpusError, match="no entity"):
        incidence([[set()]], num_entities=0).entity_contributions().quantile(0.5)


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
    ],
)
def test_contradictory_arrays_are_refused(key: str, value: object, message: str) -> None:
    Ownership(**GOOD)  # type: ignore[arg-type]
    with pytest.raises(CorpusError, match=message):
        Ownership(**{**GOOD, key: value})  # type: ignore[arg-type]
