"""The bounds of a run on what users and entities contribute, enforced by weights on the corpus's sentences.

A bound is set in the configuration, before the corpus is read, and holds because sentences beyond it have weight 0 or
a lower sampling rate (:mod:`fl_sim.data_prep.store.contribution_limits`). With a public mention graph the selection is
public, too: it depends on the graph and on a public order alone. With a private one only the sentences of a user are
limited, in an order that no one else's sentences change the distribution of.

>>> import numpy as np
>>> from fl_sim.config import RunConfig
>>> offsets, entities = np.arange(0, 9, 4), np.zeros(8, dtype=np.int32)  # 2 users with 4 sentences on entity 0 each
>>> ownership = Ownership(offsets, np.arange(9), entities, num_entities=1)
>>> config = RunConfig.from_mapping({"privacy.entity_bound": 3})
>>> bounds = EnforcedBounds.of(config.privacy, ownership, seed=0)
>>> bounds.guarantee.entity_bound, float(bounds.weights.sum()), bounds.kept_share
(3, 3.0, 0.375)
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fl_sim.config import PrivacyConfig
from fl_sim.data_prep.public_names import mention_share
from fl_sim.data_prep.store.contribution_limits import (
    ContributionLimits,
    Weights,
    greedy_weights,
    proportional_weights,
)
from fl_sim.data_prep.store.ownership import EntityContributions, Ownership
from fl_sim.strategies.accounting.guarantee import Guarantee
from fl_sim.strategies.primitives import streams
from fl_sim.strategies.registry import load_strategy

_PUBLIC_ORDER = 0  # the seed of the order in which sentences are kept, where that order is public


def guarantee_of(privacy: PrivacyConfig, largest_user: int, *, weighted_names: bool = False) -> Guarantee:
    """Return the bounds that a configuration sets.

    Args:
        privacy: the section ``[privacy]``.
        largest_user: the sentences of the corpus's largest user, for ``user_sentences = "corpus"`` alone.
        weighted_names: whether entities have public weights.
    """
    public = privacy.mention_graph == "public"
    defaults = load_strategy(privacy.strategy).default_bounds if public else {}
    bounds: dict[str, int | None] = {}
    for name in ("entity_bound", "user_sentences"):
        value = getattr(privacy, name)
        bounds[name] = (
            defaults.get(name) if value is None else {"unbounded": None, "corpus": largest_user}.get(value, value)
        )
    rule = privacy.entity_bound_by or ("greedy" if public else "stated")
    return Guarantee(
        mention_graph=privacy.mention_graph,
        entity_users=privacy.entity_users,
        bound_by=rule,
        weighted=rule == "weights" or weighted_names,
        missed_mentions=privacy.missed_mentions,
        **bounds,
    )


@dataclass(frozen=True, eq=False)
class DeclaredNames:
    """What the owner declares about the names in a corpus, from public text alone.

    Attributes:
        public: the ids of entities that are not sensitive: they need no protection and cost none.
        weights: the public weight of every entity, float64 (E,); None for weights of 1.
    """

    public: tuple[int, ...] = ()
    weights: Weights | None = None


@dataclass(frozen=True, eq=False)
class EnforcedBounds:
    """The guarantee of a run, and the weights by which its corpus keeps it.

    Attributes:
        guarantee: the public bounds.
        ownership: users, sentences and entities of the split; without entities that are declared public.
        weights: w, the factor on every sentence's sampling rate, float64 (S,); all 1 without bounds.
        names: the entities that are declared public, and public weights.
        order_seed: the seed of the order in which sentences are kept.
        share_of_public_names: the share of the split's mentions that are of entities declared public.
    """

    guarantee: Guarantee
    ownership: Ownership
    weights: Weights
    names: DeclaredNames
    share_of_public_names: float
    order_seed: int = _PUBLIC_ORDER

    @classmethod
    def of(
        cls,
        privacy: PrivacyConfig,
        ownership: Ownership,
        seed: int,
        names: DeclaredNames = DeclaredNames(),
        order_seed: int | None = None,
    ) -> EnforcedBounds:
        """Enforce the bounds of a configuration on a split.

        Args:
            privacy: the section ``[privacy]``.
            ownership: users, sentences and entities of the split.
            seed: the run's seed, from which the order of a user's sentences follows where it must not be public.
            names: the entities that are declared public, and public weights.
            order_seed: the secret seed of that order that a run with secure noise drew when it began; None draws one.
        """
        largest = int(ownership.sentences_per_user.max(initial=0))
        guarantee = guarantee_of(privacy, largest, weighted_names=names.weights is not None)
        protected = ownership.without_entities(names.public)
        if guarantee.mention_graph == "public":
            order_seed = _PUBLIC_ORDER
        elif not privacy.secure_noise:
            order_seed = seed
        elif order_seed is None:
            order_seed = secrets.randbits(64)
        weights = _weights(guarantee, protected, order_seed)
        if names.weights is not None:
            owners = np.repeat(np.arange(protected.num_sentences), protected.entities_per_sentence)
            np.minimum.at(weights, owners, names.weights[protected.entity_ids])
        share = mention_share(ownership, np.array(names.public, dtype=np.int64))
        return cls(guarantee, protected, weights, names, share, order_seed)

    @property
    def enforces(self) -> bool:
        """Return whether any sentence has a weight below 1."""
        return bool((self.weights < 1).any())

    @property
    def kept_share(self) -> float:
        """Return the sum of the weights divided by the number of sentences."""
        return float(self.weights.mean()) if len(self.weights) else 1.0

    @property
    def kept(self) -> Ownership:
        """Return the incidence in which only the sentences with a weight above 0 mention entities."""
        return self.ownership.restricted_to(self.weights > 0) if self.enforces else self.ownership

    def contributions(self) -> EntityContributions:
        """Return what every entity contributes under the bounds: sums of weights, rounded up, if there are weights."""
        contributions = self.kept.entity_contributions()
        if not self.guarantee.weighted:
            return contributions
        owners = np.repeat(np.arange(self.ownership.num_sentences), self.ownership.entities_per_sentence)
        sums = np.bincount(self.ownership.entity_ids, self.weights[owners], minlength=self.ownership.num_entities)
        most = self.guarantee.entity_bound if self.guarantee.covers_any_entity else None
        sums = np.ceil(sums if most is None else np.minimum(sums, most)).astype(np.int64)
        return EntityContributions(contributions.users, sums, contributions.max_per_user)

    def record(self, labels: npt.NDArray[np.object_] | None = None) -> dict[str, Any]:
        """Return what the bounds kept, for the result of the run; it is read off the corpus, for its owner.

        Args:
            labels: the kinds of every entity, lists of text (E,); None leaves out the shares by kind.
        """
        mentions = self.weights[np.repeat(np.arange(len(self.weights)), self.ownership.entities_per_sentence)]
        kept: dict[str, Any] = {
            "sentences": float((self.weights > 0).mean()) if len(self.weights) else 1.0,
            "weight": self.kept_share,
            "mentions": float((mentions > 0).mean()) if len(mentions) else 1.0,
        }
        if labels is not None:
            kept["mentions_by_kind"] = _by_kind(labels, self.ownership.entity_ids, mentions > 0)
        most = int(self.ownership.entity_contributions().sentences.max(initial=0))
        return {
            "guarantee": self.guarantee.record(),
            "kept": kept,
            "most_mentions": most,
            "public_entities": len(self.names.public),
            "mentions_of_public_names": self.share_of_public_names,
        }


def _weights(guarantee: Guarantee, ownership: Ownership, order_seed: int) -> Weights:
    """Return the weights that enforce a guarantee, float64 (S,)."""
    enforced = guarantee.covers_any_entity
    limits = ContributionLimits(
        sentences_per_entity=guarantee.entity_bound if enforced else None,
        users_per_entity=guarantee.entity_users if enforced else None,
        sentences_per_user=guarantee.user_sentences,
    )
    if limits == ContributionLimits():
        return np.ones(ownership.num_sentences)
    words = streams.uniforms(streams.derived_seed(order_seed, "limits"), "sentence", 0, ownership.num_sentences)
    order = np.argsort(words, kind="stable").astype(np.int64)
    rule = proportional_weights if guarantee.bound_by == "weights" else greedy_weights
    return rule(ownership, limits, order)


def _by_kind(
    labels: npt.NDArray[np.object_], entity_ids: npt.NDArray[np.int32], kept: npt.NDArray[np.bool_]
) -> dict[str, float]:
    """Return the share of mentions kept, by kind of entity; an entity of several kinds counts in each."""
    total = np.bincount(entity_ids, minlength=len(labels))
    left = np.bincount(entity_ids[kept], minlength=len(labels))
    sums: dict[str, list[int]] = {}
    for kinds, before, after in zip(labels, total.tolist(), left.tolist(), strict=True):
        for kind in kinds:
            counts = sums.setdefault(kind, [0, 0])
            counts[0] += before
            counts[1] += after
    return {kind: after / before for kind, (before, after) in sorted(sums.items()) if before}
