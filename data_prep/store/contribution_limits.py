"""Weight the sentences of a prepared corpus so that no entity and no user exceeds a public limit.

A bound that is *set* and *enforced* is public, whereas one that is read off the corpus is private. The weight of a
sentence multiplies its sampling rate: weight 0 leaves it out. Weights depend on the mention graph (who owns which
sentence, and which entities it mentions), public limits and a given order alone, so they are the same on both corpora
of the guarantee "mention graph public" (docs/privacy-proofs.md, section 15).

*Greedy* weights are 0 or 1: sentences are visited in turn, and one is kept if its user and all its entities have room.
Sentences that compete for fewer entities come first, which keeps more of them. *Proportional* weights keep every
sentence a little: w(s) is the minimum of 1 and k/n_e over its entities e, with n_e the sentences that mention e.

>>> import numpy as np
>>> from fl_sim.data_prep.store.ownership import Ownership
>>> three_mentions = Ownership(  # two users; all three sentences mention entity 0
...     user_offsets=np.array([0, 2, 3]), entity_offsets=np.array([0, 1, 2, 3]),
...     entity_ids=np.zeros(3, dtype=np.int32), num_entities=1)
>>> order, limits = np.array([2, 0, 1]), ContributionLimits(sentences_per_entity=2)
>>> greedy_weights(three_mentions, limits, order)
array([1., 0., 1.])
>>> proportional_weights(three_mentions, limits, order).round(2)
array([0.67, 0.67, 0.67])
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.ownership import Ownership

BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]
Weights = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ContributionLimits:
    """Limit what one entity and one user contribute to a training split.

    Attributes:
        sentences_per_entity: k, the most sentences with an entity; None for no limit.
        users_per_entity: F, the most users whose sentences with an entity are kept; None for no limit.
        sentences_per_user: m, the most sentences of one user; None for no limit.

    Raises:
        CorpusError: a limit is below 1.
    """

    sentences_per_entity: int | None = None
    users_per_entity: int | None = None
    sentences_per_user: int | None = None

    def __post_init__(self) -> None:
        for name in ("sentences_per_entity", "users_per_entity", "sentences_per_user"):
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise CorpusError(f"{name} is {limit}; allowed: an integer of at least 1, or no limit")


def greedy_weights(ownership: Ownership, limits: ContributionLimits, order: IntArray) -> Weights:
    """Return 1 for the sentences that are kept within all limits and 0 for the others, float64 (S,).

    The time is linear in the number of mentions; only sentences that compete for room are visited one by one.

    Args:
        ownership: the users, sentences and entities of the split.
        limits: the limits per entity and per user.
        order: int64 (S,), a permutation of the sentence ids; among equals, earlier sentences are kept.

    Raises:
        CorpusError: ``order`` does not have one entry per sentence.
    """
    _check_order(order, ownership)
    contested = _contested_mentions(ownership, limits)
    rivals = _per_sentence(ownership, contested)
    users = ownership.user_of_sentence
    waiting = rivals > 0
    if limits.sentences_per_user is not None:
        waiting |= (ownership.sentences_per_user > limits.sentences_per_user)[users]
    queue = order[np.argsort(rivals[order], kind="stable")]
    queue = queue[waiting[queue]]
    entities, counts = ownership.entities_of(queue)
    is_contested = _contested_entities(ownership, limits)[entities]
    mentions = np.bincount(np.repeat(np.arange(len(queue)), counts)[is_contested], minlength=len(queue))
    admitted = _admitted(users[queue], entities[is_contested], mentions, limits)
    weights = np.ones(ownership.num_sentences)
    weights[queue[~admitted]] = 0.0
    return weights


def proportional_weights(ownership: Ownership, limits: ContributionLimits, order: IntArray) -> Weights:
    """Return weights in [0, 1] that add up to at most k over the sentences of any entity, float64 (S,).

    A user's sentences beyond m, in the given order, have weight 0. A limit on users per entity has no meaning here.

    Args:
        ownership: the users, sentences and entities of the split.
        limits: the limits per entity and per user.
        order: int64 (S,), a permutation of the sentence ids.

    Raises:
        CorpusError: ``order`` does not have one entry per sentence, or users per entity are limited.
    """
    if limits.users_per_entity is not None:
        raise CorpusError(f"users_per_entity is {limits.users_per_entity}; allowed: no limit with weights")
    weights = greedy_weights(ownership, ContributionLimits(sentences_per_user=limits.sentences_per_user), order)
    if limits.sentences_per_entity is None:
        return weights
    owners = np.repeat(np.arange(ownership.num_sentences), ownership.entities_per_sentence)
    counts = np.bincount(ownership.entity_ids, weights[owners], minlength=ownership.num_entities)
    with np.errstate(divide="ignore"):
        share = np.nextafter(limits.sentences_per_entity / counts, 0.0)  # rounded down, so that no sum exceeds k
    share[counts <= limits.sentences_per_entity] = 1.0
    np.minimum.at(weights, owners, share[ownership.entity_ids])
    return weights


def _check_order(order: IntArray, ownership: Ownership) -> None:
    if len(order) != ownership.num_sentences:
        raise CorpusError(f"the order has {len(order)} sentences; allowed: the {ownership.num_sentences} of the split")


def _contested_entities(ownership: Ownership, limits: ContributionLimits) -> BoolArray:
    """Return the entities that exceed a limit, a mask, bool (E,); all sentences of the others have room."""
    contributions = ownership.entity_contributions()
    contested = np.zeros(ownership.num_entities, dtype=np.bool_)
    if limits.sentences_per_entity is not None:
        contested |= contributions.sentences > limits.sentences_per_entity
    if limits.users_per_entity is not None:
        contested |= contributions.users > limits.users_per_entity
    return contested


def _contested_mentions(ownership: Ownership, limits: ContributionLimits) -> BoolArray:
    """Return the mentions of entities that exceed a limit, a mask, bool (nnz,)."""
    return _contested_entities(ownership, limits)[ownership.entity_ids]


def _per_sentence(ownership: Ownership, mentions: BoolArray) -> IntArray:
    """Return the number of marked mentions in each sentence, int64 (S,)."""
    owners = np.repeat(np.arange(ownership.num_sentences), ownership.entities_per_sentence)
    return np.bincount(owners[mentions], minlength=ownership.num_sentences)


def _admitted(
    users: IntArray, entities: NDArray[np.int32], mentions: IntArray, limits: ContributionLimits
) -> BoolArray:
    """Visit a queue of sentences and return which of them have room, a mask, bool (K,).

    Args:
        users: the user of each sentence, int64 (K,).
        entities: the contested entities of the sentences, sentence by sentence, int32.
        mentions: the number of contested entities of each sentence, int64 (K,).
        limits: the limits per entity and per user.
    """
    room = dict.fromkeys(np.unique(entities).tolist(), limits.sentences_per_entity or len(users))
    room_of_user = dict.fromkeys(np.unique(users).tolist(), limits.sentences_per_user or len(users))
    users_of: dict[int, set[int]] = {entity: set() for entity in room}
    most_users = limits.users_per_entity
    admitted = np.zeros(len(users), dtype=np.bool_)
    listed, end = entities.tolist(), 0
    for index, (user, count) in enumerate(zip(users.tolist(), mentions.tolist(), strict=True)):
        mentioned, end = listed[end : end + count], end + count
        if room_of_user[user] == 0 or not all(map(room.__getitem__, mentioned)):
            continue
        if most_users and any(len(users_of[e]) >= most_users and user not in users_of[e] for e in mentioned):
            continue
        room_of_user[user] -= 1
        for entity in mentioned:
            room[entity] -= 1
            if most_users:
                users_of[entity].add(user)
        admitted[index] = True
    return admitted
