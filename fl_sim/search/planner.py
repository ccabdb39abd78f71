"""Find the sampling rates, cap and noise that learn most at a target ε and within a compute budget.

"Most" is the largest signal-to-noise ratio (docs/planning.md): were all clipped gradients to point the same way, T
rounds would move the model by T·S·c along it, where S is the expected number of sentences that count after the
user's cap, and the noise would add up to √T·z·ŵ·c in every direction. So the ratio is √T·S/(z·ŵ). The planner reads
reach, sizes and n' off the private corpus: its proposal is for the corpus's owner, and no ε covers it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from scipy import stats

from fl_sim.config import ConfigError
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.guarantees import Protected
from fl_sim.strategies.accounting import accountant, calibration
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.accounting.adjacency import Adjacency, PrivacyError

CAPS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200)
ENTITY_RATES = (1.0, 0.75, 0.5, 0.25)
SHARES = tuple(0.8**step for step in range(16))
"""Shares of the compute budget that are tried, largest first."""

_QUIETEST, _LOUDEST = 1e-2, 1e5  # noise multipliers between which every target is looked for
_NEARBY = 1.5  # a neighbour's noise multiplier is mostly right up to this factor

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Goal:
    """What is wanted, and what it may cost.

    Attributes:
        target_epsilon: the ε to stay within.
        unit: whose ε that is: ``user``, or ``user_entity`` at the 95th percentile of the corpus's reach.
        delta: δ at which ε is stated.
        sentences_per_round: the expected number of sentences whose gradients one round may compute.
        rounds: the most rounds that may be released.

    Raises:
        ConfigError: for a value that is impossible.
    """

    target_epsilon: float
    unit: str
    delta: float
    sentences_per_round: float
    rounds: int

    def __post_init__(self) -> None:
        for name in ("target_epsilon", "sentences_per_round"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}; allowed: a finite number above 0")
        if self.unit not in ("user", "user_entity"):
            raise ConfigError(f"target_unit is {self.unit!r}; allowed: user, user_entity")
        if self.rounds < 1:
            raise ConfigError(f"rounds is {self.rounds}; allowed: an integer of at least 1")
        if not 0 < self.delta < 1:
            raise ConfigError(f"delta is {self.delta}; allowed: between 0 and 1, both excluded")


@dataclass(frozen=True, slots=True)
class Settings:
    """What the planner may choose, with the noise that the target then needs.

    Attributes:
        event: rates, cap and noise multiplier of a round.
        rounds: number of rounds.
        sentences: expected number of sentences whose gradients a round computes.
        signal: expected number of sentences that count in a round after the cap: Σ_u E min(k_u, ŵ).
    """

    event: RoundEvent
    rounds: int
    sentences: float
    signal: float

    @property
    def signal_to_noise(self) -> float:
        """√T · signal / (z·ŵ)."""
        return math.sqrt(self.rounds) * self.signal / (self.event.noise_multiplier * self.event.user_cap)


@dataclass(frozen=True, slots=True)
class Proposal:
    """What the planner found.

    Attributes:
        best: the settings with the best signal-to-noise ratio.
        others: the next best that also sample sentences and not users, best first.
        user_sampling: the best that sample users and take all sentences of theirs.
        fewer_rounds: ``best`` with half and a quarter of the rounds.
    """

    best: Settings
    others: tuple[Settings, ...]
    user_sampling: Settings | None
    fewer_rounds: tuple[Settings, ...]

    @property
    def user_sampling_factor(self) -> float:
        """How many times larger the best ratio is than that of user sampling; inf where that cannot meet the target."""
        if self.user_sampling is None:
            return math.inf
        return self.best.signal_to_noise / self.user_sampling.signal_to_noise


class Crowd:
    """The corpus as the planner sees it: how many sentences a user has, and how likely their entities are active."""

    def __init__(self, ownership: Ownership) -> None:
        self._ownership = ownership
        self.sentences_per_user = ownership.sentences_per_user
        self._active: dict[float, Floats] = {}

    def active_share(self, q_e: float) -> Floats:
        """Of each user, the share of sentences that is expected to have all entities active."""
        if q_e not in self._active:
            chances = np.power(q_e, self._ownership.entities_per_sentence)
            totals = np.bincount(self._ownership.user_of_sentence, chances, minlength=self._ownership.num_users)
            self._active[q_e] = totals / np.maximum(self.sentences_per_user, 1)
        return self._active[q_e]

    def sampled_sentences(self, q_e: float) -> float:
        """Expected number of sentences with all entities active."""
        return float((self.sentences_per_user * self.active_share(q_e)).sum())

    def signal(self, q_u: float, q_e: float, q_s: float, user_cap: float) -> float:
        """q_u·Σ_u E min(k_u, ŵ) with k_u ~ Binomial(n_u, q_s·share of active sentences).

        (Sentences with a common entity are active together, which a binomial law leaves out.)
        """
        pairs = np.stack([self.sentences_per_user.astype(np.float64), self.active_share(q_e)], axis=1)
        distinct, users = np.unique(pairs, axis=0, return_counts=True)
        expected = capped_mean(distinct[:, 0], q_s * distinct[:, 1], user_cap)
        return q_u * float((users * expected).sum())


def capped_mean(n: Floats, p: Floats, cap: float) -> Floats:
    """E min(K, cap) with K ~ Binomial(n, p), for whole n and 0 ≤ p ≤ 1."""
    whole = int(cap)
    mean = np.zeros(len(n))
    for below in range(min(whole, int(n.max(initial=0)))):
        mean += stats.binom.sf(below, n, p)
    return mean + (cap - whole) * stats.binom.sf(whole, n, p)


def propose(ownership: Ownership, protected: Protected, goal: Goal, alternatives: int = 4) -> Proposal:
    """The settings with the best signal-to-noise ratio that meet ``goal``, and what they are better than.

    Raises:
        ConfigError: no settings meet the target.
        PrivacyError: for an impossible privacy parameter.
    """
    crowd, adjacency = Crowd(ownership), protected.target(goal.unit)
    by_sentence, by_user = _Search(crowd, adjacency, goal, False), _Search(crowd, adjacency, goal, True)
    for entity_rate in (0, 2):
        by_sentence.climb((0, 2, entity_rate))
    by_user.climb((0, 8, 0))
    ranked = by_sentence.ranked()
    if not ranked:
        raise ConfigError(
            f"target_epsilon is {goal.target_epsilon:g}; allowed: what some noise can reach at δ = {goal.delta:g}"
        )
    fewer = (by_sentence.shortened(ranked[0], goal.rounds // part) for part in (2, 4) if goal.rounds >= part)
    shorter = tuple(settings for settings in fewer if settings is not None)
    best = max([ranked[0], *shorter], key=lambda settings: settings.signal_to_noise)
    others = tuple(settings for settings in ranked if settings is not best)[:alternatives]
    users = by_user.ranked()
    return Proposal(best, others, users[0] if users else None, tuple(s for s in shorter if s is not best))


_Point = tuple[int, int, int]  # indices of the share of the budget, the cap and the entity rate
_SHARE, _CAP, _ENTITY_RATE = range(3)


@dataclass(eq=False)
class _Search:
    """Hill climbing over budget share, cap and entity rate, for either way to sample."""

    crowd: Crowd
    adjacency: Adjacency
    goal: Goal
    samples_users: bool
    _found: dict[_Point, Settings | None] = field(default_factory=dict)
    _noise: float | None = None

    def climb(self, start: _Point) -> None:
        """Go on along each axis in turn while that is better, until no axis leads further."""
        here, moved = start, True
        while moved:
            moved = False
            for axis, step in itertools.product((_CAP, _ENTITY_RATE, _SHARE), (-1, 1)):
                further = _moved(here, axis, step)
                while further is not None and self._value(further) > self._value(here):
                    here, moved = further, True
                    further = _moved(here, axis, step)

    def ranked(self) -> list[Settings]:
        """All settings that were looked at and can meet the target, best first; equal ones once."""
        different = {(s.event.q_u, s.event.q_s, s.event.q_e, s.event.user_cap): s for s in self._found.values() if s}
        return sorted(different.values(), key=lambda settings: -settings.signal_to_noise)

    def shortened(self, settings: Settings, rounds: int) -> Settings | None:
        """The same rates and cap for fewer rounds."""
        noise = self._meet(settings.event, rounds)
        if noise is None:
            return None
        return replace(settings, event=replace(settings.event, noise_multiplier=noise), rounds=rounds)

    def _value(self, point: _Point) -> float:
        if point not in self._found:
            self._found[point] = self._settings(point)
        settings = self._found[point]
        return settings.signal_to_noise if settings else 0.0

    def _settings(self, point: _Point) -> Settings | None:
        share, cap, q_e = SHARES[point[0]], float(CAPS[point[1]]), ENTITY_RATES[point[2]]
        active = self.crowd.sampled_sentences(q_e)
        rate = min(1.0, _rounded_down(share * self.goal.sentences_per_round / active))
        q_u, q_s = (rate, 1.0) if self.samples_users else (1.0, rate)
        event = RoundEvent("uedp", 1.0, q_u=q_u, q_e=q_e, q_s=q_s, user_cap=cap)
        noise = self._meet(event, self.goal.rounds)
        if noise is None:
            return None
        signal = self.crowd.signal(q_u, q_e, q_s, cap)
        return Settings(replace(event, noise_multiplier=noise), self.goal.rounds, rate * active, signal)

    def _meet(self, event: RoundEvent, rounds: int) -> float | None:
        """The noise multiplier that the target needs; None where none is enough."""
        goal = self.goal

        def epsilon_at(noise: float) -> float:
            return accountant.epsilon(replace(event, noise_multiplier=noise), self.adjacency, rounds, goal.delta)

        for safest, riskiest in _brackets(self._noise):
            try:
                noise = calibration.bisect_value(epsilon_at, "noise_multiplier", safest, riskiest, goal.target_epsilon)
            except PrivacyError:
                continue
            if noise > riskiest or riskiest == _QUIETEST:
                self._noise = noise
                return noise
        return None


def _rounded_down(rate: float) -> float:
    """To three significant digits, as people write rates."""
    digits = 2 - math.floor(math.log10(rate))
    return float(f"{math.floor(rate * 10**digits)}e{-digits}")


def _brackets(guess: float | None) -> Iterator[tuple[float, float]]:
    """Where to look for the noise: near ``guess`` first, then everywhere."""
    if guess is not None:
        yield guess * _NEARBY, guess / _NEARBY
    yield _LOUDEST, _QUIETEST


def _moved(point: _Point, axis: int, step: int) -> _Point | None:
    """The next point along an axis; None at its end."""
    moved = list(point)
    moved[axis] += step
    if not 0 <= moved[axis] < len((SHARES, CAPS, ENTITY_RATES)[axis]):
        return None
    return moved[0], moved[1], moved[2]
