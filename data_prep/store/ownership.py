"""The incidence of users, sentences and entities, on which sampling and accounting build.

>>> ownership = Ownership(  # user 0 has sentences 0 and 1, user 1 has sentence 2; entity 0 is in sentences 0 and 2
...     user_offsets=np.array([0, 2, 3]),
...     entity_offsets=np.array([0, 1, 1, 3]),
...     entity_ids=np.array([0, 0, 1], dtype=np.int32),
...     num_entities=2,
... )
>>> ownership.sentences_per_user, ownership.user_of_sentence
(array([2, 1]), array([0, 0, 1]))
>>> ownership.entity_contributions().users
array([2, 1])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fl_sim.data_prep.records import CorpusError

Int32Array = NDArray[np.int32]
Int64Array = NDArray[np.int64]

_USERS_AT_ONCE = 1 << 14
_AT_ONCE = 1 << 20  # elements checked at a time, so that the checks need little memory


@dataclass(frozen=True, eq=False)
class EntityContributions:
    """The contribution bounds of E entities. On real text they are private themselves.

    Attributes:
        users: how many users mention the entity, int64 (E,).
        sentences: how many sentences mention it, int64 (E,).
        max_per_user: the most such sentences of one user, int64 (E,).
    """

    users: Int64Array
    sentences: Int64Array
    max_per_user: Int64Array

    def quantile(self, q: float) -> tuple[int, int, int]:
        """Return the q-quantiles of ``users``, ``max_per_user`` and ``sentences``, each by itself.

        Each is the smallest value that at least a share q of the entities do not exceed (inverted distribution
        function, never interpolated), so it is a value of some entity.

        Raises:
            CorpusError: q is outside [0, 1], or the corpus has no entity.
        """
        if not 0 <= q <= 1:
            raise CorpusError(f"quantile {q} must lie in [0, 1]")
        if len(self.users) == 0:
            raise CorpusError("the corpus has no entity, so its contribution bounds have no quantile")
        users, max_per_user, sentences = (
            int(np.quantile(values, q, method="inverted_cdf"))
            for values in (self.users, self.max_per_user, self.sentences)
        )
        return users, max_per_user, sentences


@dataclass(frozen=True, eq=False)
class EntityProfiles:
    """The profiles of E entities: in how many sentences each user mentions the entity. Private on real text.

    The profile of entity e is ``sentences[offsets[e]:offsets[e+1]]``: a count of at least 1 per user that mentions it,
    largest first, without the users.

    Attributes:
        offsets: int64 (E+1,).
        sentences: int32 (pairs,).
    """

    offsets: Int64Array
    sentences: Int32Array

    def __post_init__(self) -> None:
        _check_vector("profile offsets", self.offsets, np.int64)
        _check_vector("profile sentences", self.sentences, np.int32)
        _check_offsets("profile offsets", self.offsets, len(self.sentences), "len(profile sentences)")


@dataclass(frozen=True, eq=False)
class Ownership:
    """The incidence of N users, S sentences and E entities.

    The arrays may be memory-mapped.

    Attributes:
        user_offsets: int64 (N+1,); user u has the sentences ``user_offsets[u]:user_offsets[u+1]``, or with
            ``sentence_ids`` those in ``sentence_ids[user_offsets[u]:user_offsets[u+1]]``.
        entity_offsets: int64 (S+1,); sentence s mentions the entities
            ``entity_ids[entity_offsets[s]:entity_offsets[s+1]]``.
        entity_ids: int32 (nnz,); sorted and unique within a sentence.
        num_entities: E.
        sentence_ids: int64 (S,), every sentence once, ascending within a user; None if they are stored user by user.
        stored_profiles: the result of :meth:`entity_profiles` if a prepared corpus has it on disk.
        entity_draws: int64 (E,), the number by which each entity is sampled, such as a digest of its name that other
            corpora share (:mod:`fl_sim.data_prep.digests`); None if it is the entity's id.
        check: whether to check all arrays; false only for arrays joined from checked ones.

    Raises:
        CorpusError: the arrays do not describe an incidence.
    """

    user_offsets: Int64Array
    entity_offsets: Int64Array
    entity_ids: Int32Array
    num_entities: int
    sentence_ids: Int64Array | None = None
    stored_profiles: EntityProfiles | None = None
    entity_draws: Int64Array | None = None
    check: InitVar[bool] = True

    def __post_init__(self, check: bool) -> None:
        if not check:
            return
        _check_vector("user_offsets", self.user_offsets, np.int64)
        _check_vector("entity_offsets", self.entity_offsets, np.int64)
        _check_vector("entity_ids", self.entity_ids, np.int32)
        _check_offsets("entity_offsets", self.entity_offsets, len(self.entity_ids), "len(entity_ids)")
        _check_offsets("user_offsets", self.user_offsets, self.num_sentences, "the number of sentences")
        self._check_entity_ids()
        if self.sentence_ids is not None:
            _check_permutation(self.sentence_ids, self.num_sentences)
        if self.entity_draws is not None and len(self.entity_draws) != self.num_entities:
            raise CorpusError(f"entity_draws are of {len(self.entity_draws)} entities, must be of {self.num_entities}")
        if self.stored_profiles is not None and len(self.stored_profiles.offsets) != self.num_entities + 1:
            stored = len(self.stored_profiles.offsets) - 1
            raise CorpusError(f"the stored profiles are of {stored} entities, must be of {self.num_entities}")

    @property
    def num_users(self) -> int:
        return len(self.user_offsets) - 1

    @property
    def num_sentences(self) -> int:
        return len(self.entity_offsets) - 1

    @property
    def sentences_per_user(self) -> Int64Array:
        """Number of sentences of each user, int64 (N,)."""
        return np.diff(self.user_offsets)

    @property
    def entities_per_sentence(self) -> Int64Array:
        """Number of entities of each sentence, int64 (S,); 0 for a sentence of the extended set."""
        return np.diff(self.entity_offsets)

    @property
    def user_of_sentence(self) -> Int64Array:
        """The user of each sentence, int64 (S,)."""
        owners = np.repeat(np.arange(self.num_users, dtype=np.int64), self.sentences_per_user)
        if self.sentence_ids is None:
            return owners
        by_sentence = np.empty_like(owners)
        by_sentence[self.sentence_ids] = owners
        return by_sentence

    def sentences_of(self, users: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the sentences of K users, int64, user by user and ascending in each, and their numbers, int64 (K,)."""
        positions, counts = _expand(self.user_offsets[users], self.user_offsets[users + 1])
        return (positions if self.sentence_ids is None else self.sentence_ids[positions]), counts

    def entities_of(self, sentences: Int64Array) -> tuple[Int32Array, Int64Array]:
        """Return the entities of K sentences, int32, sentence by sentence, and their numbers, int64 (K,)."""
        positions, counts = _expand(self.entity_offsets[sentences], self.entity_offsets[sentences + 1])
        return self.entity_ids[positions], counts

    def draws_of(self, entities: Int32Array) -> NDArray[np.integer]:
        """Return the number by which each of ``entities``, int32 (K,), is sampled, integers (K,)."""
        return entities if self.entity_draws is None else self.entity_draws[entities]

    def without_entities(self, entities: Sequence[int]) -> Ownership:
        """Return the incidence in which no sentence mentions any of ``entities``; their ids stay, without mentions."""
        if not len(entities):
            return self
        dropped = np.zeros(self.num_entities, dtype=np.bool_)
        dropped[np.asarray(entities, dtype=np.int64)] = True
        return self._with_mentions(~dropped[self.entity_ids])

    def restricted_to(self, kept: NDArray[np.bool_]) -> Ownership:
        """Return the incidence in which only the sentences of the mask ``kept``, bool (S,), mention entities."""
        return self._with_mentions(np.repeat(kept, self.entities_per_sentence))

    def _with_mentions(self, kept: NDArray[np.bool_]) -> Ownership:
        """Return the incidence with the mentions of the mask ``kept``, bool (nnz,), alone."""
        before = np.concatenate(([0], np.cumsum(kept, dtype=np.int64)))
        return replace(
            self,
            entity_offsets=before[self.entity_offsets],
            entity_ids=self.entity_ids[kept],
            stored_profiles=None,
            check=False,
        )

    def entity_contributions(self) -> EntityContributions:
        """Return the contribution bounds of every entity, without a Python loop."""
        profiles = self.entity_profiles()
        users = np.diff(profiles.offsets)
        mentioned = np.flatnonzero(users)
        starts = profiles.offsets[mentioned]
        max_per_user, sentences = np.zeros((2, self.num_entities), dtype=np.int64)
        max_per_user[mentioned] = profiles.sentences[starts]
        if len(mentioned):
            sentences[mentioned] = np.add.reduceat(profiles.sentences, starts, dtype=np.int64)
        return EntityContributions(users=users, sentences=sentences, max_per_user=max_per_user)

    def entity_profiles(self) -> EntityProfiles:
        """Return the profile of every entity: as stored, or by two sorts of the incidence, without a Python loop."""
        if self.stored_profiles is not None:
            return self.stored_profiles
        owners = np.repeat(self.user_of_sentence, self.entities_per_sentence)
        pairs = self.entity_ids * np.int64(max(self.num_users, 1)) + owners
        pairs.sort()
        starts = np.flatnonzero(np.concatenate((np.ones(min(len(pairs), 1), dtype=bool), pairs[1:] != pairs[:-1])))
        counts = np.diff(np.append(starts, len(pairs)))
        entities = pairs[starts] // max(self.num_users, 1)
        offsets = np.concatenate(([0], np.cumsum(np.bincount(entities, minlength=self.num_entities)))).astype(np.int64)
        # Sort by one key: ascending in the entity, and descending in the count within an entity.
        widest = np.int64(counts.max(initial=0)) + 1
        keys = entities * widest + (widest - 1 - counts)
        keys.sort()
        return EntityProfiles(offsets=offsets, sentences=(widest - 1 - keys % widest).astype(np.int32))

    def _check_entity_ids(self) -> None:
        ids = self.entity_ids
        if len(ids) == 0:
            return
        if ids.min() < 0 or ids.max() >= self.num_entities:
            raise CorpusError(
                f"entity_ids go from {ids.min()} to {ids.max()}, must lie in [0, {self.num_entities} = num_entities)"
            )
        for start in range(0, self.num_sentences, _AT_ONCE):
            offsets = self.entity_offsets[start : start + _AT_ONCE + 1]
            block = ids[offsets[0] : offsets[-1]]
            rising = block[1:] > block[:-1]
            seams = offsets[1:-1] - offsets[0] - 1
            rising[seams[(seams >= 0) & (seams < len(rising))]] = True
            if not rising.all():
                raise CorpusError("entity_ids must be sorted and unique within each sentence")


def join_parts(parts: Sequence[Ownership]) -> Ownership:
    """Return the incidence of all parts of a corpus together.

    Sentence ids count on from part to part. User and entity ids are common to all parts, and later parts know those of
    earlier ones. A user may have sentences in several parts.
    """
    if len(parts) == 1:
        return parts[0]
    num_users, num_sentences = parts[-1].num_users, sum(part.num_sentences for part in parts)
    counts = [np.pad(part.sentences_per_user, (0, num_users - part.num_users)) for part in parts]
    user_offsets = np.concatenate(([0], np.cumsum(np.sum(counts, axis=0)))).astype(np.int64)
    sentence_ids = np.empty(num_sentences, dtype=np.int64)
    free, first = user_offsets[:-1].copy(), 0
    for part, sizes in zip(parts, counts, strict=True):
        for start in range(0, part.num_users, _USERS_AT_ONCE):
            users = slice(start, min(start + _USERS_AT_ONCE, part.num_users))
            begin, end = part.user_offsets[users.start], part.user_offsets[users.stop]
            numbers = np.arange(begin, end)
            positions = np.repeat(free[users] - part.user_offsets[users], sizes[users])
            sentence_ids[positions + numbers] = first + numbers
        free += sizes
        first += part.num_sentences
    ends = np.cumsum([part.entity_offsets[-1] for part in parts])
    tails = [part.entity_offsets[1:] + end for part, end in zip(parts[1:], ends[:-1], strict=True)]
    return Ownership(
        user_offsets=user_offsets,
        entity_offsets=np.concatenate((parts[0].entity_offsets, *tails)),
        entity_ids=np.concatenate([part.entity_ids for part in parts]),
        num_entities=parts[-1].num_entities,
        sentence_ids=sentence_ids,
        check=False,
    )


def _expand(starts: Int64Array, ends: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the integers of the ranges ``starts[i]:ends[i]``, int64 (total,), and the ranges' lengths, int64 (K,)."""
    lengths = ends - starts
    before = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum()), dtype=np.int64) + np.repeat(starts - before, lengths), lengths


def _check_vector(name: str, values: NDArray[np.generic], dtype: type[np.generic]) -> None:
    if values.ndim != 1 or values.dtype != dtype:
        raise CorpusError(f"{name} must be a vector of {dtype.__name__}, not {values.dtype} of shape {values.shape}")


def _check_offsets(name: str, offsets: Int64Array, end: int, meaning: str) -> None:
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != end or not _is_nondecreasing(offsets):
        raise CorpusError(f"{name} must rise from 0 to {meaning} ({end})")


def _is_nondecreasing(values: Int64Array) -> bool:
    blocks = (values[start : start + _AT_ONCE + 1] for start in range(0, len(values), _AT_ONCE))
    return all((block[1:] >= block[:-1]).all() for block in blocks)


def _check_permutation(sentence_ids: Int64Array, num_sentences: int) -> None:
    _check_vector("sentence_ids", sentence_ids, np.int64)
    present = np.zeros(num_sentences, dtype=np.bool_)
    if len(sentence_ids) == num_sentences:
        present[sentence_ids[(sentence_ids >= 0) & (sentence_ids < num_sentences)]] = True
    if not present.all():
        raise CorpusError(f"sentence_ids must have each of the {num_sentences} sentences once")
