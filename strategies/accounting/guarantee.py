"""State whom the headline ε of a run protects: any user together with any entity, within public bounds.

A bound is public if it is set before the corpus is read, and it holds for *any* entity only if it is also enforced.
:class:`Guarantee` holds the bounds of a run, and what may be known of the corpus, which decides how they are enforced
and what ε hides (docs/privacy.md, sections 1 and 15):

- ``counts``: how many sentences each user has, and how many mention each entity. Who mentions whom, that a given
  sentence exists, and what it says are hidden. Sentences have weights, a formula of these counts.
- ``graph``: the mention graph, which says of every sentence whose it is and whom it mentions. What it says is hidden.
  Sentences are kept or left out by that graph.
- ``nothing``: everything of the protected sentences is hidden, and bounds are stated, not enforced.

>>> guarantee = Guarantee(known="counts", entity_bound=10, user_sentences=32)
>>> guarantee.covers_any_entity
True
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from fl_sim.strategies.accounting.adjacency import ANY_NUMBER, NO_ENTITY, Adjacency, ContributionBound
from fl_sim.strategies.primitives.limits import MOST_COUNTED, MOST_SENTENCES, require

Known = Literal["counts", "graph", "nothing"]
KNOWN: tuple[Known, ...] = ("nothing", "counts", "graph")
"""What may be known, each more than the one before it: a guarantee holds for whoever knows less."""

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

    def counted(self, *, missed: bool) -> ProtectedUnit:
        """Return the unit, its entity as if the tagger had ``missed`` it."""
        return replace(self, robust=self.robust or missed)

    @classmethod
    def from_record(cls, values: Mapping[str, Any]) -> ProtectedUnit:
        """Return the unit of its fields in JSON; raises as its parts do, and TypeError or KeyError for other fields."""
        fields = dict(values["adjacency"])
        entity_bound = ContributionBound(**fields.pop("entity_bound"))
        return cls(Adjacency(entity_bound=entity_bound, **fields), values["robust"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """Hold the public bounds on what the protected user and entity contribute.

    Attributes:
        known: what may be known of the protected sentences. Under ``counts`` one of the two corpora of the guarantee
            lacks them, and both are trained with the same declared counts, which are at least the true ones of the
            larger corpus. Under ``graph`` both have the same users, sentences and mentions, and the protected sentences
            are null in one of them. Under ``nothing`` one of them lacks these sentences.
        entity_bound: k, the most sentences that mention an entity, or if these have weights the most that the weights
            add up to; None for no bound.
        entity_users: F, the most users who mention an entity; None for no bound. Not with weights.
        public_weights: whether names have public weights, by which the sampling rate of their sentences is multiplied.
        user_sentences: m, the most sentences of a user, or the most that their weights add up to; enforced, so that it
            needs counts or a graph; None for no bound.
        missed_mentions: the most sentences with an entity that the tagger misses, as stated; None if nothing is.
        counts: SHA-256 of the declared counts; empty unless these are known.
        public_names: SHA-256 of the names that are declared not sensitive, which are no protected entity; empty for
            none.

    Raises:
        PrivacyError: a value is out of range.
    """

    known: Known = "nothing"
    entity_bound: int | None = None
    entity_users: int | None = None
    public_weights: bool = False
    user_sentences: int | None = None
    missed_mentions: int | None = None
    counts: str = ""
    public_names: str = ""

    def __post_init__(self) -> None:
        require(self.known in KNOWN, "known", self.known, ", ".join(KNOWN))
        enforced = self.known != "nothing" or self.user_sentences is None
        require(enforced, "user_sentences", self.user_sentences, "nothing, where nothing is known")
        for name, least in (("entity_bound", 1), ("entity_users", 1), ("user_sentences", 1), ("missed_mentions", 0)):
            value = getattr(self, name)
            most = MOST_COUNTED if name == "entity_users" else MOST_SENTENCES
            allowed = f"an integer from {least} to {most:,}, or nothing"
            require(value is None or least <= value <= most, name, value, allowed)

    @property
    def covers_any_entity(self) -> bool:
        """Return whether a bound on entities is enforced, so that ε holds for any entity."""
        return self.known != "nothing" and not (self.entity_bound is None and self.entity_users is None)

    @property
    def weighted(self) -> bool:
        """Return whether sentences may have weights between 0 and 1, by which their sampling rate is multiplied."""
        by_counts = self.known == "counts" and not (self.entity_bound is None and self.user_sentences is None)
        return by_counts or self.public_weights

    @property
    def user(self) -> Adjacency:
        """Return the adjacency of any user alone."""
        return self.with_user(math.inf if self.user_sentences is None else float(self.user_sentences))

    def with_user(self, sentences: float, bound: ContributionBound = NO_ENTITY) -> Adjacency:
        """Return the adjacency of a user of so many sentences, or so much weight, and an entity within a bound."""
        return Adjacency(sentences, bound, weighted=self.known == "counts" and self.user_sentences is not None)

    def with_entity(self, bound: ContributionBound) -> Adjacency:
        """Return the adjacency of any user together with an entity of a contribution bound."""
        return self.seen(self.with_user(self.user.user_sentences, bound))

    def seen(self, adjacency: Adjacency) -> Adjacency:
        """Return what a release under these bounds shows of a user with an entity, whatever the adjacency says of it.

        Whether sentences have weights is decided by the bounds of the release alone: elsewhere a bound on a sum of
        weights bounds no number of sentences.
        """
        bound = adjacency.entity_bound if self.weighted else adjacency.entity_bound.without_weights()
        own = self.with_user(adjacency.user_sentences, bound)
        beyond = adjacency.weighted and not own.weighted and adjacency.user_sentences > 0
        return replace(own, user_sentences=math.inf) if beyond else own

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
        total = sentences + extra
        each = ANY_NUMBER if self.weighted else total  # any number of sentences may have weights that add up to k
        return ContributionBound(users=users, sentences_per_user=each, sentences=total, weighted=self.weighted)

    def record(self) -> dict[str, object]:
        """Return the bounds as a JSON object, for config.json, result.json and the ledger."""
        values = asdict(self)
        if not self.public_names:  # no part of the noise's key where there is no list
            del values["public_names"]
        return values

    @classmethod
    def from_record(cls, values: Mapping[str, Any]) -> Guarantee:
        """Return the guarantee of a :meth:`record`; PrivacyError for a value out of range, TypeError for other keys."""
        return cls(**values)


def most_known(guarantees: Iterable[Guarantee]) -> Known:
    """Return what may be known under all guarantees together: a composition holds for whoever knows the most."""
    return max((guarantee.known for guarantee in guarantees), key=KNOWN.index, default="nothing")


def public_lists(guarantees: Iterable[Guarantee]) -> set[str]:
    """Return the digests of the lists of public names among guarantees.

    With one at most, their composition holds for every entity that is not on it. An entity on one of two lists is
    protected by the other guarantee alone, while the releases of its own have no limit for it.
    """
    return {guarantee.public_names for guarantee in guarantees} - {""}
