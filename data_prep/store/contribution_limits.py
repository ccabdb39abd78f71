"""Weight the sentences of a prepared corpus so that no entity and no user exceeds a public limit.

A bound that is *set* and *enforced* is public, whereas one that is read off the corpus is private. The weight of a
sentence multiplies its sampling rate: weight 0 leaves it out (docs/privacy-proofs.md, section 15).

Weights *by counts* keep every sentence a little: w(s) is a formula of the declared counts of its user and its entities,
so that it is the same whatever else is in the corpus. *Greedy* weights are 0 or 1: sentences are visited in turn, and
one is kept if its user and all its entities have room. Sentences that compete for fewer entities come first, which
keeps more of them. They depend on the whole mention graph (who owns which sentence, and which entities it mentions), so
they are the same on both corpora of a guarantee only where that graph is known.

>>> import numpy as np
>>> from fl_sim.data_prep.store.ownership import Ownership
>>> three_mentions = Ownership(  # two users; all three sentences mention entity 0
...     user_offsets=np.array([0, 2, 3]), entity_offsets=np.array([0, 1, 2, 3]),
...     entity_ids=np.zeros(3, dtype=np.int32), num_entities=1)
>>> order, limits = np.array([2, 0, 1]), ContributionLimits(sentences_per_entity=2)
>>> greedy_weights(three_mentions, limits, order)
array([1., 0., 1.])
>>> count_weights(three_mentions, limits, DeclaredCounts.of(three_mentions)).round(2)
array([0.67, 0.67, 0.67])
"""

from __future__ import annotations

import hashlib
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
        limits: the limits per entity and per user.
        order: int64 (S,), a permutation of the sentence ids; among equals, earlier sentences are kept.

    Raises:
        CorpusError: ``order`` does not have one entry per sentence.
    """
    if len(order) != ownership.num_sentences:
        raise CorpusError(f"the order has {len(order)} sentences; allowed: the {ownership.num_sentences} of the split")
    contested = _contested_entities(ownership, limits)
    owners = np.repeat(np.arange(ownership.num_sentences), ownership.entities_per_sentence)
    rivals = np.bincount(owners[contested[ownership.entity_ids]], minlength=ownership.num_sentences)
    users = ownership.user_of_sentence
    waiting = rivals > 0
    if limits.sentences_per_user is not None:
        waiting |= (ownership.sentences_per_user > limits.sentences_per_user)[users]
    queue = order[np.argsort(rivals[order], kind="stable")]
    queue = queue[waiting[queue]]
    entities, counts = ownership.entities_of(queue)
    is_contested = contested[entities]
    mentions = np.bincount(np.repeat(np.arange(len(queue)), counts)[is_contested], minlength=len(queue))
    admitted = _admitted(users[queue], entities[is_contested], mentions, limits)
    weights = np.ones(ownership.num_sentences)
    weights[queue[~admitted]] = 0.0
    return weights


@dataclass(frozen=True, eq=False)
class DeclaredCounts:
    """State how often each user and each entity of a split occurs at most: numbers that may be known to anybody.

    Attributes:
        users: n_u, for every user at least the number of the user's sentences, int64 (N,).
        entities: n_e, for every entity at least the number of sentences that mention it, int64 (E,).
        declared: all counts of users, and all of entities, those of absent ones included, int64: in ascending order, or
            in that of names if these are stated. Not in that of ids, which tells who is mentioned first.
        names: SHA-256 of the names of users and entities; empty if none are stated.
    """

    users: IntArray
    entities: IntArray
    declared: tuple[IntArray, IntArray]
    names: str = ""

    @classmethod
    def of(cls, ownership: Ownership) -> DeclaredCounts:
        """Return the true counts of a split."""
        entities = np.bincount(ownership.entity_ids, minlength=ownership.num_entities)
        return cls.exactly(ownership.sentences_per_user, entities)

    @classmethod
    def exactly(cls, users: IntArray, entities: IntArray) -> DeclaredCounts:
        """Return the true counts n_u and n_e."""
        return cls(users, entities, (np.sort(users), np.sort(entities)))

    @property
    def population(self) -> int:
        """Return how many users counts are declared of."""
        return len(self.declared[0])

    @property
    def digest(self) -> str:
        """Return the SHA-256 of all that is declared and of nothing else: equal counts have equal digests."""
        return _digest(self.names, *self.declared)

    def digest_of_whose(self, *, by_name: bool) -> str:
        """Return a SHA-256 of whose counts they are, which unless names are stated is as private as the order of ids.

        Args:
            by_name: whether entities may be numbered in any way. Which name has which count is then for the digest of
                the text to say (:mod:`fl_sim.data_prep.digests`).
        """
        if self.names:
            return self.digest
        entities = np.sort(self.entities) if by_name else self.entities
        return _digest("", self.users, entities)

    def rounded_up(self) -> DeclaredCounts:
        """Return the counts rounded up to powers of two, which tell orders of magnitude only."""
        users, entities, *declared = map(_power_of_two, (self.users, self.entities, *self.declared))
        return DeclaredCounts(users, entities, (declared[0], declared[1]), self.names)

    def check(self, ownership: Ownership) -> None:
        """Raise CorpusError if a user or an entity of a split occurs more often than declared: no ε would hold."""
        true = DeclaredCounts.of(ownership)
        for kind, declared, counted in (("user", self.users, true.users), ("entity", self.entities, true.entities)):
            if declared.shape != counted.shape:
                raise CorpusError(f"counts are of {len(declared)} {kind} ids; allowed: of {len(counted)}")
            for one in np.flatnonzero(counted > declared)[:1].tolist():
                raise CorpusError(
                    f"{kind} {one} has declared count {declared[one]}; allowed: at least {counted[one]}, its sentences "
                    "in the corpus"
                )


def count_weights(ownership: Ownership, limits: ContributionLimits, counts: DeclaredCounts) -> Weights:
    """Return w(s) = min(1, m/n_u, k/n_e over the entities e of s), float64 (S,): a formula of s and of public numbers.

    The weights of a user add up to at most m and those of an entity to at most k, and no weight depends on what others
    say (docs/privacy-proofs.md, section 15, Theorem 5). The limits are m and k, the counts n_u and n_e.

    Raises:
        CorpusError: a count is smaller than the split's, or users per entity are limited, which weights cannot do.
    """
    if limits.users_per_entity is not None:
        raise CorpusError(f"users_per_entity is {limits.users_per_entity}; allowed: no limit with weights")
    counts.check(ownership)
    weights = _shares(limits.sentences_per_user, counts.users)[ownership.user_of_sentence]
    sentences = np.repeat(np.arange(ownership.num_sentences), ownership.entities_per_sentence)
    np.minimum.at(weights, sentences, _shares(limits.sentences_per_entity, counts.entities)[ownership.entity_ids])
    return weights


def _shares(limit: int | None, counts: IntArray) -> Weights:
    """Return min(1, limit / count), rounded down so that no sum exceeds the limit, float64 (len(counts),)."""
    shares = np.ones(len(counts))
    if limit is not None:
        beyond = counts > limit
        shares[beyond] = np.nextafter(limit / counts[beyond], 0.0)
    return shares


def _digest(names: str, *counted: IntArray) -> str:
    arrays = b"".join(np.append(len(one), one).astype("<i8").tobytes() for one in counted)
    return hashlib.sha256(names.encode() + arrays).hexdigest()


def _power_of_two(counts: IntArray) -> IntArray:
    """Return the smallest powers of two that are at least the counts, int64; 0 for 0."""
    _, exponents = np.frexp(np.maximum(counts - 1, 0))  # exact below 2^53
    return np.where(counts > 0, np.int64(1) << exponents.astype(np.int64), 0)


def _contested_entities(ownership: Ownership, limits: ContributionLimits) -> BoolArray:
    """Return the entities that exceed a limit, a mask, bool (E,); all sentences of the others have room."""
    contributions = ownership.entity_contributions()
    contested = np.zeros(ownership.num_entities, dtype=np.bool_)
    if limits.sentences_per_entity is not None:
        contested |= contributions.sentences > limits.sentences_per_entity
    if limits.users_per_entity is not None:
        contested |= contributions.users > limits.users_per_entity
    return contested


def _admitted(
    users: IntArray, entities: NDArray[np.int32], mentions: IntArray, limits: ContributionLimits
) -> BoolArray:
    """Visit a queue of sentences and return which of them have room, a mask, bool (K,).

    Args:
        users: the user of each sentence, int64 (K,).
        entities: the contested entities, int32, sentence by sentence.
        mentions: how many of them each sentence has, int64 (K,).
        limits: per entity and per user.
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
