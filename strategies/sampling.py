"""Who takes part in a round: Poisson users, one coin per entity, one coin per sentence (docs/privacy.md, Algorithm).

All coins are independent and fresh every round. A rate ``q`` is met from below: the probability of an active coin is
the largest multiple of 2^-64 that is at most ``q``, so rounding never weakens the guarantee.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from strategies import streams

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]


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
    return np.flatnonzero(active(streams.derived_seed(seed, "users", server_round), "user", 0, num_users, q_u))


def round_seed(seed: int, server_round: int) -> int:
    """The seed from which every node tosses the round's entity and sentence coins, so that all nodes agree."""
    return streams.derived_seed(seed, "round", server_round)


def active_entities(seed_of_round: int, num_entities: int, q_e: float) -> BoolArray:
    """One coin per entity and round, shared by all users: the mask (E,) of entities that are active."""
    return active(seed_of_round, "entity", 0, num_entities, q_e)


def active_sentences(seed_of_round: int, start: int, stop: int, q_s: float) -> BoolArray:
    """One coin per sentence and round: the mask of the sentences ``start`` to ``stop - 1`` whose coin is up."""
    return active(seed_of_round, "sentence", start, stop, q_s)


def active(seed: int, purpose: str, start: int, stop: int, rate: float) -> BoolArray:
    """The mask of items ``start`` to ``stop - 1`` of a coin stream that are up with probability ``rate``."""
    if not 0 < rate <= 1:
        raise ValueError(f"rate is {rate}; allowed: in (0, 1]")
    if rate == 1:
        return np.ones(stop - start, dtype=np.bool_)
    threshold = np.uint64(int(rate * 2.0**64))  # exact: scaling a double by a power of two
    return streams.coins(seed, purpose, start, stop) < threshold
