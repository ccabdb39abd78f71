"""Which sentences of a sampled user take part in a round, given the round's coins.

A sentence is eligible iff its own coin and ALL its entities are active (docs/privacy.md, Algorithm). The work is
proportional to the sampled users' sentences (plus one coin per entity of the corpus, shared by all users).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from data_prep.ownership import Ownership
from strategies import sampling

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Selection:
    """The eligible sentences of a node's sampled users.

    Attributes:
        users: the sampled users, ascending (U,).
        sentences: the eligible sentence ids, ascending, hence grouped by user (K,).
        counts: how many of them each user owns, in the order of ``users`` (U,).
    """

    users: IntArray
    sentences: IntArray
    counts: IntArray


def select(ownership: Ownership, user_runs: IntArray, round_seed: int, q_e: float, q_s: float) -> Selection:
    """Toss the round's coins for the users of ``user_runs`` (R, 2) and keep what is eligible."""
    offsets = ownership.user_offsets
    users = _expand(user_runs)
    runs = np.stack([offsets[user_runs[:, 0]], offsets[user_runs[:, 1]]], axis=1)
    up = [first + np.flatnonzero(sampling.active_sentences(round_seed, first, stop, q_s)) for first, stop in runs]
    candidates = np.concatenate(up) if up else np.empty(0, dtype=np.int64)
    sentences = candidates[_entities_active(ownership, candidates, round_seed, q_e)]
    counts = np.searchsorted(sentences, offsets[users + 1]) - np.searchsorted(sentences, offsets[users])
    return Selection(users=users, sentences=sentences, counts=counts)


def _entities_active(ownership: Ownership, sentences: IntArray, round_seed: int, q_e: float) -> npt.NDArray[np.bool_]:
    """The mask (K,) of the sentences all of whose entities are active; a sentence without entity always is."""
    if q_e == 1 or len(sentences) == 0:
        return np.ones(len(sentences), dtype=np.bool_)
    active = sampling.active_entities(round_seed, ownership.num_entities, q_e)
    firsts = ownership.entity_offsets[sentences]
    runs = np.stack([firsts, ownership.entity_offsets[sentences + 1]], axis=1)
    inactive = ~active[ownership.entity_ids[_expand(runs)]]
    mentioned_by = np.repeat(np.arange(len(sentences)), runs[:, 1] - firsts)
    return np.bincount(mentioned_by[inactive], minlength=len(sentences)) == 0


def _expand(runs: IntArray) -> IntArray:
    """The ids of runs (R, 2) of consecutive ids, concatenated."""
    lengths = runs[:, 1] - runs[:, 0]
    starts = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum()), dtype=np.int64) + np.repeat(runs[:, 0] - starts, lengths)
