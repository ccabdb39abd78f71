"""Theorem 5 by exact enumeration: one round in one dimension, all draws, both directions, on random small corpora.

The sums of both corpora are enumerated with every combination of users, entities and sentences, weighted by the
program's own weights, and their divergence under Gaussian noise is integrated numerically. No accounting code is
involved but for the bound that is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from fl_sim.data_prep.store.contribution_limits import (
    ContributionLimits,
    DeclaredCounts,
    Weights,
    count_weights,
    greedy_weights,
)
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.strategies.accounting.accountant import RoundEvent, delta
from fl_sim.strategies.accounting.adjacency import NO_ENTITY, Adjacency, ContributionBound
from fl_sim.strategies.accounting.guarantee import Guarantee
from tests.data_prep.store.test_ownership import incidence

Floats = NDArray[np.float64]
Weigh = Callable[[Ownership, ContributionLimits, DeclaredCounts], Weights]

EPSILONS = (0.0, 0.3, 1.0, 2.0, 4.0)
_ROUNDING = 1e-7  # of the numerical integration


@dataclass(frozen=True)
class Instance:
    """A corpus, who of it is protected (a user, an entity or both; -1 for none), and the settings of the round."""

    users: list[list[set[int]]]
    pulls: Floats
    user: int
    entity: int
    event: RoundEvent
    limits: ContributionLimits

    def protects(self, user: int, said: set[int]) -> bool:
        return user == self.user or self.entity in said

    def corpora(self) -> Iterator[tuple[Ownership, Floats]]:
        """Yield the larger corpus and the smaller one, which lacks the protected sentences, each with its gradients."""
        listed = list(enumerate(self.users))
        kept = [not self.protects(user, said) for user, sentences in listed for said in sentences]
        smaller = [[said for said in sentences if not self.protects(user, said)] for user, sentences in listed]
        for users, pulls in ((self.users, self.pulls), (smaller, self.pulls[np.array(kept)])):
            yield incidence(users, num_entities=3), pulls


def instance(seed: int) -> Instance:
    """Return a random corpus of two or three users with up to six sentences; the protected ones pull one way."""
    rng = np.random.default_rng(seed)
    users: list[list[set[int]]] = [[] for _ in range(rng.integers(2, 4))]
    for _ in range(rng.integers(4, 7)):
        users[rng.integers(len(users))].append({e for e in range(3) if rng.random() < (0.5, 0.7, 0.2)[e]})
    user, entity = ((0, 0), (0, -1), (-1, 0))[seed % 3]
    event = RoundEvent(
        "uedp",
        noise_multiplier=float(rng.choice([0.1, 0.3, 1.0])),
        q_u=float(rng.choice([0.4, 1.0])),
        q_e=float(rng.choice([0.5, 1.0])),
        q_s=float(rng.choice([0.1, 0.3, 0.9])),
        user_cap=float(rng.choice([1.0, 2.0])),
    )
    limits = ContributionLimits(sentences_per_entity=1 + int(rng.random() < 0.3), sentences_per_user=1)
    one = Instance(users, np.empty(0), user, entity, event, limits)
    protected = [one.protects(number, said) for number, sentences in enumerate(users) for said in sentences]
    pulls = np.where(protected, 1.0, rng.choice([-1.0, 1.0], size=len(protected), p=[0.8, 0.2]))
    return replace(one, pulls=pulls)


def crowd(seed: int) -> Instance:
    """Return a corpus whose protected entity is most of what two others occur in."""
    users: list[list[set[int]]] = [[{0, 1, 2}] * 4, [{1}], [{2}]]
    event = RoundEvent("uedp", noise_multiplier=0.1 + 0.1 * seed, q_s=0.3)
    pulls = np.array([1.0] * 4 + [-1.0] * 2)
    return Instance(users, pulls, -1, 0, event, ContributionLimits(sentences_per_entity=1, sentences_per_user=4))


CORPORA = [*map(crowd, range(2)), *map(instance, range(28))]
FEW = [crowd(0), *map(instance, (5, 17, 20))]


def sums_of(ownership: Ownership, pulls: Floats, weights: Weights, event: RoundEvent) -> tuple[Floats, Floats]:
    """Return the values of the round's sum in units of β, and their probabilities, over all draws."""
    owners, rates = ownership.user_of_sentence, event.q_s * weights
    said = np.zeros((ownership.num_sentences, ownership.num_entities), dtype=bool)
    said[np.repeat(np.arange(len(said)), ownership.entities_per_sentence), ownership.entity_ids] = True
    values, probabilities = [], []
    active, of_sentences = _draws(rates)
    for entities, of_entities in zip(*_draws(np.full(ownership.num_entities, event.q_e)), strict=True):
        eligible = active & ~(said & ~entities).any(axis=1)
        updates = np.zeros((len(active), ownership.num_users))
        for user in range(ownership.num_users):
            own = owners == user
            updates[:, user] = np.clip((eligible[:, own] * pulls[own]).sum(axis=1), -event.user_cap, event.user_cap)
        for sampled, of_users in zip(*_draws(np.full(ownership.num_users, event.q_u)), strict=True):
            values.append(updates @ sampled / event.user_cap)
            probabilities.append(of_sentences * of_entities * of_users)
    distinct, places = np.unique(np.concatenate(values).round(9), return_inverse=True)
    return distinct, np.bincount(places, np.concatenate(probabilities))


def _draws(rates: Floats) -> tuple[NDArray[np.bool_], Floats]:
    """Return every outcome of independent coins, bool (2^n, n), and its probability."""
    outcomes = (np.arange(1 << len(rates))[:, None] >> np.arange(len(rates))) % 2 == 1
    return outcomes, np.where(outcomes, rates, 1 - rates).prod(axis=1)


def attained(one: tuple[Floats, Floats], other: tuple[Floats, Floats], std: float, epsilon: float) -> float:
    """Return H_{e^ε} of two Gaussian mixtures by numerical integration."""
    grid = np.linspace(-8 - 8 * std, 8 + 8 * std, 20_001)
    densities = [
        (weights @ np.exp(-0.5 * ((grid - values[:, None]) / std) ** 2)) / (std * np.sqrt(2 * np.pi))
        for values, weights in (one, other)
    ]
    return float(np.trapezoid(np.maximum(densities[0] - np.exp(epsilon) * densities[1], 0.0), grid))


def beyond(one: Instance, weigh: Weigh, adjacency: Adjacency) -> int:
    """Return in how many of all ε and directions the attained δ exceeds the accountant's."""
    counts = DeclaredCounts.of(next(one.corpora())[0])
    larger, smaller = (
        sums_of(ownership, pulls, weigh(ownership, one.limits, counts), one.event) for ownership, pulls in one.corpora()
    )
    number = 0
    for epsilon in EPSILONS:
        bound = delta(one.event, adjacency, 1, epsilon)
        for pair in ((larger, smaller), (smaller, larger)):
            number += attained(*pair, one.event.noise_multiplier, epsilon) > bound + _ROUNDING
    return number


def adjacency_of(one: Instance) -> Adjacency:
    """Return the adjacency of who is protected, as the program accounts for it."""
    k, m = one.limits.sentences_per_entity, one.limits.sentences_per_user
    guarantee = Guarantee(known="counts", entity_bound=k, user_sentences=m)
    both = guarantee.units(clips_sentences=True, population=len(one.users))[0].adjacency
    bound = both.entity_bound if one.entity >= 0 else NO_ENTITY
    return guarantee.with_user(both.user_sentences if one.user >= 0 else 0.0, bound)


@pytest.mark.parametrize("start", range(0, len(CORPORA), 10))
def test_no_corpus_attains_more_than_the_bound(start: int) -> None:
    assert sum(beyond(one, count_weights, adjacency_of(one)) for one in CORPORA[start : start + 10]) == 0


@pytest.mark.nightly
@pytest.mark.parametrize("start", range(30, 1000, 20))
def test_no_further_corpus_attains_more_than_the_bound(start: int) -> None:
    instances = map(instance, range(start, start + 20))
    assert sum(beyond(one, count_weights, adjacency_of(one)) for one in instances) == 0


# What the theorem needs: each of these faults is seen on some of the same corpora.


def by_the_corpus_in_hand(ownership: Ownership, limits: ContributionLimits, counts: DeclaredCounts) -> Weights:
    """Count the corpus that is trained on, so that the smaller one has larger weights."""
    return count_weights(ownership, limits, DeclaredCounts.of(ownership))


def by_what_others_said(ownership: Ownership, limits: ContributionLimits, counts: DeclaredCounts) -> Weights:
    """Give room to sentences in turn, so that one user's sentences decide whether another's are kept."""
    return greedy_weights(ownership, limits, np.arange(ownership.num_sentences))


@pytest.mark.parametrize("fault", [by_the_corpus_in_hand, by_what_others_said])
def test_weights_that_depend_on_the_protected_sentences_break_the_bound(fault: Weigh) -> None:
    assert sum(beyond(one, fault, adjacency_of(one)) for one in FEW) > 0


def test_a_number_of_sentences_in_place_of_a_sum_of_weights_breaks_the_bound() -> None:
    def of_numbers(one: Instance) -> Adjacency:
        k, m = one.limits.sentences_per_entity or 0, one.limits.sentences_per_user or 0
        return Adjacency(m if one.user >= 0 else 0, ContributionBound(k, k, k) if one.entity >= 0 else NO_ENTITY)

    assert sum(beyond(one, count_weights, of_numbers(one)) for one in FEW) > 0
