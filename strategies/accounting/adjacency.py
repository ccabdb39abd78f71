"""Define the protected unit: a user, an entity, or one of each at once (user-entity adjacency).

Two corpora are *user-entity adjacent* when one of them holds at most one more user ``u'`` (all of that user's
sentences) and at most one more sensitive entity ``e'`` (every sentence of any user that mentions it).
See docs/privacy.md, section 1.

>>> ContributionBound(users=15, sentences_per_user=2, sentences=10, weighted=True).total_weight
10.0
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from fl_sim.strategies.primitives.limits import MOST_COUNTED, PrivacyError, require

ANY_NUMBER = 1 << 31
"""Stands for no bound on the sentences of one user that mention an entity: more than any user has."""


@dataclass(frozen=True, slots=True)
class ContributionBound:
    """Bound the contribution of the protected entity ``e'``: the users who mention it and their sentences that do.

    A sentence of weight w(s), from 0 to 1, is sampled with probability at most q_s·w(s), where a run weights its
    sentences by what may be known.

    Attributes:
        users: F, the largest number of users (other than ``u'``) who mention the entity; 0 protects no entity.
        sentences_per_user: n, the largest number of sentences of one such user that mention it.
        sentences: the largest number of sentences of all users together; None for ``users * sentences_per_user``.
        weighted: whether ``sentences`` bounds the sum of the sentences' weights, those of the run that is accounted
            for, instead of their number.

    Raises:
        PrivacyError: if a count is not an integer from 0 to ``MOST_COUNTED``.
    """

    users: int
    sentences_per_user: int
    sentences: int | float | None = None
    weighted: bool = False

    def __post_init__(self) -> None:
        for name in ("users", "sentences_per_user"):
            require(_is_count(getattr(self, name)), f"reach {name}", getattr(self, name), _COUNTS)
        total = self.sentences
        possible = total is None or _is_count(total, whole=not self.weighted)
        allowed = "a number from 0 to 10^12" if self.weighted else _COUNTS
        require(possible, "reach sentences", total, allowed)

    @property
    def total(self) -> int:
        """Return the largest number of sentences that mention the entity."""
        bound = int(self.users) * int(self.sentences_per_user)  # of any size, which NumPy's integers are not
        return bound if self.sentences is None or self.weighted else min(bound, int(self.sentences))

    @property
    def total_weight(self) -> float:
        """Return the largest sum of the weights of the sentences that mention the entity."""
        bound = float(self.total)
        return min(bound, float(self.sentences)) if self.sentences is not None and self.weighted else bound

    def without_weights(self) -> ContributionBound:
        """Return the bound where every sentence has weight 1: then a sum of weights does not bound their number."""
        return ContributionBound(self.users, self.sentences_per_user) if self.weighted else self


def _is_count(value: object, *, whole: bool = True) -> bool:
    """Return whether a value is a number from 0 to ``MOST_COUNTED``, and a ``whole`` one."""
    if not isinstance(value, Real):
        return False
    number: Any = value  # an integer may be too large for a float
    return bool(0 <= number <= MOST_COUNTED and (not whole or float(number).is_integer()))


_COUNTS = "an integer from 0 to 10^12"

NO_ENTITY = ContributionBound(users=0, sentences_per_user=0)


def covering(bounds: Sequence[ContributionBound]) -> ContributionBound:
    """Return the smallest bound that holds for every entity within any of ``bounds``, in whatever order they come.

    >>> covering([ContributionBound(1, 4), ContributionBound(3, 1, 2)])
    ContributionBound(users=3, sentences_per_user=4, sentences=4, weighted=False)
    """
    return ContributionBound(
        users=max(bound.users for bound in bounds),
        sentences_per_user=max(bound.sentences_per_user for bound in bounds),
        sentences=max(bound.total_weight if bound.weighted else bound.total for bound in bounds),
        weighted=any(bound.weighted for bound in bounds),
    )


@dataclass(frozen=True, slots=True)
class Adjacency:
    """State by how much the two corpora of the guarantee differ: at most one user ``u'`` and one entity ``e'``.

    Attributes:
        user_sentences: n', the largest number of sentences of ``u'``; ``math.inf`` assumes no bound, 0 protects no
            user.
        entity_bound: the contribution bound of ``e'``; ``NO_ENTITY`` protects no entity.
        weighted: whether ``user_sentences`` bounds the sum of the weights of the sentences of ``u'`` instead of their
            number.

    Raises:
        PrivacyError: if ``user_sentences`` is neither a count nor infinite.
    """

    user_sentences: float = math.inf
    entity_bound: ContributionBound = NO_ENTITY
    weighted: bool = False

    def __post_init__(self) -> None:
        n = self.user_sentences
        if not (n == math.inf or _is_count(n)):
            raise PrivacyError(f"user_sentences is {n}; allowed: {_COUNTS}, or inf")
