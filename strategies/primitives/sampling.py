"""Who takes part in a round: Poisson users, one coin per entity, one coin per sentence (docs/privacy.md, Algorithm).

All coins are independent and fresh every round. A rate ``q`` is met from below: the probability of an active coin is
the largest multiple of 2^-64 that is at most ``q``, so rounding never weakens the guarantee.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fl_sim.strategies.primitives import streams

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

_AT_ONCE = 1 << 16  # coins, so that they stay in the processor's cache


def sample_users(seed: int, server_round: int, num_users: int, q_u: float) -> IntArray:
    """The round's cohort: every user on its own with probability ``q_u`` (Poisson sampling, never a fixed number).

    Args:
        seed: the run's root seed.
        server_round: the round, from 1.
        num_users: U, how many users hold data.
        q_u: the user sampling rate in (0, 1].

    Returns:
        The sampled user ids in ascending order; possibly none.
    """
    if _always(q_u):
        return np.arange(num_users, dtype=np.int64)
    uniforms = streams.uniforms(streams.derived_seed(seed, "users", server_round), "user", 0, num_users)
    return np.flatnonzero(uniforms < _threshold(q_u))


def round_seed(seed: int, server_round: int) -> int:
    """The seed from which every node tosses the round's entity and sentence coins, so that all nodes agree."""
    return streams.derived_seed(seed, "round", server_round)


def sampled_entities(seed_of_round: int, entities: npt.NDArray[np.integer], q_e: float) -> BoolArray:
    """One coin per entity and round, shared by all users: the mask (K,) of the ids ``entities`` that are active."""
    return _active(seed_of_round, "entity", entities, q_e)


def sampled_sentences(seed_of_round: int, sentences: npt.NDArray[np.integer], q_s: float) -> BoolArray:
    """One coin per sentence and round: the mask (K,) of the ids ``sentences`` whose coin is up."""
    return _active(seed_of_round, "sentence", sentences, q_s)


def sampled_sentence_range(seed_of_round: int, first: int, stop: int, q_s: float) -> IntArray:
    """The ids from ``first`` to ``stop - 1`` that :func:`sampled_sentences` has as active, read in a row."""
    if _always(q_s):
        return np.arange(first, stop, dtype=np.int64)
    found = [np.empty(0, dtype=np.int64)]
    for start in range(first, stop, _AT_ONCE):
        uniforms = streams.uniforms(seed_of_round, "sentence", start, min(start + _AT_ONCE, stop))
        found.append(start + np.flatnonzero(uniforms < _threshold(q_s)))
    return np.concatenate(found)


def _active(seed: int, purpose: str, items: npt.NDArray[np.integer], rate: float) -> BoolArray:
    if _always(rate):
        return np.ones(len(items), dtype=np.bool_)
    return streams.uniforms_of(seed, purpose, items) < _threshold(rate)


def _always(rate: float) -> bool:
    if not 0 < rate <= 1:
        raise ValueError(f"rate is {rate}; allowed: in (0, 1]")
    return rate == 1


def _threshold(rate: float) -> np.uint64:
    """A coin below it is up; exact, because scaling a double by a power of two is."""
    return np.uint64(int(rate * 2.0**64))
