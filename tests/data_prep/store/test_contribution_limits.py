"""Limits on what entities and users contribute: kept by every sentence's weight, maximal, and the same everywhere."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.contribution_limits import (
    ContributionLimits,
    greedy_weights,
    proportional_weights,
)
from fl_sim.data_prep.store.ownership import Ownership, join_parts
from tests.data_prep.store.test_ownership import incidence

SENTENCE = st.sets(st.integers(0, 5), max_size=4)
CORPORA = st.lists(st.lists(SENTENCE, max_size=6), min_size=1, max_size=6)
LIMIT = st.one_of(st.none(), st.integers(1, 6))
LIMITS = st.builds(ContributionLimits, sentences_per_entity=LIMIT, users_per_entity=LIMIT, sentences_per_user=LIMIT)


def shuffled(ownership: Ownership, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(ownership.num_sentences).astype(np.int64)


def kept(users: list[list[set[int]]], weights: np.ndarray) -> list[tuple[int, set[int]]]:
    """Return owner and entities of every sentence with a weight above 0."""
    sentences = [(user, entities) for user, owned in enumerate(users) for entities in owned]
    return [one for one, weight in zip(sentences, weights, strict=True) if weight > 0]


def exceeds(taken: list[tuple[int, set[int]]], limits: ContributionLimits) -> bool:
    """Count by hand whether any limit is exceeded."""
    of_user = Counter(user for user, _ in taken)
    of_entity = Counter(entity for _, entities in taken for entity in entities)
    users_of: dict[int, set[int]] = {}
    for user, entities in taken:
        for entity in entities:
            users_of.setdefault(entity, set()).add(user)
    limited = [
        (of_user.values(), limits.sentences_per_user),
        (of_entity.values(), limits.sentences_per_entity),
        (map(len, users_of.values()), limits.users_per_entity),
    ]
    return any(limit is not None and count > limit for counts, limit in limited for count in counts)


# Greedy


@pytest.mark.nightly
@given(CORPORA, LIMITS, st.integers(0, 99))
@example([[{0}], [{0}]], ContributionLimits(users_per_entity=1), 0)
@example([[{0}, {0}, {0, 1}, {0, 2}, {0, 3}]], ContributionLimits(sentences_per_entity=1), 0)
def test_no_entity_and_no_user_exceeds_a_limit(
    users: list[list[set[int]]], limits: ContributionLimits, seed: int
) -> None:
    ownership = incidence(users)
    weights = greedy_weights(ownership, limits, shuffled(ownership, seed))
    assert set(weights.tolist()) <= {0.0, 1.0}
    assert not exceeds(kept(users, weights), limits)


@pytest.mark.nightly
@given(CORPORA, LIMITS, st.integers(0, 99))
def test_no_sentence_that_is_left_out_would_fit(
    users: list[list[set[int]]], limits: ContributionLimits, seed: int
) -> None:
    ownership = incidence(users)
    weights = greedy_weights(ownership, limits, shuffled(ownership, seed))
    for sentence in np.flatnonzero(weights == 0):
        with_it = weights.copy()
        with_it[sentence] = 1.0
        assert exceeds(kept(users, with_it), limits)


@pytest.mark.nightly
@given(CORPORA, LIMITS, st.integers(0, 99))
def test_sentences_are_taken_in_turn_those_of_few_contested_entities_first(
    users: list[list[set[int]]], limits: ContributionLimits, seed: int
) -> None:
    """The definition, one sentence at a time: all of them are visited, not only those that compete."""
    ownership = incidence(users)
    order = shuffled(ownership, seed)
    sentences = [(user, entities) for user, owned in enumerate(users) for entities in owned]
    contested = {
        entity
        for entity in range(ownership.num_entities)
        if exceeds([(user, entities & {entity}) for user, entities in sentences], _of_entities(limits))
    }
    taken: list[int] = []
    for sentence in sorted(order.tolist(), key=lambda s: len(sentences[s][1] & contested)):
        if not exceeds([sentences[s] for s in [*taken, sentence]], limits):
            taken.append(sentence)
    assert np.flatnonzero(greedy_weights(ownership, limits, order)).tolist() == sorted(taken)


def _of_entities(limits: ContributionLimits) -> ContributionLimits:
    return ContributionLimits(limits.sentences_per_entity, limits.users_per_entity)


@pytest.mark.nightly
@given(CORPORA, st.integers(0, 99))
def test_without_limits_every_sentence_is_kept(users: list[list[set[int]]], seed: int) -> None:
    ownership = incidence(users)
    order = shuffled(ownership, seed)
    for rule in (greedy_weights, proportional_weights):
        assert (rule(ownership, ContributionLimits(), order) == 1).all()


def test_a_user_limit_alone_keeps_the_first_of_each_user_in_the_order() -> None:
    ownership = incidence([[{0}, {1}, set()], [{0}], [set(), set()]])
    order = np.array([2, 5, 0, 1, 3, 4])
    limits = ContributionLimits(sentences_per_user=1)
    for rule in (greedy_weights, proportional_weights):
        assert np.flatnonzero(rule(ownership, limits, order)).tolist() == [2, 3, 5]


def test_one_users_kept_sentences_do_not_depend_on_other_users_under_a_user_limit_alone() -> None:
    """With a private mention graph only this limit acts, and it must not tell who else is there."""
    one, other = [[{0}, {1}, set(), {0, 1}], [{2}] * 5], [[{0}, {1}, set(), {0, 1}], [{0, 1}] * 9, [set()] * 3]
    limits = ContributionLimits(sentences_per_user=2)
    first = greedy_weights(incidence(one), limits, np.array([3, 0, 1, 2, *range(4, 9)]))
    second = greedy_weights(incidence(other), limits, np.array([3, 0, 1, 2, *range(4, 16)]))
    assert first[:4].tolist() == second[:4].tolist() == [1, 0, 0, 1]


# Proportional


@pytest.mark.nightly
@given(CORPORA, LIMIT, LIMIT, st.integers(0, 99))
def test_the_weights_of_an_entity_never_add_up_to_more_than_its_limit(
    users: list[list[set[int]]], per_entity: int | None, per_user: int | None, seed: int
) -> None:
    ownership = incidence(users)
    limits = ContributionLimits(sentences_per_entity=per_entity, sentences_per_user=per_user)
    weights = proportional_weights(ownership, limits, shuffled(ownership, seed))
    assert ((weights >= 0) & (weights <= 1)).all()
    assert not exceeds(kept(users, weights), ContributionLimits(sentences_per_user=per_user))
    for entity in range(ownership.num_entities):
        mentions = [s for s, (_, e) in enumerate(_sentences(users)) if entity in e]
        if per_entity is not None:
            assert np.sum(weights[mentions]) <= per_entity


@pytest.mark.nightly
@given(CORPORA, st.integers(1, 6))
def test_a_weight_is_the_smallest_share_of_its_entities(users: list[list[set[int]]], k: int) -> None:
    ownership = incidence(users)
    order = np.arange(ownership.num_sentences)
    weights = proportional_weights(ownership, ContributionLimits(sentences_per_entity=k), order)
    counts = Counter(entity for _, entities in _sentences(users) for entity in entities)
    expected = [min([1.0, *(k / counts[e] for e in entities)]) for _, entities in _sentences(users)]
    np.testing.assert_allclose(weights, expected, rtol=1e-12)


def _sentences(users: list[list[set[int]]]) -> list[tuple[int, set[int]]]:
    return [(user, entities) for user, owned in enumerate(users) for entities in owned]


def test_sentences_that_a_users_limit_leaves_out_leave_room_for_others() -> None:
    ownership = incidence([[{0}, {0}, {0}], [{0}]])
    limits = ContributionLimits(sentences_per_entity=2, sentences_per_user=1)
    weights = proportional_weights(ownership, limits, np.arange(4))
    assert weights.tolist() == [1, 0, 0, 1]


# Where the sentences lie, and bad input


def test_sentences_of_a_user_may_lie_apart() -> None:
    grown = join_parts([incidence([[{0}], [{0}]]), incidence([[{0}, {1}], [set()]])])
    weights = greedy_weights(grown, ContributionLimits(sentences_per_user=2), np.arange(grown.num_sentences))
    assert weights.tolist() == [1, 1, 1, 0, 1]  # user 0 has the sentences 0, 2 and 3


@pytest.mark.parametrize("name", ["sentences_per_entity", "users_per_entity", "sentences_per_user"])
def test_a_limit_below_one_is_refused(name: str) -> None:
    limits: dict[str, Any] = {name: 0}
    with pytest.raises(CorpusError, match=f"^{name} is 0; allowed: an integer of at least 1, or no limit$"):
        ContributionLimits(**limits)


def test_an_order_of_another_split_is_refused() -> None:
    ownership = incidence([[{0}, {1}]])
    for rule in (greedy_weights, proportional_weights):
        with pytest.raises(CorpusError, match="the order has 3 sentences; allowed: the 2 of the split"):
            rule(ownership, ContributionLimits(1), np.arange(3))
    with pytest.raises(CorpusError, match="users_per_entity is 2; allowed: no limit with weights"):
        proportional_weights(ownership, ContributionLimits(users_per_entity=2), np.arange(2))


# The same everywhere, and soon


def crowd(sentences: int) -> Ownership:
    """Users with 20 sentences each of 0 to 3 entities, some of them mentioned everywhere; integers alone."""
    draws = (np.arange(4 * sentences, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)).astype(int)
    kinds = np.minimum(1 << (draws >> 27) % 17, sentences // 2)  # entities 0, 1, … of a power of two
    named, counts = (draws % kinds).reshape(4, sentences)[:3].T, draws[-sentences:] % 4
    mentioned = [np.unique(row[:count]) for row, count in zip(named, counts.tolist(), strict=True)]
    return Ownership(
        user_offsets=np.arange(0, sentences + 1, 20, dtype=np.int64),
        entity_offsets=np.cumsum([0, *map(len, mentioned)]).astype(np.int64),
        entity_ids=np.concatenate(mentioned).astype(np.int32),
        num_entities=sentences // 2,
    )


@pytest.mark.parametrize(
    ("rule", "limits", "golden"),
    [
        (greedy_weights, ContributionLimits(10), "704e3949bfe1eca3"),
        (greedy_weights, ContributionLimits(10, 5, 15), "1f5acce2a7f1ab05"),
        (proportional_weights, ContributionLimits(10, None, 15), "dfd8287fa6303621"),
    ],
)
def test_any_machine_keeps_the_same_sentences(rule: Any, limits: ContributionLimits, golden: str) -> None:
    ownership = crowd(4000)
    order = np.argsort(np.arange(4000, dtype=np.uint64) * np.uint64(0xD1B54A32D192ED03), kind="stable")
    weights = rule(ownership, limits, order)
    assert hashlib.sha256(weights.astype("<f8").tobytes()).hexdigest()[:16] == golden
