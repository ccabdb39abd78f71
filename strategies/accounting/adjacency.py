"""Who is protected: a user, an entity, or one of each at once (user-entity adjacency).

Two corpora are *user-entity adjacent* when one of them holds at most one more user ``u'`` (all of that user's
sentences) and at most one more sensitive entity ``e'`` (every sentence of any user that mentions it).
See docs/privacy.md, section 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


class PrivacyError(ValueError):
    """A privacy parameter that is impossible or outside what is proven; it names the value and what is allowed."""


@dataclass(frozen=True, slots=True)
class ContributionBound:
    """How far one entity reaches: who mentions it, and how often. It bounds the profile of the protected entity ``e'``.

    Attributes:
        users: F, at most this many users (other than ``u'``) mention the entity; 0 means no entity is protected.
        sentences_per_user: n, at most this many sentences of each of them do.
        sentences: at most this many sentences do altogether; ``None`` stands for ``users * sentences_per_user``.

    Raises:
        PrivacyError: if a count is negative.
    """

    users: int
    sentences_per_user: int
    sentences: int | None = None

    def __post_init__(self) -> None:
        for name in ("users", "sentences_per_user"):
            if getattr(self, name) < 0:
                raise PrivacyError(f"reach {name} is {getattr(self, name)}; allowed: an integer of at least 0")
        if self.sentences is not None and self.sentences < 0:
            raise PrivacyError(f"reach sentences is {self.sentences}; allowed: an integer of at least 0")

    @property
    def total(self) -> int:
        """At most this many sentences mention the entity."""
        bound = self.users * self.sentences_per_user
        return bound if self.sentences is None else min(bound, self.sentences)


NO_ENTITY = ContributionBound(users=0, sentences_per_user=0)


@dataclass(frozen=True, slots=True)
class Adjacency:
    """The pair of corpora that ε speaks of: a user with at most ``user_sentences`` sentences, an entity of a ``reach``.

    Attributes:
        user_sentences: n', a bound on the sentences of the protected user ``u'``; ``math.inf`` relies on no bound,
            0 protects no user.
        reach: what is assumed of the protected entity ``e'``; ``NO_ENTITY`` protects no entity.
    """

    user_sentences: float = math.inf
    entity_bound: ContributionBound = NO_ENTITY

    def __post_init__(self) -> None:
        n = self.user_sentences
        if not (n >= 0 and (math.isinf(n) or float(n).is_integer())):
            raise PrivacyError(f"user_sentences is {n}; allowed: an integer of at least 0, or inf")
