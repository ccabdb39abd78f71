"""What a training costs every single entity of a corpus: ε of a user together with it, from its own profile.

The reach of a configuration is one promise for all entities up to some size. This report says what is true of each,
and how ε is spread over them. It is read off the private corpus, so it is for the simulation's owner: no ε covers it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fl_sim.config import ConfigError
from fl_sim.data_prep.store.ownership import EntityProfiles, Ownership
from fl_sim.strategies.accounting import accountant as accounting
from fl_sim.strategies.accounting import entity_profiles as profiles
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.accounting.adjacency import Adjacency
from fl_sim.strategies.accounting.profile_accountant import ProfileAccountant
from fl_sim.strategies.accounting.profile_bounds import Bounds, bound_all

QUANTILES = {"median": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}
THRESHOLDS = (1.0, 2.0, 5.0, 10.0, 20.0)
EVALUATIONS = 10_000
WORST = 10

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Training:
    """What is trained, and the user that is protected beside each entity.

    Attributes:
        event: what every round releases.
        rounds: number of rounds.
        delta: δ at which ε is stated.
        user_sentences: n' of the protected user; ``inf`` where none is assumed.
    """

    event: RoundEvent
    rounds: int
    delta: float
    user_sentences: float


@dataclass(frozen=True, eq=False, slots=True)
class EntityEpsilons:
    """ε of P distinct profiles and of the E entities that have them.

    Attributes:
        profiles: the distinct profiles: sentences of each user that mention the entity, largest first.
        profile_of: int64 (E,), the index of each entity's profile.
        detected: ε per profile, for an entity that the tagger finds wherever it occurs.
        robust: ε per profile, also for an entity that it misses.
        user: ε of the user alone.
    """

    profiles: Sequence[profiles.Profile]
    profile_of: Ints
    detected: Bounds
    robust: Bounds
    user: float


def entity_epsilons(ownership: Ownership, training: Training, evaluations: int = EVALUATIONS) -> EntityEpsilons:
    """ε of every entity of a corpus.

    Args:
        ownership: who owns which sentence, and which entities it mentions.
        training: the mechanism.
        evaluations: at most about so many ε are computed, each for detected and missed entities. Where there are
            more different profiles, the rarest are bounded by profiles that dominate them.

    Raises:
        ConfigError: the corpus has no entity.
        PrivacyError: the mechanism, or ``evaluations``, is impossible.
    """
    if ownership.num_entities == 0:
        raise ConfigError("the split has no entity; allowed: a corpus that was prepared with a tagger")
    distinct, profile_of = _distinct(ownership.entity_profiles())
    event = training.event
    accountant = ProfileAccountant(event, training.user_sentences, training.rounds, training.delta)
    detected = _bounds(accountant, distinct, profile_of, evaluations)
    robust = detected if event.q_e == 1 else _bounds(accountant.robust(), distinct, profile_of, evaluations)
    user = accounting.epsilon(event, Adjacency(training.user_sentences), training.rounds, training.delta)
    return EntityEpsilons(distinct, profile_of, detected, robust, user)


def summarise(
    found: EntityEpsilons, thresholds: Sequence[float] = THRESHOLDS, names: Sequence[str] | None = None
) -> dict[str, Any]:
    """The report as plain values: how ε is spread over the entities, and the worst profiles.

    Args:
        found: what :func:`entity_epsilons` computed.
        thresholds: the shares of entities within these ε are given.
        names: of the entities, by entity id, to be named among the worst; None names nobody.
    """
    return {
        "entities": len(found.profile_of),
        "distinct_profiles": len(found.profiles),
        "evaluations": found.detected.evaluations,
        "epsilon_user": found.user,
        "epsilon_user_entity": _spread(found.detected, found.profile_of, thresholds),
        "epsilon_user_entity_robust": _spread(found.robust, found.profile_of, thresholds),
        "worst": _worst(found, names),
    }


def _distinct(entity_profiles: EntityProfiles) -> tuple[list[profiles.Profile], Ints]:
    """The different profiles, and which of them each entity has."""
    offsets, sentences = entity_profiles.offsets, entity_profiles.sentences
    numbers: dict[bytes, int] = {}
    profile_of = np.empty(len(offsets) - 1, dtype=np.int64)
    for entity, (start, end) in enumerate(itertools.pairwise(offsets)):
        profile_of[entity] = numbers.setdefault(sentences[start:end].tobytes(), len(numbers))
    return [np.frombuffer(key, dtype=np.int32).astype(np.int64) for key in numbers], profile_of


def _bounds(
    accountant: ProfileAccountant, distinct: Sequence[profiles.Profile], profile_of: Ints, evaluations: int
) -> Bounds:
    """ε per distinct profile; those that the mechanism cannot tell apart are computed once."""
    numbers: dict[bytes, int] = {}
    reduced = (profiles.reduced(accountant.event, profile) for profile in distinct)
    kinds = np.array([numbers.setdefault(profile.tobytes(), len(numbers)) for profile in reduced])
    different = [np.frombuffer(key, dtype=np.int64) for key in numbers]
    multiplicities = np.bincount(kinds[profile_of], minlength=len(different))
    found = bound_all(different, multiplicities.tolist(), accountant.epsilons, evaluations)
    return Bounds(found.upper[kinds], found.lower[kinds], found.evaluations)


def _spread(bounds: Bounds, profile_of: Ints, thresholds: Sequence[float]) -> dict[str, Any]:
    upper, lower = bounds.upper[profile_of], bounds.lower[profile_of]
    with np.errstate(invalid="ignore"):
        excess = np.where(upper > lower, upper / lower - 1, 0.0)
    return {
        **{name: _quantile(upper, share) for name, share in QUANTILES.items()},
        "share_within": {f"{bound:g}": float(np.mean(upper <= bound)) for bound in thresholds},
        "share_computed_exactly": float(np.mean(upper == lower)),
        "overstated_by": {name: _quantile(excess, QUANTILES[name]) for name in ("p99", "max")},
    }


def _quantile(values: Floats, share: float) -> float:
    """A value that occurs, never interpolated: at least this share of the entities lies within it."""
    return float(np.quantile(values, share, method="inverted_cdf"))


def _worst(found: EntityEpsilons, names: Sequence[str] | None) -> list[dict[str, Any]]:
    """The profiles with the largest ε, each with the entities that have it."""
    sentences = np.array([profile.sum() for profile in found.profiles])
    order = np.lexsort((-sentences, -found.robust.upper, -found.detected.upper))
    return [_described(found, int(index), names) for index in order[:WORST]]


def _described(found: EntityEpsilons, index: int, names: Sequence[str] | None) -> dict[str, Any]:
    profile = found.profiles[index]
    entities = np.flatnonzero(found.profile_of == index)
    counts, users = np.unique(profile, return_counts=True)
    described: dict[str, Any] = {
        "users": len(profile),
        "sentences": int(profile.sum()),
        "max_per_user": int(profile.max(initial=0)),
        "users_by_sentences": {str(n): int(m) for n, m in zip(counts, users, strict=True)},
        "entities": len(entities),
        "epsilon_user_entity": float(found.detected.upper[index]),
        "epsilon_user_entity_robust": float(found.robust.upper[index]),
    }
    return described if names is None else described | {"names": [names[int(entity)] for entity in entities]}
