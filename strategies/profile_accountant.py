"""ε of a user together with one entity, from that entity's own profile, for many entities in a row.

Where users are sampled, a round reveals how many sentences with the entity take part (docs/privacy.md, Theorem 1,
remark iv). The loss of each such case does not depend on the profile, only its probability does. So the accountant
puts each case on a grid once, and a profile costs one weighted sum of cases and one composition.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from strategies import composition, profiles
from strategies.accounting import MAX_ROUNDS, RoundEvent, dominating_laws, exposed_mixtures
from strategies.privacy_loss import Floats, GridLoss, ShiftMixture, discretize, loss_range
from strategies.profiles import Profile
from strategies.shifts import Exposure
from strategies.units import Adjacency, PrivacyError, Reach

_GRID = 1 << 14
_COARSE_POINTS = 1 << 11
_MOST_CACHED = 1 << 24  # numbers in all cached grids together

_Case = tuple[int, int]  # sampled users, their sentences


@dataclass(eq=False)
class ProfileAccountant:
    """ε of a user with at most n' sentences and an entity of exactly a given profile.

    Attributes:
        event: what every round releases; ``event.robust()`` for entities that the detector may have missed.
        user_sentences: n' of the protected user; 0 protects no user.
        rounds: number of equal rounds.
        delta: δ, in (0, 1).

    Raises:
        PrivacyError: if ``rounds``, ``delta`` or ``user_sentences`` is impossible.
    """

    event: RoundEvent
    user_sentences: float
    rounds: int
    delta: float
    _mixtures: dict[_Case, ShiftMixture] = field(default_factory=dict, init=False, repr=False)
    _grids: dict[tuple[_Case, float], tuple[GridLoss, GridLoss]] = field(default_factory=dict, init=False, repr=False)
    _cached: int = field(default=0, init=False, repr=False)
    _hidden: dict[int, float] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.rounds <= MAX_ROUNDS:
            raise PrivacyError(f"rounds is {self.rounds}; allowed: an integer from 1 to {MAX_ROUNDS}")
        if not 0 < self.delta < 1:
            raise PrivacyError(f"delta is {self.delta}; allowed: between 0 and 1, both excluded")
        self._tail = composition.tail_share(self.delta, self.rounds)
        self._count = np.array([self.rounds], dtype=np.int64)
        Adjacency(self.user_sentences)

    def epsilon(self, profile: Profile) -> float:
        """ε for ``profile``: sentences of each user that mention the entity, largest first; empty for no entity.

        Raises:
            PrivacyError: if the profile is impossible.
        """
        if len(profile) and (profile.min() < 1 or (np.diff(profile) > 0).any()):
            raise PrivacyError(f"profile is {profile[:8].tolist()}; allowed: numbers of at least 1, largest first")
        reduced = profiles.reduced(self.event, profile)
        if self.event.q_u < 1:
            revealed = self._epsilon_of_cases(profiles.exposure(self.event, reduced, self._tail))
            return self._or_hidden(revealed, profile)
        if profiles.users_above_cap(self.event, reduced):
            return self._composed((profiles.all_sampled(self.event, self.user_sentences, reduced, self._tail),))
        exposure = profiles.exposure(self.event, reduced, self._tail)
        return self._composed(exposed_mixtures(self.event, self.user_sentences, exposure, self._tail))

    def _composed(self, law: tuple[ShiftMixture, ...]) -> float:
        return float(composition.epsilon_curve(law, self.event.noise_multiplier, self._count, self.delta)[0])

    def _or_hidden(self, revealed: float, profile: Profile) -> float:
        """The smaller of ``revealed`` and what Theorem 2 proves, which depends on the number of users alone."""
        users = len(profile)
        if any(fewer <= users and epsilon >= revealed for fewer, epsilon in self._hidden.items()):
            return revealed  # more users cost more, so it would be no smaller
        reach = Reach(users, int(profile.max(initial=0)))
        laws = dominating_laws(self.event, Adjacency(self.user_sentences, reach), self._tail)[1:]
        for law in laws:
            if users not in self._hidden:
                self._hidden[users] = self._composed(law)
            revealed = min(revealed, self._hidden[users])
        return revealed

    def _epsilon_of_cases(self, exposure: Exposure) -> float:
        """ε where the case of ``exposure`` is revealed, on a grid whose width is a power of two to be shared."""
        cases = list(zip(exposure.users.tolist(), exposure.sentences.tolist(), strict=True))
        mixtures = tuple(self._mixture(case) for case in cases)
        low, high = loss_range(mixtures, self.event.noise_multiplier, self._tail)
        if high <= low:
            return self._composed(mixtures)
        coarse = self._together(cases, exposure.probabilities, _power_of_two((high - low) / _COARSE_POINTS))
        windows = [composition.chernoff_window(loss, self.rounds, self._tail * self.rounds) for loss in coarse]
        length = max(window.high - window.low for window in windows)
        fine = self._together(cases, exposure.probabilities, _power_of_two(length / (_GRID - 2)))
        epsilons = [
            composition.epsilons(loss, self._count, self.delta, window, _GRID)[0]
            for loss, window in zip(fine, windows, strict=True)
        ]
        return float(max(epsilons))

    def _mixture(self, case: _Case) -> ShiftMixture:
        if case not in self._mixtures:
            users, sentences = case
            certain = Exposure(np.ones(1), np.array([users]), np.array([sentences]))
            (self._mixtures[case],) = exposed_mixtures(self.event, self.user_sentences, certain, self._tail)
        return self._mixtures[case]

    def _grid(self, case: _Case, width: float) -> tuple[GridLoss, GridLoss]:
        if (case, width) not in self._grids:
            both = discretize((self._mixture(case),), self.event.noise_multiplier, width, self._tail)
            self._cached += sum(len(loss.masses) for loss in both)
            if self._cached > _MOST_CACHED:
                self._grids.clear()
                self._cached = sum(len(loss.masses) for loss in both)
            self._grids[case, width] = both
        return self._grids[case, width]

    def _together(self, cases: Sequence[_Case], probabilities: Floats, width: float) -> list[GridLoss]:
        """One round's loss in both directions; what the probabilities miss of 1 counts as a certain loss."""
        grids = [self._grid(case, width) for case in cases]
        unlisted = max(0.0, 1.0 - float(probabilities.sum()))
        return [_weighted(losses, probabilities, unlisted) for losses in zip(*grids, strict=True)]


def _weighted(losses: Sequence[GridLoss], probabilities: Floats, unlisted: float) -> GridLoss:
    first = min(loss.first for loss in losses)
    masses = np.zeros(max(loss.first + len(loss.masses) for loss in losses) - first)
    infinite = unlisted
    for loss, probability in zip(losses, probabilities, strict=True):
        masses[loss.first - first : loss.first - first + len(loss.masses)] += probability * loss.masses
        infinite += probability * loss.infinite
    return GridLoss(losses[0].width, first, masses, infinite, max(loss.round_off for loss in losses))


def _power_of_two(width: float) -> float:
    """The smallest power of two that is at least ``width``."""
    return 2.0 ** math.ceil(math.log2(width))
