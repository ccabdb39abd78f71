"""Who owns what: the incidence of users, sentences and entities, on which sampling and accounting build."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass

import numpy as np
from numpy.typing import NDArray

from fl_sim.data_prep.records import CorpusError

Int32Array = NDArray[np.int32]
Int64Array = NDArray[np.int64]

_USERS_AT_ONCE = 1 << 14
_AT_ONCE = 1 << 20  # how much is checked at a time, so that checking needs no memory of the corpus's size


@dataclass(frozen=True, eq=False)
class EntityContributions:
    """How far each of E entities reaches into the corpus. All arrays are int64 of shape (E,).

    users: how many users mention the entity; sentences: how many sentences do;
    max_per_user: the most of those sentences that any one user has.
    The reach of real text is itself private: it is for the simulation's owner.
    """

    users: Int64Array
    sentences: Int64Array
    max_per_user: Int64Array

    def quantile(self, q: float) -> tuple[int, int, int]:
        """The q-quantiles of ``users``, ``max_per_user`` and ``sentences``, each on its own.

        Each is the smallest value that at least a share q of the entities do not exceed (inverted
        distribution function, never interpolated), so that it is a reach some entity has. Raises
        :class:`CorpusError` for q outside [0, 1] and for a corpus without entities.
        """
        if not 0 <= q <= 1:
            raise CorpusError(f"quantile {q} must lie in [0, 1]")
        if len(self.users) == 0:
            raise CorpusError("the corpus has no entity, so its entity reach has no quantile")
        users, most, sentences = (
            int(np.quantile(values, q, method="inverted_cdf"))
            for values in (self.users, self.max_per_user, self.sentences)
        )
        return users, most, sentences


@dataclass(frozen=True, eq=False)
class EntityProfiles:
    """The profile of each of E entities: how many sentences of each of its users mention it.

    offsets: int64 (E+1,); sentences: int32 (pairs,). Entity e has the profile
    ``sentences[offsets[e]:offsets[e+1]]``, one entry of at least 1 per user that mentions it, largest first.
    Which user it is, a profile does not say.
    Like the reach, profiles of real text are private.
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

    user_offsets: int64 (N+1,); user u owns the sentences ``user_offsets[u]:user_offsets[u+1]``, or in a corpus that
        grew ``sentence_ids[user_offsets[u]:user_offsets[u+1]]``.
    entity_offsets: int64 (S+1,); sentence s mentions the entities
        ``entity_ids[entity_offsets[s]:entity_offsets[s+1]]``.
    entity_ids: int32 (nnz,); sorted and unique within a sentence.
    num_entities: E.
    sentence_ids: int64 (S,), every sentence once, ascending within a user; None where they lie user by user.
    stored_profiles: what :meth:`entity_profiles` would compute, where a prepared corpus has it on disk.
    check: whether to look through all arrays; false only for what was put together from checked ones.
    The arrays may be memory-mapped files. Raises :class:`CorpusError` where they do not describe such an incidence.
    """

    user_offsets: Int64Array
    entity_offsets: Int64Array
    entity_ids: Int32Array
    num_entities: int
    sentence_ids: Int64Array | None = None
    stored_profiles: EntityProfiles | None = None
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
        if self.stored_profiles is not None and len(self.stored_profiles.offsets) != self.num_entities + 1:
            found = len(self.stored_profiles.offsets) - 1
            raise CorpusError(f"the stored profiles are of {found} entities, must be of {self.num_entities}")

    @property
    def num_users(self) -> int:
        return len(self.user_offsets) - 1

    @property
    def num_sentences(self) -> int:
        return len(self.entity_offsets) - 1

    @property
    def sentences_per_user(self) -> Int64Array:
        """int64 (N,)."""
        return np.diff(self.user_offsets)

    @property
    def entities_per_sentence(self) -> Int64Array:
        """int64 (S,); 0 marks a sentence of the extended set."""
        return np.diff(self.entity_offsets)

    @property
    def user_of_sentence(self) -> Int64Array:
        """int64 (S,): the owner of each sentence."""
        owners = np.repeat(np.arange(self.num_users, dtype=np.int64), self.sentences_per_user)
        if self.sentence_ids is None:
            return owners
        by_sentence = np.empty_like(owners)
        by_sentence[self.sentence_ids] = owners
        return by_sentence

    def sentences_of(self, users: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The sentences of ``users`` (K,), user by user and ascending within each; and how many each has (K,)."""
        places, counts = _expand(self.user_offsets[users], self.user_offsets[users + 1])
        return (places if self.sentence_ids is None else self.sentence_ids[places]), counts

    def entities_of(self, sentences: Int64Array) -> tuple[Int32Array, Int64Array]:
        """The entities of ``sentences`` (K,), sentence by sentence; and how many each mentions (K,)."""
        places, counts = _expand(self.entity_offsets[sentences], self.entity_offsets[sentences + 1])
        return self.entity_ids[places], counts

    def entity_contributions(self) -> EntityContributions:
        """The reach of every entity; no Python loop."""
        profiles = self.entity_profiles()
        users = np.diff(profiles.offsets)
        mentioned = np.flatnonzero(users)
        starts = profiles.offsets[mentioned]
        most, sentences = np.zeros((2, self.num_entities), dtype=np.int64)
        most[mentioned] = profiles.sentences[starts]
        if len(mentioned):
            sentences[mentioned] = np.add.reduceat(profiles.sentences, starts, dtype=np.int64)
        return EntityContributions(users=users, sentences=sentences, max_per_user=most)

    def entity_profiles(self) -> EntityProfiles:
        """The profile of every entity: as stored, or by two sorts of the incidence, without a Python loop."""
        if self.stored_profiles is not None:
            return self.stored_profiles
        owners = np.repeat(self.user_of_sentence, self.entities_per_sentence)
        pairs = self.entity_ids * np.int64(max(self.num_users, 1)) + owners
        pairs.sort()
        starts = np.flatnonzero(np.concatenate((np.ones(min(len(pairs), 1), dtype=bool), pairs[1:] != pairs[:-1])))
        counts = np.diff(np.append(starts, len(pairs)))
        entities = pairs[starts] // max(self.num_users, 1)
        offsets = np.concatenate(([0], np.cumsum(np.bincount(entities, minlength=self.num_entities)))).astype(np.int64)
        # Largest first within each entity: one key that falls with the count and stays below the next entity's.
        widest = np.int64(counts.max(initial=0)) + 1
        keys = entities * widest + (widest - 1 - counts)
        keys.sort()
        return EntityProfiles(offsets=offsets, sentences=(widest - 1 - keys % widest).astype(np.int32))

    def _check_entity_ids(self) -> None:
        ids = self.entity_ids
        if self.num_entities < 0:
            raise CorpusError(f"num_entities {self.num_entities} must not be negative")
        if len(ids) == 0:
            return
        if ids.min() < 0 or ids.max() >= self.num_entities:
            raise CorpusError(
                f"entity_ids go from {ids.min()} to {ids.max()}, must lie in [0, {self.num_entities} = num_entities)"
            )
        for start in range(0, self.num_sentences, _AT_ONCE):
            offsets = self.entity_offsets[start : start + _AT_ONCE + 1]
            some = ids[offsets[0] : offsets[-1]]
            rising = some[1:] > some[:-1]
            seams = offsets[1:-1] - offsets[0] - 1
            rising[seams[(seams >= 0) & (seams < len(rising))]] = True
            if not rising.all():
                raise CorpusError("entity_ids must be sorted and unique within each sentence")


def join_parts(parts: Sequence[Ownership]) -> Ownership:
    """The incidence of a corpus that grew by ``parts``: sentence ids count on, user and entity ids are common to all.

    Later parts know all users and entities of earlier ones. A user may own sentences of several parts.
    """
    if len(parts) == 1:
        return parts[0]
    num_users, num_sentences = parts[-1].num_users, sum(part.num_sentences for part in parts)
    counts = [np.pad(part.sentences_per_user, (0, num_users - part.num_users)) for part in parts]
    user_offsets = np.concatenate(([0], np.cumsum(np.sum(counts, axis=0)))).astype(np.int64)
    sentence_ids = np.empty(num_sentences, dtype=np.int64)
    free, first = user_offsets[:-1].copy(), 0
    for part, owned in zip(parts, counts, strict=True):
        for start in range(0, part.num_users, _USERS_AT_ONCE):
            users = slice(start, min(start + _USERS_AT_ONCE, part.num_users))
            begin, end = part.user_offsets[users.start], part.user_offsets[users.stop]
            numbers = np.arange(begin, end)
            places = np.repeat(free[users] - part.user_offsets[users], owned[users])
            sentence_ids[places + numbers] = first + numbers
        free += owned
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
    """The numbers of the runs ``starts[i]:ends[i]``, concatenated; and the length of each run."""
    lengths = ends - starts
    before = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum()), dtype=np.int64) + np.repeat(starts - before, lengths), lengths


def _check_vector(name: str, values: NDArray[np.generic], dtype: type[np.generic]) -> None:
    if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype != dtype:
        found = f"{values.dtype} of shape {values.shape}" if isinstance(values, np.ndarray) else type(values).__name__
        raise CorpusError(f"{name} must be a vector of {dtype.__name__}, not {found}")


def _check_offsets(name: str, offsets: Int64Array, end: int, meaning: str) -> None:
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != end or not _never_falls(offsets):
        raise CorpusError(f"{name} must rise from 0 to {meaning} ({end})")


def _never_falls(values: Int64Array) -> bool:
    blocks = (values[start : start + _AT_ONCE + 1] for start in range(0, len(values), _AT_ONCE))
    return all((block[1:] >= block[:-1]).all() for block in blocks)


def _check_permutation(sentence_ids: Int64Array, num_sentences: int) -> None:
    _check_vector("sentence_ids", sentence_ids, np.int64)
    owned = np.zeros(num_sentences, dtype=np.bool_)
    if len(sentence_ids) == num_sentences:
        owned[sentence_ids[(sentence_ids >= 0) & (sentence_ids < num_sentences)]] = True
    if not owned.all():
        raise CorpusError(f"sentence_ids must have each of the {num_sentences} sentences once")
