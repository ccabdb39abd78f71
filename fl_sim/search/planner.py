"""Choose the sampling rates, cap and noise of the best signal-to-noise ratio at a target ε and compute budget.

If all clipped gradients pointed in the same direction, T rounds would move the model by T·S·c along it, with S the
expected number of sentences that count after the user's cap, and the noise would add up to √T·z·ŵ·c in every direction.
So the ratio is √T·S/(z·ŵ) (docs/settings.md). ε rests on public bounds alone, but S is read off the corpus: the
proposal is for the corpus's owner, and no ε covers it.

>>> capped_mean(np.array([10.0]), np.array([0.5]), cap=3.0).round(3).tolist()
[2.934]
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from scipy import stats

from fl_sim.config import ConfigError
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.plan.guarantees import EnforcedBounds
from fl_sim.strategies.accounting import accountant, calibration
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.accounting.adjacency import PrivacyError
from fl_sim.strategies.accounting.guarantee import ProtectedUnit

CAPS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200)
ENTITY_RATES = (1.0, 0.75, 0.5, 0.25)
SHARES = tuple(0.8**step for step in range(16))
"""Candidate shares of the compute budget, largest first."""

_QUIETEST, _LOUDEST = 1e-2, 1e5  # range of the noise multiplier in every search
_NEARBY = 1.5  # ratio between the noise multipliers of most neighbours

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Goal:
    """A target ε and a compute budget.

    Attributes:
        target_epsilon: the largest allowed ε.
        unit: of ε: ``user``, or ``user_entity`` for any user with any entity.
        delta: δ of the target.
        sentences_per_round: the largest expected number of sentences whose gradients a round computes.
        rounds: the largest number of released rounds.

    Raises:
        ConfigError: for an impossible value.
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
    """Rates, cap and rounds, with the noise that the target needs.

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
        """Return √T · signal / (z·ŵ)."""
        return math.sqrt(self.rounds) * self.signal / (self.event.noise_multiplier * self.event.user_cap)


@dataclass(frozen=True, slots=True)
class Proposal:
    """The best settings and their alternatives.

    Attributes:
        best: the settings of the best signal-to-noise ratio.
        others: the next best, best first.
        fewer_rounds: ``best`` with half and a quarter of the rounds.
    """

    best: Settings
    others: tuple[Settings, ...]
    fewer_rounds: tuple[Settings, ...]


class Crowd:
    """Statistics of a corpus: sentences per user, and the probabilities that they count.

    Args:
        ownership: users, sentences and entities of the corpus.
        weights: the factor on every sentence's sampling rate, float64 (S,).
    """

    def __init__(self, ownership: Ownership, weights: Floats) -> None:
        self._ownership = ownership
        self._weights = weights
        self.sentences_per_user = ownership.sentences_per_user

    def active_share(self, q_e: float) -> Floats:
        """Return each user's mean of w(s)·q_e^(entities of s) over the sentences s, float64 (num_users,)."""
        probabilities = self._weights * np.power(q_e, self._ownership.entities_per_sentence)
        totals = np.bincount(self._ownership.user_of_sentence, probabilities, minlength=self._ownership.num_users)
        return totals / np.maximum(self.sentences_per_user, 1)

    def sampled_sentences(self, q_e: float) -> float:
        """Return the expected number of sentences with all entities active."""
        return float((self.sentences_per_user * self.active_share(q_e)).sum())

    def signal(self, q_u: float, q_e: float, q_s: float, user_cap: float) -> float:
        """Return q_u·Σ_u E min(k_u, ŵ) with k_u ~ Binomial(n_u, q_s·share of active sentences).

        The binomial distribution ignores that sentences with a common entity are active together.

        Args:
            q_u: probability that a user is sampled.
            q_e: probability that an entity is active.
            q_s: probability that a sentence is sampled.
            user_cap: ŵ.
        """
        pairs = np.stack([self.sentences_per_user.astype(np.float64), self.active_share(q_e)], axis=1)
        distinct, users = np.unique(pairs, axis=0, return_counts=True)
        expected = capped_mean(distinct[:, 0], q_s * distinct[:, 1], user_cap)
        return q_u * float((users * expected).sum())


def capped_mean(n: Floats, p: Floats, cap: float) -> Floats:
    """Return E min(K, cap) with K ~ Binomial(n, p), float64 (m,).

    Args:
        n: integers, float64 (m,).
        p: in [0, 1], float64 (m,).
        cap: at least 0, may be fractional.
    """
    floor = int(cap)
    mean = np.zeros(len(n))
    for below in range(min(floor, int(n.max(initial=0)))):
        mean += stats.binom.sf(below, n, p)
    return mean + (cap - floor) * stats.binom.sf(floor, n, p)


Observe = Callable[[int, int], None]
"""Is called with the number of settings that were tried, and about how many will be."""

_USUAL = 18  # settings that a search tries, as a rule


def propose(
    bounds: EnforcedBounds,
    units: Sequence[ProtectedUnit],
    goal: Goal,
    alternatives: int = 4,
    observe: Observe = lambda done, total: None,
) -> Proposal:
    """Return the settings of the best signal-to-noise ratio that meet ``goal``, and their alternatives.

    Args:
        bounds: the corpus, and the weights that enforce the bounds.
        units: the protected units, of which the largest ε counts.
        goal: target and budget.
        alternatives: number of further settings.
        observe: called after each setting that was tried.

    Raises:
        ConfigError: no settings meet the target.
        PrivacyError: for an impossible privacy parameter.
    """
    crowd, numbers = Crowd(bounds.ownership, bounds.weights), itertools.count(1)

    def tried() -> None:
        done = next(numbers)
        observe(done, max(_USUAL, done))

    search = _Search(crowd, units, goal, tried)
    for entity_rate in (0, 2):
        search.climb((0, 2, entity_rate))
    ranked = search.ranked()
    if not ranked:
        raise ConfigError(
            f"target_epsilon is {goal.target_epsilon:g}; allowed: an ε that some noise meets at δ = {goal.delta:g}"
        )
    fewer = (search.shortened(ranked[0], goal.rounds // part) for part in (2, 4) if goal.rounds >= part)
    shorter = tuple(settings for settings in fewer if settings is not None)
    best = max([ranked[0], *shorter], key=lambda settings: settings.signal_to_noise)
    others = tuple(settings for settings in ranked if settings is not best)[:alternatives]
    return Proposal(best, others, tuple(settings for settings in shorter if settings is not best))


_Point = tuple[int, int, int]  # indices of the share of the budget, the cap and the entity rate
_SHARE, _CAP, _ENTITY_RATE = range(3)


@dataclass(eq=False)
class _Search:
    """Hill climbing over budget share, cap and entity rate, with sampled sentences."""

    crowd: Crowd
    units: Sequence[ProtectedUnit]
    goal: Goal
    tried: Callable[[], None] = lambda: None
    _evaluated: dict[_Point, Settings | None] = field(default_factory=dict)
    _noise: float | None = None

    def climb(self, start: _Point) -> None:
        """Follow each axis in turn while the ratio rises, until no axis improves it."""
        here, moved = start, True
        while moved:
            moved = False
            for axis, step in itertools.product((_CAP, _ENTITY_RATE, _SHARE), (-1, 1)):
                further = _moved(here, axis, step)
                while further is not None and self._value(further) > self._value(here):
                    here, moved = further, True
                    further = _moved(here, axis, step)

    def ranked(self) -> list[Settings]:
        """Return all evaluated settings that meet the target, best first, without duplicates."""
        distinct = {(s.event.q_s, s.event.q_e, s.event.user_cap): s for s in self._evaluated.values() if s}
        return sorted(distinct.values(), key=lambda settings: -settings.signal_to_noise)

    def shortened(self, settings: Settings, rounds: int) -> Settings | None:
        """Return the same rates and cap with another number of rounds; None if no noise meets the target."""
        noise = self._meet(settings.event, rounds)
        if noise is None:
            return None
        return replace(settings, event=replace(settings.event, noise_multiplier=noise), rounds=rounds)

    def _value(self, point: _Point) -> float:
        if point not in self._evaluated:
            self._evaluated[point] = self._settings(point)
            self.tried()
        settings = self._evaluated[point]
        return settings.signal_to_noise if settings else 0.0

    def _settings(self, point: _Point) -> Settings | None:
        share, cap, q_e = SHARES[point[0]], float(CAPS[point[1]]), ENTITY_RATES[point[2]]
        active = self.crowd.sampled_sentences(q_e)
        rate = min(1.0, rounded_down(share * self.goal.sentences_per_round / active, 3))
        event = RoundEvent("uedp", 1.0, q_u=1.0, q_e=q_e, q_s=rate, user_cap=cap)
        noise = self._meet(event, self.goal.rounds)
        if noise is None:
            return None
        signal = self.crowd.signal(1.0, q_e, rate, cap)
        return Settings(replace(event, noise_multiplier=noise), self.goal.rounds, rate * active, signal)

    def _meet(self, event: RoundEvent, rounds: int) -> float | None:
        """Return the noise multiplier that meets the target; None if none does."""
        goal = self.goal

        def epsilon_at(noise: float) -> float:
            return epsilon_of_units(replace(event, noise_multiplier=noise), self.units, rounds, goal.delta)

        near = [] if self._noise is None else [(self._noise * _NEARBY, self._noise / _NEARBY)]
        for safest, riskiest in (*near, (_LOUDEST, _QUIETEST)):
            try:
                noise = calibration.bisect_value(epsilon_at, "noise_multiplier", safest, riskiest, goal.target_epsilon)
            except PrivacyError:
                continue
            if noise > riskiest or riskiest == _QUIETEST:
                self._noise = noise
                return noise
        return None


def epsilon_of_units(event: RoundEvent, units: Sequence[ProtectedUnit], rounds: int, delta: float) -> float:
    """Return the largest ε of ``units`` after ``rounds`` rounds."""
    return max(
        accountant.epsilon(event.robust() if unit.robust else event, unit.adjacency, rounds, delta) for unit in units
    )


def rounded_down(rate: float, digits: int) -> float:
    """Return ``rate`` rounded down to so many significant digits."""
    digits += -1 - math.floor(math.log10(rate))
    return float(f"{math.floor(rate * 10**digits)}e{-digits}")


def _moved(point: _Point, axis: int, step: int) -> _Point | None:
    """Return the next point along an axis; None at its end."""
    moved = list(point)
    moved[axis] += step
    if not 0 <= moved[axis] < len((SHARES, CAPS, ENTITY_RATES)[axis]):
        return None
    return moved[0], moved[1], moved[2]
