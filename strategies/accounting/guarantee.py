"""State whom the headline ε of a run protects: any user together with any entity, within public bounds.

A bound is public if it is set before the corpus is read, and it holds for *any* entity only if it is also enforced.
:class:`Guarantee` holds the bounds of a run, whether they are enforced, and what the two corpora of the guarantee have
in common: with a *public mention graph* they differ in what the protected sentences say, with a *private* one also in
whether those sentences exist (docs/privacy.md, sections 1 and 15).

>>> guarantee = Guarantee(mention_graph="public", entity_bound=10, user_sentences=32)
>>> guarantee.covers_any_entity
True
>>> [(unit.robust, unit.adjacency.entity_bound.total) for unit in guarantee.units(clips_sentences=True, population=100)]
[(False, 10), (True, 1)]
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from fl_sim.strategies.accounting.adjacency import ANY_NUMBER, Adjacency, ContributionBound
from fl_sim.strategies.primitives.limits import require

MentionGraph = Literal["public", "private"]
BoundRule = Literal["greedy", "weights", "stated"]
NoiseScale = Literal["as-stated", "as-coded"]


@dataclass(frozen=True, slots=True)
class ProtectedUnit:
    """Define a user together with an entity.

    Attributes:
        adjacency: the user, and the entity within its contribution bound.
        robust: whether ε also holds if the tagger missed the entity, which is then sampled in every round.
    """

    adjacency: Adjacency
    robust: bool

    def record(self) -> dict[str, Any]:
        """Return the unit as a JSON object, which :meth:`from_record` reads."""
        return asdict(self)

    @classmethod
    def from_record(cls, values: Mapping[str, Any]) -> ProtectedUnit:
        """Return the unit of a :meth:`record`; raises as its parts do, and TypeError or KeyError for other fields."""
        fields = dict(values["adjacency"])
        entity_bound = ContributionBound(**fields.pop("entity_bound"))
        return cls(Adjacency(entity_bound=entity_bound, **fields), values["robust"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """Hold the public bounds on what the protected user and entity contribute.

    Attributes:
        mention_graph: ``public`` if both corpora of the guarantee have the same users, sentences and mentions, and the
            protected sentences are null in one of them; ``private`` if one of them lacks these sentences.
        entity_bound: k, the most sentences that mention an entity, or if these have weights the most that the weights
            add up to; None for no bound.
        entity_users: F, the most users who mention an entity; None for no bound.
        bound_by: how the bound on entities holds: enforced (``greedy``, ``weights``), or ``stated`` and not enforced.
        weighted: whether sentences may have weights between 0 and 1, by which their sampling rate is multiplied.
        user_sentences: m, the most sentences of a user, enforced; None for no bound.
        missed_mentions: the most sentences with an entity that the tagger misses, as stated; None if nothing is.

    Raises:
        PrivacyError: a value is out of range.
    """

    mention_graph: MentionGraph = "private"
    entity_bound: int | None = None
    entity_users: int | None = None
    bound_by: BoundRule = "greedy"
    weighted: bool = False
    user_sentences: int | None = None
    missed_mentions: int | None = None

    def __post_init__(self) -> None:
        for name, kinds in (("mention_graph", MentionGraph), ("bound_by", BoundRule)):
            require(getattr(self, name) in get_args(kinds), name, getattr(self, name), ", ".join(get_args(kinds)))
        for name, least in (("entity_bound", 1), ("entity_users", 1), ("user_sentences", 1), ("missed_mentions", 0)):
            value = getattr(self, name)
            require(value is None or value >= least, name, value, f"an integer of at least {least}, or nothing")

    @property
    def covers_any_entity(self) -> bool:
        """Return whether a bound on entities is enforced, so that ε holds for any entity."""
        return self.bound_by != "stated" and not (self.entity_bound is None and self.entity_users is None)

    @property
    def displaces(self) -> bool:
        """Return whether an entity's sentences take the place of others of their users, which come in without it."""
        return self.mention_graph == "private" and self.user_sentences is not None

    @property
    def user(self) -> Adjacency:
        """Return the adjacency of any user alone."""
        return Adjacency(math.inf if self.user_sentences is None else float(self.user_sentences))

    def with_entity(self, bound: ContributionBound) -> Adjacency:
        """Return the adjacency of any user together with an entity of a contribution bound.

        With a private mention graph, removing an entity's sentences lets others of their users in for them.
        """
        return self.seen(Adjacency(self.user.user_sentences, bound))

    def seen(self, adjacency: Adjacency) -> Adjacency:
        """Return what a release under these bounds shows of a user with an entity, whatever the adjacency says of it.

        Whether sentences are displaced, and whether they have weights, is decided by the bounds of the release alone.
        """
        bound = adjacency.entity_bound if self.weighted else adjacency.entity_bound.without_weights()
        return Adjacency(adjacency.user_sentences, bound, displaced=self.displaces and bound.total > 0)

    def units(self, *, clips_sentences: bool, population: int, missed: bool = False) -> tuple[ProtectedUnit, ...]:
        """Return the units of which the headline ε is the largest: a user with a detected entity, and with a sentence.

        A sentence without a detected entity is an entity of its own, which is not sampled. There is no unit if no bound
        is set that limits an entity's shift, or none on missed mentions if these count.

        Args:
            clips_sentences: whether a sentence moves the sum by at most its clip; else an entity counts by its users.
            population: N.
            missed: whether to count ``missed_mentions`` besides, in every one of which the entity is not sampled.
        """
        bounded = self.entity_bound is not None or (self.entity_users is not None and not clips_sentences)
        if not bounded or (missed and self.missed_mentions is None):
            return ()
        extra = self.missed_mentions or 0 if missed else 0
        bound = self._entity(clips_sentences, population, extra)
        sentence = ContributionBound(users=1, sentences_per_user=1)
        return (
            ProtectedUnit(self.with_entity(bound), robust=missed),
            ProtectedUnit(self.with_entity(sentence), robust=True),
        )

    def _entity(self, clips_sentences: bool, population: int, extra: int) -> ContributionBound:
        """Return the contribution bound of any entity, with ``extra`` missed sentences of as many users."""
        sentences, users = self.entity_bound, self.entity_users
        if users is None:
            users = population if self.weighted or sentences is None else sentences
        users = min(users + extra, population)
        if not clips_sentences or sentences is None:
            return ContributionBound(users=users, sentences_per_user=1)
        total = each = sentences + extra
        if self.weighted:  # any number of sentences may have weights that add up to k
            each = self.user_sentences or ANY_NUMBER
        return ContributionBound(users=users, sentences_per_user=each, sentences=total, weighted=self.weighted)

    def record(self) -> dict[str, Any]:
        """Return the bounds as a JSON object, for config.json, result.json and the ledger."""
        return asdict(self)

    @classmethod
    def from_record(cls, values: Mapping[str, Any]) -> Guarantee:
        """Return the guarantee of a :meth:`record`; PrivacyError for a value out of range, TypeError for other keys."""
        return cls(**values)
