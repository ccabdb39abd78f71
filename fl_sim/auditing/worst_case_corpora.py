"""Build the worst-case adjacent corpora: the owner of each sentence, and its gradient in a one-dimensional model.

The guarantee holds for any gradients, so the auditor chooses them. All protected data pull one way (+), all other
sentences of the users who mention the entity pull the other way (−), and there are no other users. One corpus holds
many independent *copies* of this small federation, each with its own users, entities, sentences and one coordinate of
the model. Every random draw concerns one user, entity or sentence, and the noise of the coordinates is independent, so
one round of the real code on the whole corpus is one independent round on each copy.

>>> scenario = Scenario(entity_users=2, entity_sentences=1, user_sentences=3, background=1)
>>> build(scenario, present=True, copies=2).kinds.tolist()
[0, 1, 0, 1, 2, 2, 2, 0, 1, 0, 1, 2, 2, 2]
>>> build(scenario, present=False, copies=2).kinds.tolist()
[0, 0, 0, 0]
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.strategies.accounting.adjacency import PrivacyError

Ints = NDArray[np.int64]

BACKGROUND, ENTITY, LONE = 0, 1, 2  # kinds of sentences


@dataclass(frozen=True, slots=True)
class Scenario:
    """Describe one pair of adjacent corpora.

    Attributes:
        entity_users: F, the number of users who mention the protected entity e'.
        entity_sentences: n, the number of sentences of each such user that mention e'.
        user_sentences: n', the number of sentences of the protected user u'; 0 protects no user.
        background: the number of sentences of each of the F users without any entity, which pull the other way.
        companions: the number of further entities in every sentence with e'.
        everywhere: whether all other sentences mention the companions, too, because a sentence without an entity does
            not train (f_E).

    Raises:
        PrivacyError: for a negative count, or if neither a user nor an entity is protected.
    """

    entity_users: int = 0
    entity_sentences: int = 0
    user_sentences: int = 0
    background: int = 0
    companions: int = 0
    everywhere: bool = False

    def __post_init__(self) -> None:
        for name in ("entity_users", "entity_sentences", "user_sentences", "background", "companions"):
            if getattr(self, name) < 0:
                raise PrivacyError(f"{name} is {getattr(self, name)}; allowed: an integer of at least 0")
        if not (self.user_sentences or self.entity_users * self.entity_sentences):
            raise PrivacyError("the scenario protects neither a user nor an entity; allowed: at least one of them")

    @property
    def users(self) -> int:
        """Return the number of users of a copy, u' included."""
        return self.entity_users + (self.user_sentences > 0)

    @property
    def sentences(self) -> int:
        """Return the number of sentences of a copy with the protected data."""
        return self.entity_users * (self.background + self.entity_sentences) + self.user_sentences


@dataclass(frozen=True, eq=False)
class CopiedCorpus:
    """Hold one of the two corpora, in many copies.

    Attributes:
        ownership: the owner and the entities of each sentence of all copies.
        kinds: BACKGROUND, ENTITY or LONE for each sentence, int64 (S,).
        copy_of_user: the copy of each user, which is its coordinate of the model, int64 (U,).
        copies: the number of copies.
    """

    ownership: Ownership
    kinds: Ints
    copy_of_user: Ints
    copies: int


def build(scenario: Scenario, present: bool, copies: int) -> CopiedCorpus:
    """Return the corpus with or without the protected data, in many copies.

    Args:
        scenario: the pair of corpora.
        present: whether the corpus holds the protected user, who is not enrolled otherwise, and the protected entity.
        copies: the number of copies.
    """
    of_affected = [BACKGROUND] * scenario.background + ([ENTITY] * scenario.entity_sentences if present else [])
    kinds_by_user = [of_affected] * scenario.entity_users
    if present and scenario.user_sentences:
        kinds_by_user.append([LONE] * scenario.user_sentences)
    users = len(kinds_by_user)
    kinds_of_copy = np.array([kind for user in kinds_by_user for kind in user], dtype=np.int64)
    counts = np.tile([len(user) for user in kinds_by_user], copies).astype(np.int64)
    kinds = np.tile(kinds_of_copy, copies)
    return CopiedCorpus(
        ownership=_ownership(scenario, kinds, counts, copies),
        kinds=kinds,
        copy_of_user=np.repeat(np.arange(copies, dtype=np.int64), users),
        copies=copies,
    )


def _ownership(scenario: Scenario, kinds: Ints, sentences_of_user: Ints, copies: int) -> Ownership:
    """Return the ownership: a sentence with e', the first entity of its copy, mentions all entities of the copy."""
    with_entity, entities = kinds == ENTITY, scenario.companions + 1
    counts = np.where(with_entity, entities, scenario.companions if scenario.everywhere else 0)
    copy = np.arange(len(kinds)) // max(len(kinds) // copies, 1)
    first = np.where(with_entity, 0, 1) + copy * entities
    ends = np.cumsum(counts)
    ids = np.repeat(first - (ends - counts), counts) + np.arange(counts.sum())
    return Ownership(
        user_offsets=np.concatenate([[0], np.cumsum(sentences_of_user)]).astype(np.int64),
        entity_offsets=np.concatenate([[0], ends]).astype(np.int64),
        entity_ids=ids.astype(np.int32),
        num_entities=copies * entities,
    )


def gradients(user_clip: float) -> NDArray[np.float32]:
    """Return the gradient of a sentence of each kind before any clip, float32 (3, 1).

    All are far longer than β, and a sentence with e' outweighs the background.
    """
    rows = np.empty((3, 1), dtype=np.float32)
    rows[BACKGROUND], rows[ENTITY], rows[LONE] = -2 * user_clip, 4 * user_clip, 2 * user_clip
    return rows


def background_needed(entity_sentences: int, user_cap: float, clips_sentences: bool) -> int:
    """Return the number of opposed sentences per user with which the entity reverses the user's clipped update.

    One is enough if only users are clipped. If sentences are clipped, opposed sentences help only if the sentences with
    the entity can exceed the user's cap.

    Args:
        entity_sentences: n, the number of sentences of a user with the entity.
        user_cap: ŵ.
        clips_sentences: whether sentences are clipped.
    """
    if not clips_sentences:
        return 1
    return math.ceil(user_cap) if entity_sentences > user_cap else 0
