"""Try bounds on users and entities: the pairs (k, m) of a search, and what each keeps of a corpus.

>>> import numpy as np
>>> from fl_sim.config import RunConfig
>>> few = Ownership(np.array([0, 3]), np.arange(4), np.zeros(3, np.int32), num_entities=1)  # a user, a name: 3 mentions
>>> [(one.entity_bound, one.user_sentences) for one in bounds_to_try(RunConfig().privacy, few)]
[(1, 2), (1, 3), (2, 4), (3, 6)]
>>> [one.user_sentences for one in bounds_to_try(RunConfig.from_mapping({"privacy.entity_bound": 3}).privacy, few)]
[6]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fl_sim.config import ConfigError
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.plan.guarantees import Declared, EnforcedBounds, counts_of
from fl_sim.formats import round_down
from fl_sim.search.crowd import CountedCrowd, Crowd, KnownCrowd
from fl_sim.strategies.accounting.guarantee import Guarantee, ProtectedUnit
from fl_sim.strategies.privacy_config import PrivacyConfig
from fl_sim.strategies.registry import target_unit

ENTITY_BOUNDS = (1, 2, 3, 5, 8, 10, 16, 20, 32)
"""Values of k that are tried."""

USER_SENTENCES = (2, 3, 4)
"""Values of m that are tried, as multiples of k."""

_NOTHING = Declared()


def bounds_to_try(privacy: PrivacyConfig, ownership: Ownership, declared: Declared = _NOTHING) -> list[PrivacyConfig]:
    """Return the section ``[privacy]`` with all pairs (k, m) of a search; what is given, or not enforced, stays.

    Bounds that leave every sentence its weight of 1 are tried once. Only the largest counts are read, as a run declares
    them: where it rounds them, more bounds lower some weight, and the exact counts decide nothing.
    """
    if privacy.known == "nothing" or not privacy.default_bounds:
        return [privacy]
    users, entities = counts_of(privacy, ownership.without_entities(declared.public), declared).declared
    mentions, sentences = int(entities.max(initial=1)), int(users.max(initial=1))
    pairs: list[dict[str, object]] = []
    given = privacy.entity_bound, privacy.user_sentences
    for k in _up_to(mentions, ENTITY_BOUNDS) if given[0] is None else (given[0],):
        searched = given[1] is None and isinstance(k, int)
        multiples = [factor * k for factor in USER_SENTENCES] if isinstance(k, int) else []
        for m in _up_to(sentences, multiples) if searched else (given[1],):
            pairs.append({"entity_bound": k, "user_sentences": m})
    return [privacy.model_copy(update=pair) for pair in pairs]


def _up_to(most: int, bounds: Sequence[int]) -> list[int]:
    """Return the bounds below ``most``, and the first that is not."""
    return [bound for index, bound in enumerate(bounds) if index == 0 or bounds[index - 1] < most]


@dataclass(frozen=True)
class Candidate:
    """Bounds that a search tries, as a section ``[privacy]`` and as k and m, and the users under them.

    ``units`` are those of the target; none if no bound supports it.
    """

    privacy: PrivacyConfig
    guarantee: Guarantee
    crowd: Crowd
    units: tuple[ProtectedUnit, ...]


@dataclass(frozen=True)
class Users:
    """The users for whom settings are chosen, as far as it is known of them what they write.

    Attributes:
        ownership: of their corpus; of a public text where nothing is known.
        population: N.
        by_counts: whether to read nothing but the counts that a run declares: those of its file, or rounded ones.
        scale: how many of them a user of ``ownership`` stands for.
    """

    ownership: Ownership
    population: int
    by_counts: bool = False
    declared: Declared = _NOTHING
    scale: float = 1.0

    def bounds_to_try(self, privacy: PrivacyConfig) -> list[PrivacyConfig]:
        """Return the section ``[privacy]`` with all bounds of a search (:func:`bounds_to_try`)."""
        return bounds_to_try(privacy, self.ownership, self.declared)

    def candidate(self, privacy: PrivacyConfig) -> Candidate:
        """Return the bounds of a section ``[privacy]``, and the users under them.

        Raises:
            CorpusError: the corpus exceeds its declared counts.
        """
        bounds = EnforcedBounds.of(privacy, self.ownership, self.declared)
        _, units = bounds.target(target_unit(privacy), clips_sentences=True, population=self.population)
        crowd: Crowd = KnownCrowd(bounds.ownership, bounds.weights)
        if self.by_counts:
            crowd = CountedCrowd(bounds.counts, bounds.guarantee)
        return Candidate(privacy, bounds.guarantee, crowd, tuple(units.values()))


def keeping(candidates: Iterable[Candidate], share: float | None) -> Iterator[Candidate]:
    """Yield the candidates that keep a share of mentions, in weight; all for None.

    Raises:
        ConfigError: the share is impossible, or at the end: no candidate keeps it.
    """
    if share is not None and not 0 < share <= 1:
        raise ConfigError(f"keep_mentions is {share:g}; allowed: above 0, at most 1")
    best: Candidate | None = None
    for candidate in candidates:
        if share is None or candidate.crowd.kept_mentions >= share:
            yield candidate
        if best is None or candidate.crowd.kept_mentions > best.crowd.kept_mentions:
            best = candidate
    if share is not None and best is not None and best.crowd.kept_mentions < share:
        k, m = best.guarantee.entity_bound, best.guarantee.user_sentences
        raise ConfigError(
            f"keep_mentions is {share:g}; allowed: at most {round_down(best.crowd.kept_mentions, 3)}, the share of "
            f"mentions that entity_bound {k} and user_sentences {m} keep"
        )
