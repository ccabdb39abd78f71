"""Test the sampling of a round: right rates (wrong ones are noticed), shared entities, independent rounds."""

import numpy as np
import pytest
from scipy import stats

from fl_sim.strategies.primitives import sampling

USERS = 2_000
ROUNDS = 50


def within_binomial(successes: int, trials: int, rate: float) -> bool:
    """Two-sided exact test at a level that a seeded suite meets by luck once in a million."""
    return stats.binomtest(successes, trials, rate).pvalue > 1e-6


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.5, 0.9, 0.95])
def test_users_are_sampled_at_the_stated_rate(rate: float) -> None:
    sampled = sum(len(sampling.sample_users(0, t, USERS, rate)) for t in range(1, ROUNDS + 1))
    assert within_binomial(sampled, USERS * ROUNDS, rate)
    # The test can fail: a fifth of the rate, or a quarter more, is noticed.
    assert not within_binomial(sampled, USERS * ROUNDS, rate / 5)
    assert not within_binomial(sampled, USERS * ROUNDS, min(rate * 1.25, 0.999))


def test_cohorts_vary_in_size_as_poisson_sampling_does() -> None:
    sizes = [len(sampling.sample_users(0, t, USERS, 0.05)) for t in range(1, 401)]
    expected = USERS * 0.05 * 0.95
    # A fixed cohort size would have no variance at all.
    assert 0.75 * expected < np.var(sizes) < 1.3 * expected


def test_a_user_is_sampled_independently_of_the_others_and_of_other_rounds() -> None:
    masks = np.zeros((400, 50), dtype=bool)
    for t in range(400):
        masks[t, sampling.sample_users(3, t + 1, 50, 0.3)] = True
    correlations = np.corrcoef(masks.T)[np.triu_indices(50, 1)]
    assert np.abs(correlations).max() < 6 / np.sqrt(400)
    following = np.corrcoef(masks[:-1].ravel(), masks[1:].ravel())[0, 1]
    assert abs(following) < 5 / np.sqrt(masks[1:].size)


def test_users_known_by_numbers_are_sampled_as_all_users_are() -> None:
    numbers = np.array([3, 60, 7, 1999])
    for t in (1, 2, 3):
        everybody = np.isin(np.arange(USERS), sampling.sample_users(5, t, USERS, 0.4))
        np.testing.assert_array_equal(sampling.sampled_numbers(5, t, numbers, 0.4), everybody[numbers])


def test_a_range_of_sentences_is_sampled_as_they_are_one_by_one() -> None:
    """Also beyond the words that are read at a time."""
    ids = np.arange(7, 150_000)
    one_by_one = ids[sampling.sampled_sentences(9, ids, 0.01)]
    np.testing.assert_array_equal(sampling.sampled_sentence_range(9, 7, 150_000, 0.01), one_by_one)


def test_every_sentence_is_thinned_by_its_own_weight() -> None:
    ids, weights = np.arange(100, 40_100), np.tile([1.0, 0.9, 0.0, 0.1], 10_000)
    kept = sampling.thinned_sentences(sampling.round_seed(0, 1), ids, weights).reshape(-1, 4).sum(axis=0)
    assert (kept[0], kept[2]) == (10_000, 0)
    assert within_binomial(int(kept[1]), 10_000, 0.9)
    assert within_binomial(int(kept[3]), 10_000, 0.1)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, float("nan")])
def test_impossible_rates_are_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="rate is"):
        sampling.sample_users(0, 1, 10, rate)


def test_entities_and_sentences_are_sampled_from_different_streams() -> None:
    seed = sampling.round_seed(0, 1)
    entities = sampling.sampled_entities(seed, np.arange(10_000), 0.5)
    sentences = sampling.sampled_sentences(seed, np.arange(10_000), 0.5)
    assert abs(np.corrcoef(entities, sentences)[0, 1]) < 5 / np.sqrt(10_000)
    assert within_binomial(int(entities.sum()), 10_000, 0.5)
    assert within_binomial(int(sentences.sum()), 10_000, 0.5)


def test_every_round_samples_entities_and_sentences_afresh() -> None:
    items = np.arange(2_000)
    for sample in (sampling.sampled_entities, sampling.sampled_sentences):
        masks = np.array([sample(sampling.round_seed(0, t), items, 0.5) for t in range(1, 9)])
        assert np.abs(np.corrcoef(masks)[np.triu_indices(8, 1)]).max() < 5 / np.sqrt(len(items))


# Random allocation


def rounds_of(seed: int, users: int, t: int, epochs: int) -> np.ndarray:
    """The round within the epoch of every user, int64 (epochs, users); -1 for none, -2 for several."""
    places = np.full((epochs, users), -1)
    for number in range(1, t * epochs + 1):
        epoch, within = divmod(number - 1, t)
        cohort = sampling.allocated_users(seed, number, users, t)
        places[epoch, cohort] = np.where(places[epoch, cohort] == -1, within, -2)
    return places


@pytest.mark.parametrize(("t", "users"), [(1, 5), (2, 7), (7, 200), (30, 11)])
def test_every_user_is_allocated_exactly_once_in_every_epoch(t: int, users: int) -> None:
    places = rounds_of(3, users, t, 4)
    assert ((places >= 0) & (places < t)).all()


def is_uniform(places: np.ndarray, t: int) -> bool:
    counts = np.bincount(places.ravel(), minlength=t)
    return bool(stats.chisquare(counts).pvalue > 1e-6)


@pytest.mark.parametrize("t", [2, 7, 20])
def test_rounds_are_chosen_uniformly(t: int) -> None:
    places = rounds_of(0, USERS, t, 10)
    assert is_uniform(places, t)
    # The test can fail: a round that gets a fifth more than its share is noticed.
    heavier = np.where((places == 0) & (np.arange(USERS) % 5 == 0), 1, places)
    assert not is_uniform(heavier, t)


def test_users_and_epochs_are_allocated_independently() -> None:
    t, users, epochs = 4, 60, 500
    places = rounds_of(1, users, t, epochs)
    same_round = (places[:, :, None] == places[:, None, :]).mean(axis=0)[np.triu_indices(users, 1)]
    assert np.abs(same_round - 1 / t).max() < 6 * np.sqrt(0.25 * 0.75 / epochs)
    # A sampler that deals users out in equal groups would make the sizes of cohorts constant.
    sizes = np.stack([np.bincount(row, minlength=t) for row in places])
    assert 0.7 < sizes.var() / (users * 0.25 * 0.75) < 1.3
    following = (places[1:] == places[:-1]).mean()
    assert abs(following - 1 / t) < 6 * np.sqrt(0.25 * 0.75 / places[1:].size)
