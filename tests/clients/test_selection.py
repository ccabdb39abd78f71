"""Eligibility: a sentence takes part iff its own coin and ALL its entities' coins are up, shared by all users."""

import numpy as np
import pytest
from scipy import stats

from clients.selection import Selection, select
from data_prep.ownership import Ownership
from strategies import sampling

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
    entity_up = sampling.active_entities(seed, corpus.num_entities, q_e)
    chosen = []
    for user in users:
        for s in range(corpus.user_offsets[user], corpus.user_offsets[user + 1]):
            mentioned = corpus.entity_ids[corpus.entity_offsets[s] : corpus.entity_offsets[s + 1]]
            if sampling.active_sentences(seed, s, s + 1, q_s)[0] and entity_up[mentioned].all():
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


def test_an_entitys_coin_is_shared_by_all_users() -> None:
    eligible = many_selections(q_e=0.5, q_s=1.0)
    # Sentences 0 and 5 belong to different users and mention only entity 0: always together.
    np.testing.assert_array_equal(eligible[:, 0], eligible[:, 5])
    # Entity 2 tosses a coin of its own.
    assert abs(np.corrcoef(eligible[:, 0], eligible[:, 3])[0, 1]) < 5 / np.sqrt(len(eligible))


def test_sentences_toss_coins_of_their_own() -> None:
    eligible = many_selections(q_e=1.0, q_s=0.5)
    correlations = np.corrcoef(eligible.T)[np.triu_indices(6, 1)]
    assert np.abs(correlations).max() < 5 / np.sqrt(len(eligible))


def test_coins_do_not_depend_on_who_else_is_asked() -> None:
    seed = sampling.round_seed(0, 9)
    together = select(CORPUS, EVERYBODY, seed, 0.7, 0.7).sentences
    alone = [select(CORPUS, np.array([[u, u + 1]]), seed, 0.7, 0.7).sentences for u in range(4)]
    np.testing.assert_array_equal(together, np.concatenate(alone))


def test_nobody_selected_is_an_empty_selection() -> None:
    nothing = select(CORPUS, np.empty((0, 2), dtype=np.int64), 5, 0.5, 0.5)
    assert isinstance(nothing, Selection)
    assert len(nothing.users) == len(nothing.sentences) == len(nothing.counts) == 0
