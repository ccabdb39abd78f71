"""Limits on what entities and users contribute: kept by every sentence's weight, maximal, and the same everywhere."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.contribution_limits import ContributionLimits, DeclaredCounts, count_weights, greedy_weights
from fl_sim.data_prep.store.ownership import Ownership, join_parts
from tests.data_prep.store.test_ownership import incidence

SENTENCE = st.sets(st.integers(0, 5), max_size=4)
CORPORA = st.lists(st.lists(SENTENCE, max_size=6), min_size=1, max_size=6)
LIMIT = st.one_of(st.none(), st.integers(1, 6))
LIMITS = st.builds(ContributionLimits, sentences_per_entity=LIMIT, users_per_entity=LIMIT, sentences_per_user=LIMIT)


def shuffled(ownership: Ownership, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(ownership.num_sentences).astype(np.int64)


def _sentences(users: list[list[set[int]]]) -> list[tuple[int, set[int]]]:
    return [(user, entities) for user, owned in enumerate(users) for entities in owned]


def kept(users: list[list[set[int]]], weights: np.ndarray) -> list[tuple[int, set[int]]]:
    """Return owner and entities of every sentence with a weight above 0."""
    return [one for one, weight in zip(_sentences(users), weights, strict=True) if weight > 0]


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
def test_sentences_are_taken_in_turn_those_of_few_contested_entities_first(
    users: list[list[set[int]]], limits: ContributionLimits, seed: int
) -> None:
    """The definition, one sentence at a time: all of them are visited, not only those that compete."""
    ownership = incidence(users)
    order, of_entities = shuffled(ownership, seed), replace(limits, sentences_per_user=None)
    sentences = _sentences(users)
    contested = {
        entity
        for entity in range(ownership.num_entities)
        if exceeds([(user, entities & {entity}) for user, entities in sentences], of_entities)
    }
    taken: list[int] = []
    for sentence in sorted(order.tolist(), key=lambda s: len(sentences[s][1] & contested)):
        if not exceeds([sentences[s] for s in [*taken, sentence]], limits):
            taken.append(sentence)
    assert np.flatnonzero(greedy_weights(ownership, limits, order)).tolist() == sorted(taken)


def test_a_user_limit_alone_keeps_the_first_of_each_user_in_the_order() -> None:
    ownership = incidence([[{0}, {1}, set()], [{0}], [set(), set()]])
    order = np.array([2, 5, 0, 1, 3, 4])
    limits = ContributionLimits(sentences_per_user=1)
    assert np.flatnonzero(greedy_weights(ownership, limits, order)).tolist() == [2, 3, 5]


# By counts


@pytest.mark.nightly
@given(CORPORA, LIMIT, LIMIT, st.booleans())
def test_the_weights_of_an_entity_and_of_a_user_never_add_up_to_more_than_their_limits(
    users: list[list[set[int]]], per_entity: int | None, per_user: int | None, rounded: bool
) -> None:
    ownership = incidence(users)
    limits = ContributionLimits(sentences_per_entity=per_entity, sentences_per_user=per_user)
    counts = DeclaredCounts.of(ownership)
    weights = [Fraction(w) for w in count_weights(ownership, limits, counts.rounded_up() if rounded else counts)]
    assert all(0 < weight <= 1 for weight in weights)
    sentences = _sentences(users)
    for entity in range(ownership.num_entities if per_entity else 0):
        assert sum(w for w, (_, said) in zip(weights, sentences, strict=True) if entity in said) <= per_entity
    for user in range(len(users) if per_user else 0):
        assert sum(w for w, (owner, _) in zip(weights, sentences, strict=True) if owner == user) <= per_user


@pytest.mark.nightly
@given(CORPORA, LIMIT, LIMIT)
def test_a_weight_is_the_smallest_share_of_its_user_and_its_entities(
    users: list[list[set[int]]], k: int | None, m: int | None
) -> None:
    ownership = incidence(users)
    weights = count_weights(ownership, ContributionLimits(k, None, m), DeclaredCounts.of(ownership))
    of_entity = Counter(entity for _, entities in _sentences(users) for entity in entities)
    expected = [
        min([1.0, (m or np.inf) / len(users[user]), *((k or np.inf) / of_entity[e] for e in entities)])
        for user, entities in _sentences(users)
    ]
    np.testing.assert_allclose(weights, expected, rtol=1e-12)


def test_a_weight_does_not_depend_on_what_else_is_in_the_corpus() -> None:
    """The counts are those of the larger corpus on both."""
    whole, less = incidence([[{0}, {1}, {0, 1}], [{0}] * 5, [{1}]]), incidence([[{0}, {1}, {0, 1}], [], [{1}]])
    counts, limits = DeclaredCounts.of(whole), ContributionLimits(2, None, 2)
    assert count_weights(less, limits, counts)[:3].tolist() == count_weights(whole, limits, counts)[:3].tolist()


def test_counts_are_rounded_up_to_powers_of_two() -> None:
    counts = DeclaredCounts.exactly(np.array([0, 1, 2, 3, 4, 5, 1023, 1025]), np.array([2**40 - 1]))
    rounded = counts.rounded_up()
    assert rounded.users.tolist() == [0, 1, 2, 4, 4, 8, 1024, 2048]
    assert rounded.entities.tolist() == [2**40]
    assert (rounded.population, rounded.digest != counts.digest) == (8, True)


def test_the_digest_of_rounded_counts_is_of_nothing_else() -> None:
    """Whoever guesses the exact counts cannot confirm the guess."""
    exact = [
        DeclaredCounts.exactly(np.array(users), np.array([most, 3])) for users, most in (([5, 9], 3), ([8, 16], 4))
    ]
    assert len({counts.digest for counts in exact}) == 2
    assert len({counts.rounded_up().digest for counts in exact}) == 1
    absent = [replace(counts, declared=(np.array([5, *counts.users]), counts.entities)) for counts in exact]
    assert len({counts.rounded_up().digest for counts in [*exact, *absent]}) == 2


EQUAL_COUNTS = [[[{0}, {0, 1}], [{2}]], [[{2}, {1, 2}], [{0}]], [[{0}, {0, 1}], [{1}]], [[{2}], [{0}, {0, 1}]]]
"""Corpora of as many users and names that occur as often, under other ids; in the third name 2 does not occur."""


def test_the_digest_of_counts_does_not_tell_who_is_mentioned_first() -> None:
    """Ids follow the order of the text, so that a digest in that order would tell who mentions whom."""
    first, second, third, last = (DeclaredCounts.of(incidence(users)).digest for users in EQUAL_COUNTS)
    assert first == second == last != third


def test_the_digest_of_whose_counts_they_are_tells_ids_apart_unless_entities_have_names() -> None:
    counts = [DeclaredCounts.of(incidence(users)) for users in EQUAL_COUNTS]
    assert len({one.digest_of_whose(by_name=False) for one in counts}) == 4
    first, second, third, last = (one.digest_of_whose(by_name=True) for one in counts)
    assert first == second
    assert len({first, third, last}) == 3
    named = replace(counts[0], names="0a1b")
    assert named.digest_of_whose(by_name=True) == named.digest_of_whose(by_name=False) == named.digest


def test_counts_of_other_users_or_below_the_splits_are_refused() -> None:
    ownership = incidence([[{0}, {1}], [{1}]])
    counts, limits = DeclaredCounts.of(ownership), ContributionLimits(1)
    for changes, message in (
        ({"users": np.array([2])}, "counts are of 1 user ids; allowed: of 2"),
        ({"users": np.array([2, 0])}, "user 1 has declared count 0; allowed: at least 1, its sentences in the corpus"),
        ({"entities": np.minimum(counts.entities, 1)}, "entity 1 has declared count 1; allowed: at least 2, its"),
    ):
        with pytest.raises(CorpusError, match=f"^{message}"):
            count_weights(ownership, limits, replace(counts, **changes))


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
    with pytest.raises(CorpusError, match="the order has 3 sentences; allowed: the 2 of the split"):
        greedy_weights(ownership, ContributionLimits(1), np.arange(3))
    with pytest.raises(CorpusError, match="users_per_entity is 2; allowed: no limit with weights"):
        count_weights(ownership, ContributionLimits(users_per_entity=2), DeclaredCounts.of(ownership))


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
    ("limits", "golden"),
    [(ContributionLimits(10), "704e3949bfe1eca3"), (ContributionLimits(10, 5, 15), "1f5acce2a7f1ab05")],
)
def test_any_machine_keeps_the_same_sentences(limits: ContributionLimits, golden: str) -> None:
    ownership = crowd(4000)
    order = np.argsort(np.arange(4000, dtype=np.uint64) * np.uint64(0xD1B54A32D192ED03), kind="stable")
    weights = greedy_weights(ownership, limits, order)
    assert hashlib.sha256(weights.astype("<f8").tobytes()).hexdigest()[:16] == golden
