"""Who owns what: the incidence of users, sentences and entities, on which sampling and accounting build."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.records import CorpusError

Int32Array = NDArray[np.int32]
Int64Array = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class EntityReach:
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

    offsets: int64 (E+1,); sentences: int64 (pairs,). Entity e has the profile
    ``sentences[offsets[e]:offsets[e+1]]``, one entry of at least 1 per user that mentions it, largest first.
    Which user it is, a profile does not say.
    Like the reach, profiles of real text are private.
    """

    offsets: Int64Array
    sentences: Int64Array


@dataclass(frozen=True, eq=False)
class Ownership:
    """The incidence of N users, S sentences and E entities.

    user_offsets: int64 (N+1,); user u owns the sentences ``user_offsets[u]:user_offsets[u+1]``.
    entity_offsets: int64 (S+1,); sentence s mentions the entities
        ``entity_ids[entity_offsets[s]:entity_offsets[s+1]]``.
    entity_ids: int32 (nnz,); sorted and unique within a sentence.
    num_entities: E.
    Raises :class:`CorpusError` where the arrays do not describe such an incidence.
    """

    user_offsets: Int64Array
    entity_offsets: Int64Array
    entity_ids: Int32Array
    num_entities: int

    def __post_init__(self) -> None:
        _check_vector("user_offsets", self.user_offsets, np.int64)
        _check_vector("entity_offsets", self.entity_offsets, np.int64)
        _check_vector("entity_ids", self.entity_ids, np.int32)
        _check_offsets("entity_offsets", self.entity_offsets, len(self.entity_ids), "len(entity_ids)")
        _check_offsets("user_offsets", self.user_offsets, self.num_sentences, "the number of sentences")
        self._check_entity_ids()

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
        return np.repeat(np.arange(self.num_users, dtype=np.int64), self.sentences_per_user)

    def entity_profiles(self) -> EntityReach:
        """The reach of every entity; no Python loop."""
        profiles = self.sentences_per_entity_user()
        users = np.diff(profiles.offsets)
        most = np.zeros(self.num_entities, dtype=np.int64)
        present = users > 0
        most[present] = profiles.sentences[profiles.offsets[:-1][present]]
        sentences = np.bincount(self.entity_ids, minlength=self.num_entities).astype(np.int64)
        return EntityReach(users=users, sentences=sentences, max_per_user=most)

    def sentences_per_entity_user(self) -> EntityProfiles:
        """The profile of every entity; two sorts of the incidence, no Python loop."""
        owners = np.repeat(self.user_of_sentence, self.entities_per_sentence)
        pairs = np.sort(self.entity_ids.astype(np.int64) * max(self.num_users, 1) + owners)
        starts = np.flatnonzero(np.concatenate((np.ones(min(len(pairs), 1), dtype=bool), pairs[1:] != pairs[:-1])))
        counts = np.diff(np.append(starts, len(pairs))).astype(np.int64)
        entities = pairs[starts] // max(self.num_users, 1)
        offsets = np.searchsorted(entities, np.arange(self.num_entities + 1)).astype(np.int64)
        return EntityProfiles(offsets=offsets, sentences=counts[np.lexsort((-counts, entities))])

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
        rising = ids[1:] > ids[:-1]
        seams = self.entity_offsets[(self.entity_offsets > 0) & (self.entity_offsets < len(ids))] - 1
        rising[seams] = True
        if not rising.all():
            raise CorpusError("entity_ids must be sorted and unique within each sentence")


def _check_vector(name: str, values: NDArray[np.generic], dtype: type[np.generic]) -> None:
    if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype != dtype:
        found = f"{values.dtype} of shape {values.shape}" if isinstance(values, np.ndarray) else type(values).__name__
        raise CorpusError(f"{name} must be a vector of {dtype.__name__}, not {found}")


def _check_offsets(name: str, offsets: Int64Array, end: int, meaning: str) -> None:
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != end or (np.diff(offsets) < 0).any():
        raise CorpusError(f"{name} must rise from 0 to {meaning} ({end})")
