"""Sample the users, entities and sentences of a round, each independently (docs/privacy.md, section 2).

All draws are independent and fresh every round, except that of users under random allocation (section 16), which is
made once per epoch. An item at rate ``q`` is included with the largest multiple of 2^-64
that is at most ``q`` as its probability, so rounding never weakens the guarantee.

>>> sample_users(seed=0, server_round=1, num_users=20, q_u=0.2)
array([ 2,  3, 12])
>>> sampled_entities(round_seed(seed=0, server_round=1), np.arange(4), q_e=0.5)
array([ True,  True, False,  True])
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fl_sim.strategies.primitives import streams
from fl_sim.strategies.primitives.limits import check_rate

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

_AT_ONCE = 1 << 16  # uniforms that stay in the processor's cache


def sample_users(seed: int, server_round: int, num_users: int, q_u: float) -> IntArray:
    """Return the cohort of a round: each user is included independently with probability ``q_u`` (Poisson sampling).

    ``seed`` is the run's root seed, ``num_users`` the number of users who hold data. Returned are the ids of the
    sampled users, int64 (cohort,), ascending; possibly none.
    """
    if _always(q_u):
        return np.arange(num_users, dtype=np.int64)
    uniforms = streams.uniforms(_seed_of_users(seed, server_round), "user", 0, num_users)
    return np.flatnonzero(uniforms < _threshold(q_u))


def sampled_numbers(seed: int, server_round: int, numbers: IntArray, q_u: float) -> BoolArray:
    """Return which users, known by numbers of any size, are included in a round, bool (K,): as :func:`sample_users`.

    >>> sampled_numbers(0, 1, np.array([2, 4, 12]), q_u=0.2)
    array([ True, False,  True])
    """
    return _active(_seed_of_users(seed, server_round), "user", numbers, q_u)


def allocated_users(seed: int, server_round: int, num_users: int, epoch_rounds: int) -> IntArray:
    """Return the cohort of a round under random allocation: in every epoch each user is in one round, chosen uniformly.

    The rounds 1 to t = ``epoch_rounds`` are the first epoch. Users and epochs are independent. A word of 64 bits
    chooses the round, so that no round has more than 1/t + 2^-64 of the probability.

    >>> [allocated_users(0, number, num_users=6, epoch_rounds=3).tolist() for number in (1, 2, 3)]
    [[3, 5], [0, 1, 2], [4]]
    """
    epoch, within = divmod(server_round - 1, epoch_rounds)
    words = streams.uniforms(streams.derived_seed(seed, "allocation", epoch), "user", 0, num_users)
    return np.flatnonzero(words % np.uint64(epoch_rounds) == within)


def round_seed(seed: int, server_round: int) -> int:
    """Return the seed from which every node samples the round's entities and sentences, so that all nodes agree."""
    return streams.derived_seed(seed, "round", server_round)


def sampled_entities(seed_of_round: int, entities: npt.NDArray[np.integer], q_e: float) -> BoolArray:
    """Return which of ``entities``, ids (K,) in any order, are included in a round for all users, bool (K,)."""
    return _active(seed_of_round, "entity", entities, q_e)


def sampled_sentences(seed_of_round: int, sentences: npt.NDArray[np.integer], q_s: float) -> BoolArray:
    """Return which of ``sentences``, ids (K,) in any order, are included in a round, bool (K,)."""
    return _active(seed_of_round, "sentence", sentences, q_s)


def sampled_sentence_range(seed_of_round: int, first: int, stop: int, q_s: float) -> IntArray:
    """Return the ids from ``first`` to ``stop - 1`` that :func:`sampled_sentences` includes, int64 (K,), ascending."""
    if _always(q_s):
        return np.arange(first, stop, dtype=np.int64)
    sampled = [np.empty(0, dtype=np.int64)]
    for start in range(first, stop, _AT_ONCE):
        uniforms = streams.uniforms(seed_of_round, "sentence", start, min(start + _AT_ONCE, stop))
        sampled.append(start + np.flatnonzero(uniforms < _threshold(q_s)))
    return np.concatenate(sampled)


def thinned_sentences(
    seed_of_round: int, sentences: npt.NDArray[np.integer], weights: npt.NDArray[np.float64]
) -> BoolArray:
    """Return which sentences are kept when each is included with the probability that is its weight, bool (K,).

    The draws are independent of :func:`sampled_sentences`, so a sentence that both include has rate q_s·w(s).
    ``sentences`` are ids (K,) in any order, ``weights`` float64 (K,) in [0, 1].
    """
    kept = weights >= 1
    partial = np.flatnonzero((weights > 0) & ~kept)
    thresholds = (weights[partial] * 2.0**64).astype(np.uint64)
    kept[partial] = streams.uniforms_of(seed_of_round, "thinning", sentences[partial]) < thresholds
    return kept


def _seed_of_users(seed: int, server_round: int) -> int:
    return streams.derived_seed(seed, "users", server_round)


def _active(seed: int, purpose: str, items: npt.NDArray[np.integer], rate: float) -> BoolArray:
    if _always(rate):
        return np.ones(len(items), dtype=np.bool_)
    return streams.uniforms_of(seed, purpose, items) < _threshold(rate)


def _always(rate: float) -> bool:
    check_rate("rate", rate)
    return rate == 1


def _threshold(rate: float) -> np.uint64:
    """Return the bound below which a uniform 64-bit word includes its item; exact, as 2^64 is a power of two."""
    return np.uint64(int(rate * 2.0**64))
