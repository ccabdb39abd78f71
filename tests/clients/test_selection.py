"""Eligibility: a sentence takes part iff its own coin and ALL its entities' coins are up, shared by all users."""

from functools import partial

import numpy as np
import pytest
from scipy import stats

from fl_sim.clients.selection import select, thin
from fl_sim.data_prep.store.ownership import Ownership, join_parts
from fl_sim.strategies.primitives import sampling

EVERYBODY = np.array([[0, 4]])


def ownership(entities_of: list[list[int]], users: list[int], num_entities: int) -> Ownership:
    """``entities_of[s]`` are the entities of sentence s; user u owns the next ``users[u]`` sentences."""
    return Ownership(
        user_offsets=np.cumsum([0, *users]).astype(np.int64),
        entity_offsets=np.cumsum([0, *(len(e) for e in entities_of)]).astype(np.int64),
        entity_ids=np.array([e for entities in entities_of for e in entities], dtype=np.int32),
        num_entities=num_entities,
    )


# Users 0 and 3 both mention entity 0; sentence 2 mentions two entities; sentences 1 and 4 none.
CORPUS = ownership([[0], [], [0, 1], [2], [], [0]], users=[2, 1, 1, 2], num_entities=3)


def slowly(corpus: Ownership, users: list[int], seed: int, q_e: float, q_s: float) -> list[int]:
    """The definition, one sentence at a time."""
    entity_up = sampling.sampled_entities(seed, np.arange(corpus.num_entities), q_e)
    chosen = []
    for user in users:
        for s in range(corpus.user_offsets[user], corpus.user_offsets[user + 1]):
            mentioned = corpus.entity_ids[corpus.entity_offsets[s] : corpus.entity_offsets[s + 1]]
            if sampling.sampled_sentences(seed, np.array([s]), q_s)[0] and entity_up[mentioned].all():
                chosen.append(int(s))
    return chosen


@pytest.mark.parametrize(("q_e", "q_s"), [(0.5, 0.5), (1.0, 0.3), (0.3, 1.0), (1.0, 1.0), (0.1, 0.9)])
@pytest.mark.parametrize("users", [[0, 1, 2, 3], [1], [0, 3], [2, 3], []])
def test_selection_is_the_definition(q_e: float, q_s: float, users: list[int]) -> None:
    runs = np.array([[u, u + 1] for u in users], dtype=np.int64).reshape(-1, 2)
    for round_number in range(20):
        seed = sampling.round_seed(0, round_number)
        chosen = select(CORPUS, runs, seed, q_e, q_s)
        assert chosen.sentences.tolist() == slowly(CORPUS, users, seed, q_e, q_s)
        assert chosen.users.tolist() == users
        owners = np.repeat(chosen.users, chosen.counts)
        np.testing.assert_array_equal(np.searchsorted(CORPUS.user_offsets, chosen.sentences, side="right") - 1, owners)


@pytest.mark.parametrize(("q_e", "q_s"), [(0.5, 0.5), (1.0, 0.01), (0.3, 1.0)])
def test_selection_of_many_users_in_a_row_is_the_definition(
    monkeypatch: pytest.MonkeyPatch, q_e: float, q_s: float
) -> None:
    monkeypatch.setattr(sampling, "_AT_ONCE", 7)  # so that the coins are read in several pieces
    users = [2, 0, 5, 1] * 60
    corpus = ownership([[s % 3] if s % 2 else [] for s in range(sum(users))], users=users, num_entities=3)
    runs = np.array([[1, 100], [103, 240]])
    asked = [*range(1, 100), *range(103, 240)]
    for seed in map(partial(sampling.round_seed, 0), range(5)):
        chosen = select(corpus, runs, seed, q_e, q_s)
        assert chosen.sentences.tolist() == slowly(corpus, asked, seed, q_e, q_s)
        assert chosen.users.tolist() == asked
        owners = np.repeat(chosen.users, chosen.counts)
        np.testing.assert_array_equal(np.searchsorted(corpus.user_offsets, chosen.sentences, side="right") - 1, owners)
        some = chosen.nonempty()
        np.testing.assert_array_equal(np.repeat(some.users, some.counts), owners)
        assert (some.counts > 0).all()


def test_selection_in_a_corpus_that_grew_is_the_definition() -> None:
    """Users 0 and 2 own a run of sentences in each of two parts; a sentence's coin belongs to its id."""
    added = ownership([[0, 1], [3], []], users=[1, 0, 1, 0, 1], num_entities=4)
    grown = join_parts([CORPUS, added])
    of_user = {0: [0, 1, 6], 1: [2], 2: [3, 7], 3: [4, 5], 4: [8]}
    entities_of = [[0], [], [0, 1], [2], [], [0], [0, 1], [3], []]
    for seed in map(partial(sampling.round_seed, 0), range(50)):
        up = sampling.sampled_sentences(seed, np.arange(9), 0.6)
        active = sampling.sampled_entities(seed, np.arange(4), 0.6)
        expected = {u: [s for s in of_user[u] if up[s] and active[entities_of[s]].all()] for u in of_user}
        chosen = select(grown, np.array([[0, 1], [2, 5]]), seed, 0.6, 0.6)
        assert chosen.sentences.tolist() == [s for u in (0, 2, 3, 4) for s in expected[u]]
        assert chosen.counts.tolist() == [len(expected[u]) for u in (0, 2, 3, 4)]


def many_selections(q_e: float, q_s: float, rounds: int = 4_000) -> np.ndarray:
    """Which sentence of CORPUS was eligible in which round, (rounds, 6) of 0 and 1."""
    eligible = np.zeros((rounds, 6))
    for t in range(rounds):
        eligible[t, select(CORPUS, EVERYBODY, sampling.round_seed(1, t), q_e, q_s).sentences] = 1
    return eligible


def at_rate(column: np.ndarray, rate: float) -> bool:
    return stats.binomtest(int(column.sum()), len(column), rate).pvalue > 1e-6


def test_eligibility_has_the_stated_rates() -> None:
    eligible = many_selections(q_e=0.5, q_s=0.6)
    for sentence, entities in enumerate([1, 0, 2, 1, 0, 1]):
        assert at_rate(eligible[:, sentence], 0.6 * 0.5**entities)
    # An any-entity rule would let sentence 2 in at 0.6 · 0.75, a forgotten entity coin at 0.6.
    assert not at_rate(eligible[:, 2], 0.6 * 0.75)
    assert not at_rate(eligible[:, 2], 0.6)


@pytest.mark.nightly
def test_entities_are_sampled_at_rates_near_one_too() -> None:
    eligible = many_selections(q_e=0.95, q_s=1.0)
    for sentence, entities in enumerate([1, 0, 2, 1, 0, 1]):
        assert at_rate(eligible[:, sentence], 0.95**entities)
    assert not at_rate(eligible[:, 0], 1.0)


def test_entities_and_sentences_toss_coins_of_their_own() -> None:
    """Sentences 0 and 5 belong to different users and mention only entity 0, which tosses one coin for all of them."""
    by_entities, by_sentences = many_selections(q_e=0.5, q_s=1.0), many_selections(q_e=1.0, q_s=0.5)
    np.testing.assert_array_equal(by_entities[:, 0], by_entities[:, 5])
    for independent in (by_entities[:, [0, 3]], by_sentences):
        correlations = np.corrcoef(independent.T)[np.triu_indices(independent.shape[1], 1)]
        assert np.abs(correlations).max() < 5 / np.sqrt(len(independent))


# Sentence weights


def thinned(weights: np.ndarray, q_s: float, rounds: int = 4_000) -> np.ndarray:
    """Which sentence of CORPUS was eligible and kept in which round, (rounds, 6) of 0 and 1."""
    kept = np.zeros((rounds, 6))
    for t in range(rounds):
        seed = sampling.round_seed(2, t)
        kept[t, thin(select(CORPUS, EVERYBODY, seed, 1.0, q_s), weights, seed).sentences] = 1
    return kept


@pytest.mark.sample(1)
@pytest.mark.parametrize("q_s", [1.0, 0.6])
def test_a_sentence_is_sampled_at_its_rate_times_its_weight(q_s: float) -> None:
    weights = np.array([0.5, 0.9, 0.2, 0.7, 1.0, 0.0])
    kept = thinned(weights, q_s)
    for sentence, weight in enumerate(weights.tolist()):
        assert at_rate(kept[:, sentence], q_s * weight)
    # Another power of the weight, its root, and a weight that is ignored: all are rejected.
    for wrong in (weights**2, weights**0.5, np.ones(6)):
        assert not all(at_rate(kept[:, s], q_s * w) for s, w in enumerate(wrong.tolist()))
    # Two draws of one sentence that were the same word would give min(q_s, w).
    if q_s < 1:
        assert not at_rate(kept[:, 0], min(q_s, 0.5))


def test_thinning_keeps_the_same_sentences_on_any_node() -> None:
    """A sentence's draw belongs to its id, whatever users its node has; rounds differ."""
    weights = np.array([0.3, 0.5, 0.7, 0.5, 0.5, 0.9])
    rounds = []
    for seed in map(partial(sampling.round_seed, 0), range(200)):
        together = thin(select(CORPUS, EVERYBODY, seed, 0.7, 0.8), weights, seed)
        apart = [thin(select(CORPUS, np.array([[u, u + 1]]), seed, 0.7, 0.8), weights, seed) for u in range(4)]
        assert together.sentences.tolist() == [int(s) for one in apart for s in one.sentences]
        assert together.counts.tolist() == [len(one.sentences) for one in apart]
        rounds.append(tuple(together.sentences.tolist()))
    assert len(set(rounds)) > 20
