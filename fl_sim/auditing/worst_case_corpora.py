"""Build the worst-case adjacent corpora: the owner of each sentence, and its gradient in a one-dimensional model.

All protected data pull one way (+), all other sentences of the users who mention the entity pull the other way (−). One
corpus holds many independent *copies* of this small federation, each with its own users, entities, sentences and one
coordinate of the model (docs/audit.md).

>>> scenario = Scenario(entity_users=2, entity_sentences=1, user_sentences=3, background=1)
>>> build(scenario, copies=2).kinds.tolist()
[0, 1, 0, 1, 2, 2, 2, 0, 1, 0, 1, 2, 2, 2]
>>> build(scenario, copies=2, present=False).kinds.tolist()
[0, 0, 0, 0]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.strategies.accounting.adjacency import PrivacyError

Ints = NDArray[np.int64]

BACKGROUND, ENTITY, LONE = 0, 1, 2
"""Kinds of sentences: with nothing protected, with the protected entity, of the protected user."""
BYSTANDER = -1
"""The copy of users who belong to none."""


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
        PrivacyError: neither a user nor an entity is protected.
    """

    entity_users: int = 0
    entity_sentences: int = 0
    user_sentences: int = 0
    background: int = 0
    companions: int = 0
    everywhere: bool = False

    def __post_init__(self) -> None:
        if not (self.user_sentences or self.entity_users * self.entity_sentences):
            raise PrivacyError("the scenario protects neither a user nor an entity; allowed: at least one of them")

    @property
    def items(self) -> int:
        """Return the number of users, sentences and mentions of a copy, for the use of memory."""
        users = self.entity_users + (self.user_sentences > 0)
        sentences = self.entity_users * (self.background + self.entity_sentences) + self.user_sentences
        return users + sentences * (1 + self.companions)


@dataclass(frozen=True, eq=False)
class CopiedCorpus:
    """Hold one of the two corpora, in many copies.

    Attributes:
        ownership: the owner and the entities of each sentence of all copies.
        kinds: BACKGROUND, ENTITY or LONE for each sentence, int64 (S,).
        copy_of_user: the copy of each user, which is its coordinate of the model, or BYSTANDER, int64 (U,).
    """

    ownership: Ownership
    kinds: Ints
    copy_of_user: Ints
    copies: int

    @property
    def copy_of_sentence(self) -> Ints:
        """Return the copy of each sentence, int64 (S,)."""
        return self.copy_of_user[self.ownership.user_of_sentence]


def build(scenario: Scenario, copies: int, *, present: bool = True, bystanders: int = 0) -> CopiedCorpus:
    """Return the corpus with or without the protected data, in many copies.

    A sentence with e' mentions all entities of its copy, whose ids follow one another.

    Args:
        present: whether the corpus holds the protected user, who is not enrolled otherwise, and the protected entity.
        bystanders: users with a sentence each, after all copies.
    """
    of_affected = [BACKGROUND] * scenario.background + ([ENTITY] * scenario.entity_sentences if present else [])
    users = [of_affected] * scenario.entity_users
    if present and scenario.user_sentences:
        users.append([LONE] * scenario.user_sentences)
    of_copy = np.array([kind for user in users for kind in user], dtype=np.int64)
    kinds = np.append(np.tile(of_copy, copies), np.full(bystanders, BACKGROUND))
    owned = np.append(np.tile([len(user) for user in users], copies), np.ones(bystanders)).astype(np.int64)
    entities, in_copies = scenario.companions + 1, np.arange(len(kinds)) < copies * len(of_copy)
    everywhere = np.where(in_copies & scenario.everywhere, scenario.companions, 0)
    counts = np.where(kinds == ENTITY, entities, everywhere)
    copy = np.arange(len(kinds)) // max(len(of_copy), 1)
    first, ends = np.where(kinds == ENTITY, 0, 1) + copy * entities, np.cumsum(counts)
    return CopiedCorpus(
        ownership=Ownership(
            user_offsets=np.concatenate([[0], np.cumsum(owned)]).astype(np.int64),
            entity_offsets=np.concatenate([[0], ends]).astype(np.int64),
            entity_ids=(np.repeat(first - (ends - counts), counts) + np.arange(counts.sum())).astype(np.int32),
            num_entities=copies * entities,
        ),
        kinds=kinds,
        copy_of_user=np.append(np.repeat(np.arange(copies), len(users)), np.full(bystanders, BYSTANDER)),
        copies=copies,
    )


def gradients(user_clip: float) -> NDArray[np.float32]:
    """Return the gradient of a sentence of each kind before any clip, float32 (3, 1).

    All are far longer than β, and a sentence with e' outweighs the background.
    """
    rows = np.empty((3, 1), dtype=np.float32)
    rows[BACKGROUND], rows[ENTITY], rows[LONE] = -2 * user_clip, 4 * user_clip, 2 * user_clip
    return rows
