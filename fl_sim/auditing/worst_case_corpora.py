"""The worst-case adjacent corpora: who owns which sentence, and where each sentence pulls a one-dimensional model.

The guarantee holds for any gradients, so the auditor chooses them. All protected data pull one way (+), everything
else of the users who know the entity pulls the other way (−), and nobody else is there. Many independent *copies* of
this little world lie side by side in one corpus, with users, entities and sentences of their own; one coordinate of
the model belongs to each copy. Since every coin belongs to one user, entity or sentence, and the noise of every
coordinate is independent, one round of the real code on the whole corpus is one independent round on each copy.
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
    """One pair of adjacent corpora.

    Attributes:
        reach_users: F, users that mention the protected entity e'.
        reach_sentences: n, sentences of each of them that do.
        user_sentences: n', sentences of the protected user u'; 0 if no user is protected.
        background: sentences of each of the F users without any entity, which pull the other way.
        companions: further entities that every sentence with e' mentions.

    Raises:
        PrivacyError: for a negative count, or if nobody is protected.
    """

    reach_users: int = 0
    reach_sentences: int = 0
    user_sentences: int = 0
    background: int = 0
    companions: int = 0

    def __post_init__(self) -> None:
        for name in ("reach_users", "reach_sentences", "user_sentences", "background", "companions"):
            if getattr(self, name) < 0:
                raise PrivacyError(f"{name} is {getattr(self, name)}; allowed: an integer of at least 0")
        if not (self.user_sentences or self.reach_users * self.reach_sentences):
            raise PrivacyError("the scenario protects neither a user nor an entity; allowed: at least one of them")

    @property
    def users(self) -> int:
        """Users per copy, u' included."""
        return self.reach_users + (self.user_sentences > 0)

    @property
    def sentences(self) -> int:
        """Sentences per copy where everything is present."""
        return self.reach_users * (self.background + self.reach_sentences) + self.user_sentences


@dataclass(frozen=True, eq=False)
class CopiedCorpus:
    """One of the two corpora, many copies side by side.

    Attributes:
        ownership: of all copies.
        kinds: BACKGROUND, ENTITY or LONE for each sentence (S,).
        copy_of_user: which copy, and so which coordinate, each user belongs to (U,).
        copies: how many there are.
    """

    ownership: Ownership
    kinds: Ints
    copy_of_user: Ints
    copies: int


def build(scenario: Scenario, present: bool, copies: int) -> CopiedCorpus:
    """The corpus with (``present``) or without the protected user and entity; without, u' is not enrolled at all."""
    of_knower = [BACKGROUND] * scenario.background + ([ENTITY] * scenario.reach_sentences if present else [])
    kinds_by_user = [of_knower] * scenario.reach_users
    if present and scenario.user_sentences:
        kinds_by_user.append([LONE] * scenario.user_sentences)
    users = len(kinds_by_user)
    kinds_of_copy = np.array([kind for user in kinds_by_user for kind in user], dtype=np.int64)
    counts = np.tile([len(user) for user in kinds_by_user], copies).astype(np.int64)
    kinds = np.tile(kinds_of_copy, copies)
    return CopiedCorpus(
        ownership=_ownership(kinds, counts, len(kinds_of_copy), scenario.companions + 1, copies),
        kinds=kinds,
        copy_of_user=np.repeat(np.arange(copies, dtype=np.int64), users),
        copies=copies,
    )


def _ownership(kinds: Ints, sentences_of_user: Ints, per_copy: int, entities: int, copies: int) -> Ownership:
    """Every ENTITY sentence mentions all ``entities`` of its copy; e' is the first of them."""
    with_entity = kinds == ENTITY
    copy = np.flatnonzero(with_entity) // max(per_copy, 1)
    ids = (copy[:, None] * entities + np.arange(entities)).astype(np.int32)
    return Ownership(
        user_offsets=np.concatenate([[0], np.cumsum(sentences_of_user)]).astype(np.int64),
        entity_offsets=np.concatenate([[0], np.cumsum(with_entity * entities)]).astype(np.int64),
        entity_ids=ids.ravel(),
        num_entities=copies * entities,
    )


def gradients(user_clip: float) -> NDArray[np.float32]:
    """(3, 1): where a sentence of each kind pulls, before any clip. Far beyond β, and e' outweighs the background."""
    rows = np.empty((3, 1), dtype=np.float32)
    rows[BACKGROUND], rows[ENTITY], rows[LONE] = -2 * user_clip, 4 * user_clip, 2 * user_clip
    return rows


def background_needed(reach_sentences: int, user_cap: float, clips_sentences: bool) -> int:
    """How many opposed sentences per user let the entity turn the user's clipped vector round.

    Under a user clip alone one is enough. Under sentence clips it helps only where the entity's own sentences could
    exceed the user's cap.
    """
    if not clips_sentences:
        return 1
    return math.ceil(user_cap) if reach_sentences > user_cap else 0
