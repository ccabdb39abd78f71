"""Whom a run protects and by how much: bounds on users and entities, weights that enforce them, ε of every round.

A bound is set in the configuration, before the corpus is read, and holds because sentences beyond it have a lower
sampling rate, or rate 0 (:mod:`fl_sim.data_prep.store.contribution_limits`). Where counts are known, rates are a
formula of these; where the mention graph is known, they depend on that graph and a public order; where nothing is,
bounds are stated and not enforced. Only the headline and the figures of users rest on public bounds; those by
percentile of contribution are read off the corpus, for its owner.

>>> from fl_sim.config import RunConfig
>>> from fl_sim.strategies.uedp import UserEntityDP
>>> rates = {"q_u": 1.0, "q_e": 0.5, "q_s": 0.1}
>>> mechanism = UserEntityDP(population=2, **rates, clip_norm=1.0, user_cap=2.0, noise_multiplier=4.0)
>>> plan = PrivacyPlan(mechanism=mechanism, rounds=2, delta=1e-5)
>>> ownership = Ownership(np.arange(0, 9, 4), np.arange(9), np.zeros(8, dtype=np.int32), num_entities=1)
>>> bounds = EnforcedBounds.of(RunConfig().privacy, ownership)
>>> epsilon = EpsilonCurves.of(plan, bounds.units(mechanism)).after(2)
>>> 0 < epsilon["epsilon_user"] < epsilon["epsilon_any"]
True
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import numpy.typing as npt

from fl_sim.data_prep.public_names import mention_share
from fl_sim.data_prep.store.contribution_limits import (
    ContributionLimits,
    DeclaredCounts,
    Weights,
    count_weights,
    greedy_weights,
)
from fl_sim.data_prep.store.ownership import EntityContributions, Ownership
from fl_sim.experiments.plan.lineage import Earlier
from fl_sim.strategies.accounting.adjacency import NO_ENTITY, Adjacency, ContributionBound
from fl_sim.strategies.accounting.guarantee import Guarantee, ProtectedUnit
from fl_sim.strategies.accounting.losses.composition import SHORT_CURVE
from fl_sim.strategies.accounting.paper_model import AS_PUBLISHED
from fl_sim.strategies.mechanism import Mechanism, PrivacyPlan
from fl_sim.strategies.primitives import streams
from fl_sim.strategies.privacy_config import PrivacyConfig

CONTRIBUTION_QUANTILES = {"median": 0.5, "p95": 0.95, "max": 1.0}
"""The shares of entities whose contributions a report shows an ε for."""

Units = Mapping[str, ProtectedUnit]
"""The protected units of a metric, each by a name of its own; the largest ε of them counts."""

_ORDER = 0  # the seed of the public order in which sentences are kept where the mention graph is known


def guarantee_of(
    privacy: PrivacyConfig,
    largest_user: int,
    *,
    public_weights: bool = False,
    counts: str = "",
    public_names: str = "",
) -> Guarantee:
    """Return the bounds that a configuration sets.

    Args:
        privacy: the section ``[privacy]``.
        largest_user: the sentences of the corpus's largest user, for ``user_sentences = "corpus"`` alone.
        public_weights: whether entities have public weights.
        counts: the digest of the declared counts.
        public_names: the digest of the names that are declared public.
    """
    defaults = {} if privacy.known == "nothing" else privacy.default_bounds
    bounds: dict[str, int | None] = {}
    for name in ("entity_bound", "user_sentences"):
        value = getattr(privacy, name)
        bounds[name] = (
            defaults.get(name) if value is None else {"unbounded": None, "corpus": largest_user}.get(value, value)
        )
    return Guarantee(
        known=privacy.known,
        entity_users=privacy.entity_users,
        public_weights=public_weights,
        missed_mentions=privacy.missed_mentions,
        counts=counts if privacy.known == "counts" else "",
        public_names=public_names,
        **bounds,
    )


@dataclass(frozen=True, eq=False)
class Declared:
    """What the owner declares about a corpus: names from public text alone, and counts.

    Attributes:
        public: the ids of entities that are not sensitive: they need no protection and cost none.
        public_names: the digest of the list of their names; empty for none.
        weights: the public weight of every entity, float64 (E,); None for weights of 1.
        counts: the counts of users and entities; None for those of the corpus.
        counts_alone: whether counts are all that is here of entities, because nodes hold the sentences that mention
            them. Weights, and what entities contribute, are then at most what is computed from counts.
    """

    public: tuple[int, ...] = ()
    public_names: str = ""
    weights: Weights | None = None
    counts: DeclaredCounts | None = None
    counts_alone: bool = False


def counts_of(privacy: PrivacyConfig, protected: Ownership, declared: Declared) -> DeclaredCounts:
    """Return the counts that a run declares: those of its file, else of the corpus; rounded up if it rounds them."""
    counts = declared.counts or DeclaredCounts.of(protected)
    return counts.rounded_up() if privacy.round_counts else counts


@dataclass(frozen=True, eq=False)
class EnforcedBounds:
    """The guarantee of a run, and the weights by which its corpus keeps it.

    Where the tagger found no entity, nothing bounds those that it missed, and the guarantee covers none.

    Attributes:
        configured: the guarantee of the configuration, of whatever corpus.
        ownership: users, sentences and entities of the split; without entities that are declared public.
        weights: w, the factor on every sentence's sampling rate, float64 (S,); all 1 without bounds.
        declared: the entities that are declared public, public weights and declared counts.
        counts: that weights are computed from where counts are known: as declared, or rounded up.
        share_of_public_names: the share of the split's mentions that are of entities declared public.
        settings_from_corpus: whether a target may rest on what the corpus's entities contribute, which no ε covers.
    """

    configured: Guarantee
    ownership: Ownership
    weights: Weights
    declared: Declared
    counts: DeclaredCounts
    share_of_public_names: float
    settings_from_corpus: bool

    @classmethod
    def of(cls, privacy: PrivacyConfig, ownership: Ownership, declared: Declared = Declared()) -> EnforcedBounds:
        """Enforce the bounds of a configuration on a split of which the owner declares something.

        Raises:
            CorpusError: the corpus exceeds its declared counts.
        """
        protected = ownership.without_entities(declared.public)
        counts = counts_of(privacy, protected, declared)
        if declared.counts_alone:
            protected = replace(protected, num_entities=len(counts.entities), stored_profiles=None, check=False)
        largest = int(ownership.sentences_per_user.max(initial=0))
        weighted = declared.weights is not None
        configured = guarantee_of(
            privacy,
            largest,
            public_weights=weighted,
            counts=counts.digest,
            public_names=declared.public_names,
        )
        weights = _weights(configured, protected, counts)
        if declared.weights is not None:
            owners = np.repeat(np.arange(protected.num_sentences), protected.entities_per_sentence)
            np.minimum.at(weights, owners, declared.weights[protected.entity_ids])
        share = mention_share(ownership, declared.public)
        return cls(configured, protected, weights, declared, counts, share, privacy.settings_from_corpus)

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        """Return the guarantee of the run."""
        return self.configured if self.has_entities else replace(self.configured, entity_bound=None, entity_users=None)

    @property
    def has_entities(self) -> bool:
        """Return whether the tagger found any entity that is not declared public."""
        return bool(np.delete(self.counts.entities, list(self.declared.public)).any())

    @property
    def enforces(self) -> bool:
        """Return whether any sentence has a weight below 1."""
        return bool((self.weights < 1).any())

    @property
    def kept(self) -> Ownership:
        """Return the incidence in which only the sentences with a weight above 0 mention entities."""
        return self.ownership.restricted_to(self.weights > 0) if self.enforces else self.ownership

    def contribution_of(self, user: int) -> float:
        """Return a user's sentences that take part, or where counts bound it the sum of their weights, rounded up."""
        ids, _ = self.ownership.sentences_of(np.array([user]))
        weights, anybody = self.weights[ids], self.guarantee.user
        if anybody.weighted:
            return min(math.ceil(weights.sum()), anybody.user_sentences)
        return float(np.count_nonzero(weights))

    def contributions(self) -> EntityContributions:
        """Return what every entity contributes under the bounds: sums of weights, rounded up, if there are weights.

        From counts alone it is the most that an entity can contribute.
        """
        most = self.guarantee.entity_bound if self.guarantee.covers_any_entity else None
        if self.declared.counts_alone:
            return _most_contributions(self.counts, most)
        contributions = self.kept.entity_contributions()
        if not self.guarantee.weighted:
            return contributions
        owners = np.repeat(np.arange(self.ownership.num_sentences), self.ownership.entities_per_sentence)
        sums = np.bincount(self.ownership.entity_ids, self.weights[owners], minlength=self.ownership.num_entities)
        sums = np.ceil(sums if most is None else np.minimum(sums, most)).astype(np.int64)
        return EntityContributions(contributions.users, sums, contributions.max_per_user)

    @functools.cached_property
    def _of_protected(self) -> EntityContributions:
        """The contributions of the entities that are not declared public."""
        every, public = self.contributions(), list(self.declared.public)
        columns = (every.users, every.sentences, every.max_per_user)
        return EntityContributions(*(np.delete(column, public) for column in columns)) if public else every

    @functools.cached_property
    def entity_bounds(self) -> Mapping[str, ContributionBound]:
        """Return what the corpus's entities contribute under the bounds at each of :data:`CONTRIBUTION_QUANTILES`.

        It is read off the corpus, and so for its owner alone.
        """
        contributions, weighted = self._of_protected, self.guarantee.weighted
        if not self.has_entities:
            return dict.fromkeys(CONTRIBUTION_QUANTILES, NO_ENTITY)
        return {
            name: ContributionBound(*contributions.quantile(quantile), weighted=weighted)
            for name, quantile in CONTRIBUTION_QUANTILES.items()
        }

    @functools.cached_property
    def coverage(self) -> Mapping[str, float]:
        """Return the share of the protected entities within each of :attr:`entity_bounds`; 1 without entities."""
        entities = self._of_protected
        if not self.has_entities:
            return dict.fromkeys(CONTRIBUTION_QUANTILES, 1.0)
        shares = {}
        for name, quantile in CONTRIBUTION_QUANTILES.items():
            users, per_user, sentences = entities.quantile(quantile)
            within = (entities.users <= users) & (entities.max_per_user <= per_user) & (entities.sentences <= sentences)
            shares[name] = float(np.mean(within))
        return shares

    def target(self, unit: str, *, clips_sentences: bool, population: int) -> tuple[str, Units]:
        """Return the metric that a target or budget limits, and its units as :func:`target_of`.

        Without a public bound they are those of the corpus's 95th percentile if :attr:`settings_from_corpus` allows it.
        """
        metric, units = target_of(self.guarantee, unit, clips_sentences=clips_sentences, population=population)
        if not units:
            metric = "epsilon_user_entity_p95"
            if self.settings_from_corpus:
                adjacency = self.guarantee.with_entity(self.entity_bounds["p95"])
                units = named_units(metric, (ProtectedUnit(adjacency, robust=False),))
        return metric, units

    def units(self, mechanism: Mechanism) -> dict[str, Units]:
        """Return the units of every metric of a run with a mechanism; the headline first."""
        return units_of(self.guarantee, self.entity_bounds if self.has_entities else {}, mechanism)

    def record(self, labels: npt.NDArray[np.object_] | None = None) -> dict[str, object]:
        """Return what the bounds kept and what entities contribute, for the result; read off the corpus, for its owner.

        Args:
            labels: the kinds of every entity, lists of text (E,); None leaves out the shares by kind.
        """
        alone = self.declared.counts_alone
        mentioned = self.counts.entities if alone else self.ownership.entity_contributions().sentences
        return {
            "user_sentences": self.guarantee.user.user_sentences,
            "reach": {name: asdict(entity_bound) for name, entity_bound in self.entity_bounds.items()},
            "reach_coverage": dict(self.coverage),
            "guarantee": self.guarantee.record(),
            "kept": None if alone else self._kept(labels),
            "most_mentions": int(mentioned.max(initial=0)),
            **self.of_public_names(),
        }

    def of_public_names(self) -> dict[str, object]:
        """Return how many entities are declared public, and their share of the mentions: no ε covers them."""
        return {
            "public_entities": len(self.declared.public),
            "mentions_of_public_names": self.share_of_public_names,
        }

    def _kept(self, labels: npt.NDArray[np.object_] | None) -> dict[str, object]:
        """Return the shares of sentences, weights and mentions that the bounds kept."""
        mentions = self.weights[np.repeat(np.arange(len(self.weights)), self.ownership.entities_per_sentence)]
        kept: dict[str, object] = {
            "sentences": float(self.weights.mean()) if len(self.weights) else 1.0,
            "mentions": float(mentions.mean()) if len(mentions) else 1.0,
        }
        if labels is not None:
            kept["mentions_by_kind"] = _by_kind(labels, self.ownership.entity_ids, mentions)
        return kept


def _weights(guarantee: Guarantee, ownership: Ownership, counts: DeclaredCounts) -> Weights:
    """Return the weights that enforce a guarantee, float64 (S,)."""
    limits = ContributionLimits(guarantee.entity_bound, guarantee.entity_users, guarantee.user_sentences)
    if guarantee.known == "nothing" or limits == ContributionLimits():
        return np.ones(ownership.num_sentences)
    if guarantee.known == "counts":
        return count_weights(ownership, limits, counts)
    words = streams.uniforms(streams.derived_seed(_ORDER, "limits"), "sentence", 0, ownership.num_sentences)
    return greedy_weights(ownership, limits, np.argsort(words, kind="stable").astype(np.int64))


def _most_contributions(counts: DeclaredCounts, most: int | None) -> EntityContributions:
    """Return the most that entities can contribute by their counts alone: n_e sentences, of anybody, and at most k."""
    sentences = counts.entities
    users, each = (np.minimum(sentences, limit) for limit in (len(counts.users), counts.users.max(initial=0)))
    return EntityContributions(users, sentences if most is None else np.minimum(sentences, most), each)


def _by_kind(labels: npt.NDArray[np.object_], entity_ids: npt.NDArray[np.int32], weights: Weights) -> dict[str, float]:
    """Return the share of mentions kept, by kind of entity and by weight; an entity of several kinds counts in each."""
    total = np.bincount(entity_ids, minlength=len(labels))
    left = np.bincount(entity_ids, weights, minlength=len(labels))
    sums: dict[str, list[float]] = {}
    for kinds, before, after in zip(labels, total.tolist(), left.tolist(), strict=True):
        for kind in kinds:
            counts = sums.setdefault(kind, [0.0, 0.0])
            counts[0] += before
            counts[1] += after
    return {kind: after / before for kind, (before, after) in sorted(sums.items()) if before}


# ε is computed for at most this many numbers of rounds; between two of them the later, larger ε holds.
_MOST_COUNTS = 2000

NOTHING_EARLIER = Earlier()
"""The lineage of a public initial model."""


def target_of(guarantee: Guarantee, unit: str, *, clips_sentences: bool, population: int) -> tuple[str, Units]:
    """Return the metric that a target or budget of a unit limits, and its units; none if no bound supports it."""
    if unit == "user":
        return "epsilon_user", named_units("epsilon_user", (ProtectedUnit(guarantee.user, robust=False),))
    metric = "epsilon_any" if guarantee.covers_any_entity else "epsilon_stated"
    return metric, named_units(metric, guarantee.units(clips_sentences=clips_sentences, population=population))


def units_of(
    guarantee: Guarantee, entity_bounds: Mapping[str, ContributionBound], mechanism: Mechanism
) -> dict[str, Units]:
    """Return the units of every metric of a run; the headline first, and only if a bound supports it."""
    kind = "any" if guarantee.covers_any_entity else "stated"
    units: dict[str, tuple[ProtectedUnit, ...]] = {}
    event = mechanism.event()
    if event is not None:
        clips, population = event.clips_sentences, mechanism.population
        units[f"epsilon_{kind}"] = guarantee.units(clips_sentences=clips, population=population)
        robust = guarantee.units(clips_sentences=clips, population=population, missed=True)
        units[f"epsilon_{kind}_robust"] = robust
    units["epsilon_user"] = (ProtectedUnit(guarantee.user, robust=False),)
    units["epsilon_user_unbounded"] = (ProtectedUnit(Adjacency(), robust=False),)
    for name, entity_bound in entity_bounds.items():
        adjacency = guarantee.with_entity(entity_bound)
        units[f"epsilon_user_entity_{name}"] = (ProtectedUnit(adjacency, robust=False),)
        units[f"epsilon_user_entity_robust_{name}"] = (ProtectedUnit(adjacency, robust=True),)
    return {metric: named_units(metric, several) for metric, several in units.items() if several}


def named_units(metric: str, units: Sequence[ProtectedUnit]) -> Units:
    """Return the units of a metric, each under a name of its own, by which an earlier run's units are found."""
    if len(units) == 1:
        return {metric: units[0]}
    return {f"{metric}, unit {number}": unit for number, unit in enumerate(units)}


@dataclass(frozen=True, slots=True)
class EpsilonCurves:
    """ε after 0, 1, …, T rounds, float64 (T+1,), under the names of the metrics.

    Every curve is proven except the mechanism's claims (:meth:`~fl_sim.strategies.mechanism.Mechanism.claims`).
    """

    curves: Mapping[str, npt.NDArray[np.float64]]

    @classmethod
    def of(
        cls, plan: PrivacyPlan, units_of_metrics: Mapping[str, Units], earlier: Earlier = NOTHING_EARLIER
    ) -> EpsilonCurves:
        """Return all curves of a plan whose initial model rests on ``earlier`` releases: the headline first."""
        event = plan.mechanism.event()
        relies_on_detection = bool(earlier.composed) or (event is not None and event.q_e < 1)
        unknown = np.concatenate(([math.inf if earlier.composed else 0.0], np.full(plan.rounds, math.inf)))
        curves: dict[str, npt.NDArray[np.float64]] = {"epsilon_any": unknown}
        for metric, units in units_of_metrics.items():
            detected = curves.get(metric.replace("_robust", ""))
            if "_entity_robust_" in metric and detected is not None and not relies_on_detection:
                curves[metric] = detected
                continue
            curves[metric] = np.max([_curve(plan, earlier, name, unit) for name, unit in units.items()], axis=0)
        # A claim is of one training, nobody claims anything of several; under another name it would seem proven.
        claims = {} if earlier.composed else plan.mechanism.claims(plan.rounds, plan.delta)
        return cls(curves | {name: curve for name, curve in claims.items() if name == AS_PUBLISHED})

    def after(self, rounds: int) -> dict[str, float]:
        """Return every ε after ``rounds`` rounds, by name."""
        return {name: float(curve[rounds]) for name, curve in self.curves.items()}

    def rounds_within(self, budget: float, name: str) -> int:
        """Return the number of rounds in which the ε ``name`` stays within ``budget``."""
        return int(np.count_nonzero(self.curves[name][1:] <= budget))


def _curve(plan: PrivacyPlan, earlier: Earlier, metric: str, unit: ProtectedUnit) -> npt.NDArray[np.float64]:
    """Return ε after 0, 1, …, T rounds, float64 (T+1,): the smallest proven value at each."""
    last = plan.rounds
    counts = earlier.counts(last, _MOST_COUNTS)
    epsilons = earlier.epsilon_curve(plan, metric, unit, counts.tolist())
    if len(counts) > SHORT_CURVE:  # alone, the last has a finer grid, that of targets and of the ledger's ε
        epsilons[-1] = earlier.epsilon_curve(plan, metric, unit, [last])[0]
    # Fewer rounds are a part of what more rounds release, so a later bound also holds earlier.
    monotone = np.minimum.accumulate(epsilons[::-1])[::-1]
    before = min(earlier.epsilon_before(metric, plan.delta), monotone[0])
    return np.concatenate(([before], monotone[np.searchsorted(counts, np.arange(1, last + 1))]))
