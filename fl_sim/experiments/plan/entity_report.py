"""ε of every single entity of a corpus, together with a user, computed from the entity's own profile.

A contribution bound gives one guarantee for all entities up to some size. This report has ε of each entity, and the
distribution of ε over them. It is computed from the private corpus without noise, so it is for the simulation's owner.

>>> epsilons = np.array([1.0, 3.0])
>>> entities = EntityEpsilons([np.array([1]), np.array([2, 1])], np.array([0, 0, 1]), epsilons, epsilons, user=0.5)
>>> spread = summarise(entities)["epsilon_user_entity"]
>>> spread["median"], spread["max"], spread["share_within"]["2"]
(1.0, 3.0, 0.6666666666666666)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fl_sim.config import ConfigError
from fl_sim.data_prep.store.ownership import EntityProfiles, Ownership
from fl_sim.experiments.plan.guarantees import EnforcedBounds
from fl_sim.strategies.accounting import accountant as accounting
from fl_sim.strategies.accounting import entity_profiles as profiles
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound
from fl_sim.strategies.accounting.entity_profiles import ProfileAccountant
from fl_sim.strategies.accounting.guarantee import Guarantee

QUANTILES = {"median": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}
THRESHOLDS = (1.0, 2.0, 5.0, 10.0, 20.0)
WORST = 10

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Training:
    """A training of equal rounds with ε at ``delta``, and the user that is protected together with each entity."""

    event: RoundEvent
    rounds: int
    delta: float
    user: Adjacency

    def epsilon_of(self, adjacency: Adjacency) -> float:
        """Return ε of an adjacency."""
        return accounting.epsilon(self.event, adjacency, self.rounds, self.delta)


@dataclass(frozen=True, eq=False, slots=True)
class EntityEpsilons:
    """ε of P distinct profiles and of the E entities that have them.

    Attributes:
        profiles: the distinct profiles: sentences of each user that mention the entity, largest first.
        profile_of: int64 (E,), the index of each entity's profile; -1 for one that is declared public.
        detected: ε per profile, float64 (P,), for an entity whose every mention the tagger detects.
        robust: ε per profile, float64 (P,), even if the tagger missed the entity in any of these sentences.
        user: ε of the user alone.
    """

    profiles: Sequence[profiles.Profile]
    profile_of: Ints
    detected: Floats
    robust: Floats
    user: float

    def without(self, entities: Sequence[int]) -> EntityEpsilons:
        """Return the same without some entities, and without the profiles that they alone have."""
        profile_of = self.profile_of.copy()
        profile_of[list(entities)] = -1
        used, index = np.unique(profile_of[profile_of >= 0], return_inverse=True)
        profile_of[profile_of >= 0] = index
        kept = [self.profiles[profile] for profile in used]
        return EntityEpsilons(kept, profile_of, self.detected[used], self.robust[used], self.user)


Observe = Callable[[int, int], None]
"""Is called with the number of ε that were computed, and about that of all."""


def entity_epsilons(
    ownership: Ownership, training: Training, observe: Observe = lambda done, total: None
) -> EntityEpsilons:
    """Return ε of every entity of a corpus, together with the user of the training (n').

    Raises:
        PrivacyError: the mechanism is not allowed.
    """
    event = training.event
    distinct, profile_of = _distinct(ownership.entity_profiles())
    one = _counted(observe, len(distinct) * (1 if event.q_e == 1 else 2))
    accountant = ProfileAccountant(event, training.user.user_sentences, training.rounds, training.delta, one)
    detected = _of_distinct(accountant, distinct)
    robust = detected if event.q_e == 1 else _of_distinct(accountant.robust(), distinct)
    user = training.epsilon_of(training.user)
    return EntityEpsilons(distinct, profile_of, detected, robust, user)


def bounded_entity_epsilons(
    bounds: EnforcedBounds, training: Training, population: int, observe: Observe = lambda done, total: None
) -> EntityEpsilons:
    """Return ε of every entity of a corpus under the bounds of a run with N users, at most that of any entity.

    Where sentences have weights, ε is that of the entity's contribution bound: its users, its largest user and the sum
    of the weights of its sentences. Elsewhere it is that of :func:`entity_epsilons`. Entities that are declared public,
    which no ε covers, are left out.

    Raises:
        ConfigError: the corpus has no entity that is not declared public.
        PrivacyError: the mechanism is not allowed.
    """
    guarantee = bounds.guarantee
    if not bounds.has_entities:
        raise ConfigError("the split has no entity that is not public; allowed: a corpus prepared with a tagger")
    if guarantee.weighted:
        entities = _within_contributions(bounds, training, observe)
    else:
        entities = entity_epsilons(bounds.kept, training, observe)
    most = epsilon_of_any(guarantee, training, population)
    # That bounds the same ε, perhaps on a finer grid.
    bounded = replace(entities, detected=np.minimum(entities.detected, most))
    return bounded.without(bounds.declared.public) if bounds.declared.public else bounded


def _counted(observe: Observe, total: int) -> Callable[[], None]:
    """Return what counts the ε that were computed, for ``observe``."""
    numbers = itertools.count(1)

    def one() -> None:
        done = next(numbers)
        observe(done, max(done, total))

    return one


def _within_contributions(bounds: EnforcedBounds, training: Training, observe: Observe) -> EntityEpsilons:
    """Return ε of every entity from its contribution bound."""
    guarantee = bounds.guarantee
    contributions = bounds.contributions()
    distinct, profile_of = _distinct(bounds.kept.entity_profiles())
    keys = np.stack([profile_of, contributions.users, contributions.max_per_user, contributions.sentences], axis=1)
    rows, index = np.unique(keys, axis=0, return_inverse=True)

    limits, limit_of = np.unique(rows[:, 1:], axis=0, return_inverse=True)
    event = training.event
    one = _counted(observe, len(limits) * (1 if event.q_e == 1 else 2))

    def epsilons(event: RoundEvent) -> Floats:
        figures = np.empty(len(limits))
        for number, limit in enumerate(limits.tolist()):
            figures[number] = _epsilon_within(event, training, guarantee, *limit)
            one()
        return figures[limit_of.ravel()]

    detected = epsilons(event)
    robust = detected if event.q_e == 1 else epsilons(event.robust())
    user = training.epsilon_of(training.user)
    return EntityEpsilons([distinct[row] for row in rows[:, 0]], index.ravel(), detected, robust, user)


def _epsilon_within(
    event: RoundEvent, training: Training, guarantee: Guarantee, users: int, each: int, sentences: int
) -> float:
    """Return ε of any user with an entity in ≤ ``users`` users, ≤ ``each`` sentences of one, ≤ ``sentences``."""
    bound = ContributionBound(users, each, sentences, weighted=guarantee.weighted)
    both = guarantee.seen(guarantee.with_user(training.user.user_sentences, bound))
    return accounting.epsilon(event, both, training.rounds, training.delta)


@dataclass(frozen=True, slots=True)
class PairEpsilons:
    """ε of one user, and of that user together with one entity, by what both contribute within the bounds.

    Attributes:
        user_sentences: the user's sentences that take part, or the sum of their weights, rounded up.
        profile: for each user the sentences that take part and mention the entity, int64 (users,), largest first;
            empty without an entity.
        user: ε of the user.
        detected: ε of both, for an entity whose every mention the tagger detects.
        robust: ε of both, even if the tagger missed the entity in any of these sentences.
    """

    user_sentences: float
    profile: profiles.Profile
    user: float
    detected: float
    robust: float


def pair_epsilons(bounds: EnforcedBounds, training: Training, user: int | None, entity: int | None) -> PairEpsilons:
    """Return ε of a user together with an entity; in a corpus of messages the entity may be the user.

    Both kinds of sentences are protected at once: those of the user, whatever they mention, and those of anybody that
    mention the entity. Where sentences have weights, ε of both is that of their contribution bounds.

    Args:
        user: the user's id; None for any user, with at most n' sentences.
        entity: the entity's id; None for no entity. ε of both is infinite for one that is declared public.
    """
    event, guarantee = training.event, bounds.guarantee
    n = training.user.user_sentences if user is None else bounds.contribution_of(user)
    training = replace(training, user=guarantee.with_user(n))
    alone = training.epsilon_of(training.user) if n else 0.0
    if entity is None:
        return PairEpsilons(n, np.array([], dtype=np.int64), alone, alone, alone)
    if entity in bounds.declared.public:
        return PairEpsilons(n, np.array([], dtype=np.int64), alone, math.inf, math.inf)
    profiles_kept = bounds.kept.entity_profiles()
    start, end = profiles_kept.offsets[entity : entity + 2]
    profile = np.asarray(profiles_kept.sentences[start:end], dtype=np.int64)
    if guarantee.weighted:
        contributions = bounds.contributions()
        columns = (contributions.users, contributions.max_per_user, contributions.sentences)
        limit = [int(column[entity]) for column in columns]
        both = [_epsilon_within(one, training, guarantee, *limit) for one in (event, event.robust())]
    else:
        accountant = ProfileAccountant(event, n, training.rounds, training.delta)
        both = [accountant.epsilon(profile), accountant.robust().epsilon(profile)]
    return PairEpsilons(n, profile, alone, *both)


def epsilon_of_any(guarantee: Guarantee, training: Training, population: int) -> float:
    """Return ε of any user with any entity; ∞ if no bound on entities is enforced."""
    units = guarantee.units(clips_sentences=training.event.clips_sentences, population=population)
    if not units or not guarantee.covers_any_entity:
        return math.inf
    events = {False: training.event, True: training.event.robust()}
    return max(accounting.epsilon(events[u.robust], u.adjacency, training.rounds, training.delta) for u in units)


def summarise(
    entities: EntityEpsilons, thresholds: Sequence[float] = THRESHOLDS, names: Sequence[str] | None = None
) -> dict[str, object]:
    """Return the report as plain values: the distribution of ε over the entities, and the worst profiles.

    Args:
        entities: result of :func:`entity_epsilons`.
        thresholds: values of ε for which to report the share of entities within them.
        names: of the entities, by entity id, for the worst profiles; None leaves names out.
    """
    profile_of = entities.profile_of[entities.profile_of >= 0]
    return {
        "entities": len(profile_of),
        "distinct_profiles": len(entities.profiles),
        "epsilon_user": entities.user,
        "epsilon_user_entity": _spread(entities.detected[profile_of], thresholds),
        "epsilon_user_entity_robust": _spread(entities.robust[profile_of], thresholds),
        "worst": _worst(entities, names),
    }


def _distinct(entity_profiles: EntityProfiles) -> tuple[list[profiles.Profile], Ints]:
    """Return the distinct profiles, and the index of each entity's profile, int64 (E,)."""
    offsets, sentences = entity_profiles.offsets, entity_profiles.sentences
    numbers: dict[bytes, int] = {}
    profile_of = np.empty(len(offsets) - 1, dtype=np.int64)
    for entity, (start, end) in enumerate(itertools.pairwise(offsets)):
        profile_of[entity] = numbers.setdefault(sentences[start:end].tobytes(), len(numbers))
    return [np.frombuffer(key, dtype=np.int32).astype(np.int64) for key in numbers], profile_of


def _of_distinct(accountant: ProfileAccountant, distinct: Sequence[profiles.Profile]) -> Floats:
    """Return ε per distinct profile, float64 (P,); profiles that the mechanism cannot tell apart are computed once."""
    numbers: dict[bytes, int] = {}
    reduced = (profiles.reduced_profile(accountant.event, profile) for profile in distinct)
    kinds = np.array([numbers.setdefault(profile.tobytes(), len(numbers)) for profile in reduced])
    return accountant.epsilons([np.frombuffer(key, dtype=np.int64) for key in numbers])[kinds]


def _spread(epsilons: Floats, thresholds: Sequence[float]) -> dict[str, object]:
    return {
        **{name: _quantile(epsilons, share) for name, share in QUANTILES.items()},
        "share_within": {f"{bound:g}": float(np.mean(epsilons <= bound)) for bound in thresholds},
    }


def _quantile(values: Floats, share: float) -> float:
    """Return the smallest occurring value, never interpolated, with at least this share of ``values`` within it."""
    return float(np.quantile(values, share, method="inverted_cdf"))


def _worst(entities: EntityEpsilons, names: Sequence[str] | None) -> list[dict[str, object]]:
    """Return the profiles with the largest ε, each with its entities."""
    sentences = np.array([profile.sum() for profile in entities.profiles])
    order = np.lexsort((-sentences, -entities.robust, -entities.detected))
    return [_profile_row(entities, int(index), names) for index in order[:WORST]]


def _profile_row(entities: EntityEpsilons, index: int, names: Sequence[str] | None) -> dict[str, object]:
    profile = entities.profiles[index]
    ids = np.flatnonzero(entities.profile_of == index)
    counts, users = np.unique(profile, return_counts=True)
    row: dict[str, object] = {
        "users": len(profile),
        "sentences": int(profile.sum()),
        "max_per_user": int(profile.max(initial=0)),
        "users_by_sentences": {str(n): int(m) for n, m in zip(counts, users, strict=True)},
        "entities": len(ids),
        "epsilon_user_entity": float(entities.detected[index]),
        "epsilon_user_entity_robust": float(entities.robust[index]),
    }
    return row if names is None else row | {"names": [names[int(entity)] for entity in ids]}
