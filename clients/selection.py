"""Which sentences of a sampled user take part in a round, given the round's coins.

A sentence is eligible iff its own coin and ALL its entities are active (docs/privacy.md, Algorithm). The work is
proportional to the sampled users' sentences, whatever the size of the corpus.
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
        sentences: the eligible sentence ids, user by user and ascending within each (K,).
        counts: how many of them each user owns, in the order of ``users`` (U,).
    """

    users: IntArray
    sentences: IntArray
    counts: IntArray


def select(ownership: Ownership, user_runs: IntArray, round_seed: int, q_e: float, q_s: float) -> Selection:
    """Toss the round's coins for the users of ``user_runs`` (R, 2) and keep what is eligible."""
    users = _expand(user_runs)
    owned, counts = ownership.sentences_of(users)
    up = np.flatnonzero(sampling.active_sentences(round_seed, owned, q_s))
    kept = up[_entities_active(ownership, owned[up], round_seed, q_e)]
    owners = np.searchsorted(np.cumsum(counts), kept, side="right")
    return Selection(users=users, sentences=owned[kept], counts=np.bincount(owners, minlength=len(users)))


def _entities_active(ownership: Ownership, sentences: IntArray, round_seed: int, q_e: float) -> npt.NDArray[np.bool_]:
    """The mask (K,) of the sentences all of whose entities are active; a sentence without entity always is."""
    if q_e == 1 or len(sentences) == 0:
        return np.ones(len(sentences), dtype=np.bool_)
    entities, counts = ownership.entities_of(sentences)
    inactive = ~sampling.active_entities(round_seed, entities, q_e)
    mentioned_by = np.repeat(np.arange(len(sentences)), counts)
    return np.bincount(mentioned_by[inactive], minlength=len(sentences)) == 0


def _expand(runs: IntArray) -> IntArray:
    """The ids of runs (R, 2) of consecutive ids, concatenated."""
    ids = [np.arange(first, stop, dtype=np.int64) for first, stop in runs]
    return np.concatenate(ids) if ids else np.empty(0, dtype=np.int64)
