"""Select the eligible sentences of the sampled users of a round.

A sentence is eligible iff the sentence itself and ALL its entities are sampled (docs/privacy.md, section 2). The proofs
assume that all users share one draw per entity, and that sentences are sampled independently. The time is proportional
to the sampled users' sentences, whatever the size of the corpus. A client rule that selects in another way registers a
function with :func:`select_for`.

The UeDP paper's algorithm (docs/strategies.md, ``published``) is such a rule: a sentence with entities is eligible iff
ANY of them is sampled; its weight is the sum over its sampled entities. A sentence without entities is an extended
entity of its own, sampled with probability q_s. Because one sampled entity suffices, q_e does not amplify privacy
(docs/privacy-proofs.md, section 3).

>>> ownership = Ownership(  # user 0 has sentences 0 and 1, user 1 has sentence 2; entity 0 is in sentences 0 and 2
...     user_offsets=np.array([0, 2, 3]), entity_offsets=np.array([0, 1, 1, 3]),
...     entity_ids=np.array([0, 0, 1], dtype=np.int32), num_entities=2)
>>> selection = select(ownership, user_runs=np.array([[0, 2]]), round_seed=0, q_e=1.0, q_s=1.0)
>>> selection.sentences, selection.counts
(array([0, 1, 2]), array([2, 1]))
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.strategies.client_rules import ClientRule, WeightedGradients, weights_of
from fl_sim.strategies.primitives import sampling

IntArray = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_LONG = 64  # from this mean length of user runs on, sentences are sampled in ranges


@dataclass(frozen=True, slots=True)
class Selection:
    """Hold the eligible sentences of a node's sampled users.

    Attributes:
        users: the sampled users, ascending, int64 (U,).
        sentences: the eligible sentence ids, user by user and ascending for each user, int64 (K,).
        counts: the number of eligible sentences of each user, in the order of ``users``, int64 (U,).
    """

    users: IntArray
    sentences: IntArray
    counts: IntArray

    def nonempty(self) -> Self:
        """Return the selection without users who have no eligible sentence, who may be most of a million."""
        has = self.counts > 0
        return replace(self, users=self.users[has], counts=self.counts[has])

    def only(self, kept: npt.NDArray[np.bool_]) -> Self:
        """Return the selection with the sentences of the mask ``kept``, bool (K,), alone.

        A subclass with more arrays of sentences selects from these, too: whatever stays beside other sentences than its
        own lets one user change what another one sends.
        """
        owners = np.repeat(np.arange(len(self.users)), self.counts)
        return replace(
            self, sentences=self.sentences[kept], counts=np.bincount(owners[kept], minlength=len(self.users))
        )


@functools.singledispatch
def select_for(rule: ClientRule, ownership: Ownership, user_runs: IntArray, round_seed: int) -> Selection:
    """Return the eligible sentences under ``rule``, by the function registered for its class.

    ``user_runs`` are the sampled users as runs of consecutive ids, int64 (R, 2).
    """
    return select(ownership, user_runs, round_seed, rule.q_e, rule.q_s)


def select(ownership: Ownership, user_runs: IntArray, round_seed: int, q_e: float, q_s: float) -> Selection:
    """Return the sentences that are sampled, at rate q_s, together with all their entities, at rate q_e."""
    lengths = user_runs[:, 1] - user_runs[:, 0]
    before = np.cumsum(lengths) - lengths
    users = np.arange(lengths.sum(), dtype=np.int64) + np.repeat(user_runs[:, 0] - before, lengths)
    sampled, owners = _sampled_sentence_range(ownership, users, user_runs, round_seed, q_s)
    eligible = _entities_active(ownership, sampled, round_seed, q_e)
    counts = np.bincount(owners[eligible], minlength=len(users))
    return Selection(users=users, sentences=sampled[eligible], counts=counts)


def thin(selection: Selection, weights: Floats, round_seed: int) -> Selection:
    """Return the selection with each sentence kept with the probability that is its weight, float64 (S,) in [0, 1].

    A sentence is then sampled with probability q_s·w(s): weights that limit what an entity or a user contributes hold
    under every client rule (docs/privacy-proofs.md, section 15).
    """
    return selection.only(sampling.thinned_sentences(round_seed, selection.sentences, weights[selection.sentences]))


def _sampled_sentence_range(
    ownership: Ownership, users: IntArray, user_runs: IntArray, round_seed: int, q_s: float
) -> tuple[IntArray, IntArray]:
    """Return the sampled sentences of ``users``, int64 (K,), and the index of each owner in ``users``, int64 (K,)."""
    if ownership.sentence_ids is None and len(users) >= _LONG * len(user_runs) > 0:
        runs = ownership.user_offsets[user_runs].tolist()
        sampled = np.concatenate(
            [sampling.sampled_sentence_range(round_seed, first, stop, q_s) for first, stop in runs]
        )
        return sampled, np.searchsorted(ownership.user_offsets[users + 1], sampled, side="right")
    owned, counts = ownership.sentences_of(users)
    indices = np.flatnonzero(sampling.sampled_sentences(round_seed, owned, q_s))
    return owned[indices], np.searchsorted(np.cumsum(counts), indices, side="right")


def _entities_active(ownership: Ownership, sentences: IntArray, round_seed: int, q_e: float) -> npt.NDArray[np.bool_]:
    """Return a mask, bool (K,), true for sentences whose entities are all active, or that have none."""
    if q_e == 1 or len(sentences) == 0:
        return np.ones(len(sentences), dtype=np.bool_)
    entities, counts = ownership.entities_of(sentences)
    inactive = ~sampling.sampled_entities(round_seed, ownership.draws_of(entities), q_e)
    mentioned_by = np.repeat(np.arange(len(sentences)), counts)
    return np.bincount(mentioned_by[inactive], minlength=len(sentences)) == 0


@dataclass(frozen=True, slots=True)
class WeightedSelection(Selection):
    """Hold a selection with the weights of its sentences and users.

    Attributes:
        weights: m_s = Σ w_e over the sampled entities of sentence s, or w_s of an extended entity, float64 (K,).
        user_weights: w_u, float64 (U,).
    """

    weights: Floats
    user_weights: Floats

    def nonempty(self) -> Self:
        """Return the selection without users who have no eligible sentence."""
        # slots=True replaces the class, so super() without arguments would fail
        return replace(Selection.nonempty(self), user_weights=self.user_weights[self.counts > 0])

    def only(self, kept: npt.NDArray[np.bool_]) -> Self:
        """Return the selection with the sentences of the mask ``kept``, bool (K,), alone."""
        return replace(Selection.only(self, kept), weights=self.weights[kept])


@select_for.register
def select_weighted(
    rule: WeightedGradients, ownership: Ownership, user_runs: IntArray, round_seed: int
) -> WeightedSelection:
    """Return the sentences with a sampled entity and, under f_E+, the sampled sentences without entities."""
    owned = select(ownership, user_runs, round_seed, 1.0, 1.0)
    weights = _sentence_weights(ownership, owned.sentences, round_seed, rule)
    every = WeightedSelection(
        users=owned.users,
        sentences=owned.sentences,
        counts=owned.counts,
        weights=weights,
        user_weights=weights_of(ownership.sentences_per_user, rule.user_weight_cap)[owned.users],
    )
    return every.only(weights > 0)


def sentences_per_entity(ownership: Ownership) -> IntArray:
    """Return n_e, the number of sentences of the corpus that mention each entity, int64 (E,)."""
    return np.bincount(ownership.entity_ids, minlength=ownership.num_entities)


def num_extended(ownership: Ownership) -> int:
    """Return |S|, the number of sentences without an entity."""
    return int(np.count_nonzero(ownership.entities_per_sentence == 0))


def _sentence_weights(ownership: Ownership, sentences: IntArray, round_seed: int, rule: WeightedGradients) -> Floats:
    """Return m_s of each sentence, float64 (K,); 0 for a sentence that is not eligible."""
    entities, counts = ownership.entities_of(sentences)
    sampled = sampling.sampled_entities(round_seed, ownership.draws_of(entities), rule.q_e)
    weights = weights_of(sentences_per_entity(ownership), rule.entity_weight_cap)[entities[sampled]]
    mentioned_by = np.repeat(np.arange(len(sentences)), counts)[sampled]
    total = np.bincount(mentioned_by, weights=weights, minlength=len(sentences)).astype(np.float64)
    if rule.extended:
        alone = counts == 0
        is_sampled = sampling.sampled_sentences(round_seed, sentences, rule.q_s)
        total[alone & is_sampled] = weights_of(np.array([num_extended(ownership)]), rule.extended_weight_cap)
    return total
