"""Check sentence weights against the contribution bounds that they are to enforce, sentence by sentence.

The check counts again, by another way than any rule that chooses weights: it walks over the mentions, adds up the
weights of every entity and user, and compares them with k, F and m.

>>> ownership = Ownership(  # user 0 has sentences 0 and 1, user 1 has sentence 2; entity 0 is in all three
...     user_offsets=np.array([0, 2, 3]), entity_offsets=np.array([0, 1, 2, 3]),
...     entity_ids=np.zeros(3, dtype=np.int32), num_entities=1)
>>> limits = Limits(entity_sentences=2, entity_users=1, user_sentences=2)
>>> violations(ownership, np.array([1.0, 1.0, 0.0]), limits)
[]
>>> for violation in violations(ownership, np.array([1.0, 0.5, 1.0]), limits):
...     print(violation)
entity 0 has weight 2.5 in sentences; allowed: at most 2
entity 0 has 2 users; allowed: at most 1
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl_sim.data_prep.store.ownership import Ownership

_ROUNDING = 1e-9  # of a sum of weights, relative
_SHOWN = 10  # violations of each kind


@dataclass(frozen=True, slots=True)
class Limits:
    """Hold the bounds to check; None for no bound.

    Attributes:
        entity_sentences: k, the largest weight of an entity's sentences together.
        entity_users: F, the largest number of users with a kept sentence that mentions the entity.
        user_sentences: m, the largest number of kept sentences of a user.
    """

    entity_sentences: float | None = None
    entity_users: int | None = None
    user_sentences: float | None = None


def violations(ownership: Ownership, weights: NDArray[np.float64], limits: Limits) -> list[str]:
    """Return what the weights violate, one line each; at most ten lines of each kind.

    A sentence is kept if its weight is above 0.

    Args:
        ownership: the users, sentences and entities.
        weights: w(s), the factor on the probability that a sentence is sampled, float64 (S,).
        limits: the bounds.
    """
    if weights.shape != (ownership.num_sentences,):
        return [f"weights have shape {weights.shape}; allowed: ({ownership.num_sentences},)"]
    impossible = np.flatnonzero(~((weights >= 0) & (weights <= 1)))  # NaN is neither
    if len(impossible):
        return [f"sentence {s} has weight {weights[s]:g}; allowed: 0 to 1" for s in impossible[:_SHOWN].tolist()]
    owners = ownership.user_of_sentence
    sentence = np.repeat(np.arange(ownership.num_sentences), ownership.entities_per_sentence)
    of_entity = np.bincount(ownership.entity_ids, weights=weights[sentence], minlength=ownership.num_entities)
    is_kept = weights[sentence] > 0
    pairs = np.unique(ownership.entity_ids[is_kept] * np.int64(ownership.num_users) + owners[sentence[is_kept]])
    users = np.bincount(pairs // max(ownership.num_users, 1), minlength=ownership.num_entities)
    of_user = np.bincount(owners[weights > 0], minlength=ownership.num_users)
    return [
        *_above("entity", of_entity, limits.entity_sentences, "has weight {:g} in sentences"),
        *_above("entity", users, limits.entity_users, "has {:g} users"),
        *_above("user", of_user, limits.user_sentences, "has {:g} kept sentences"),
    ]


def _above(unit: str, totals: NDArray[np.number], limit: float | None, what: str) -> list[str]:
    """Return a line for each of the first units whose total exceeds the limit."""
    if limit is None:
        return []
    beyond = np.flatnonzero(totals > limit * (1 + _ROUNDING))[:_SHOWN]
    return [f"{unit} {i} {what.format(totals[i])}; allowed: at most {limit:g}" for i in beyond.tolist()]
