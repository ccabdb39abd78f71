"""Which sentences of a sampled user take part in a round.

A sentence is eligible iff the sentence itself and ALL its entities are sampled (docs/privacy.md, Algorithm). The work
is proportional to the sampled users' sentences, whatever the size of the corpus. A client rule that selects in another
way registers a function with :func:`select_for`; :mod:`fl_sim.clients.weighted_selection` does.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.strategies.client_rules import ClientRule
from fl_sim.strategies.primitives import sampling

IntArray = npt.NDArray[np.int64]

_LONG = 64  # users in a row from which on their sentences' coins are read in a row, too


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

    def nonempty(self) -> Self:
        """The same without the users who have no eligible sentence: of a million few may have one."""
        has = self.counts > 0
        return replace(self, users=self.users[has], counts=self.counts[has])


@functools.singledispatch
def select_for(rule: ClientRule, ownership: Ownership, user_runs: IntArray, round_seed: int) -> Selection:
    """Return the sentences that take part under ``rule``, in the way that is registered for its class.

    Args:
        rule: the client rule.
        ownership: who owns which sentence of the split.
        user_runs: the sampled users as runs of consecutive ids, int64 (R, 2).
        round_seed: the seed of the round's draws.
    """
    return select(ownership, user_runs, round_seed, rule.q_e, rule.q_s)


def select(ownership: Ownership, user_runs: IntArray, round_seed: int, q_e: float, q_s: float) -> Selection:
    """Return the eligible sentences of the users of ``user_runs``, int64 (R, 2)."""
    users = _expand(user_runs)
    up, owners = _sampled_sentence_range(ownership, users, user_runs, round_seed, q_s)
    eligible = _entities_active(ownership, up, round_seed, q_e)
    counts = np.bincount(owners[eligible], minlength=len(users))
    return Selection(users=users, sentences=up[eligible], counts=counts)


def _sampled_sentence_range(
    ownership: Ownership, users: IntArray, user_runs: IntArray, round_seed: int, q_s: float
) -> tuple[IntArray, IntArray]:
    """The sentences of ``users`` whose own coin is up (K,), and the places of their owners among the users (K,)."""
    if ownership.sentence_ids is None and len(users) >= _LONG * len(user_runs) > 0:
        runs = ownership.user_offsets[user_runs].tolist()
        up = np.concatenate([sampling.sampled_sentence_range(round_seed, first, stop, q_s) for first, stop in runs])
        return up, np.searchsorted(ownership.user_offsets[users + 1], up, side="right")
    owned, counts = ownership.sentences_of(users)
    up = np.flatnonzero(sampling.sampled_sentences(round_seed, owned, q_s))
    return owned[up], np.searchsorted(np.cumsum(counts), up, side="right")


def _entities_active(ownership: Ownership, sentences: IntArray, round_seed: int, q_e: float) -> npt.NDArray[np.bool_]:
    """The mask (K,) of the sentences all of whose entities are active; a sentence without entity always is."""
    if q_e == 1 or len(sentences) == 0:
        return np.ones(len(sentences), dtype=np.bool_)
    entities, counts = ownership.entities_of(sentences)
    inactive = ~sampling.sampled_entities(round_seed, entities, q_e)
    mentioned_by = np.repeat(np.arange(len(sentences)), counts)
    return np.bincount(mentioned_by[inactive], minlength=len(sentences)) == 0


def _expand(runs: IntArray) -> IntArray:
    """The ids of runs (R, 2) of consecutive ids, concatenated."""
    lengths = runs[:, 1] - runs[:, 0]
    before = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum(), dtype=np.int64) + np.repeat(runs[:, 0] - before, lengths)
