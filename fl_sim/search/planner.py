"""Choose bounds, sampling rates, cap and noise at a target ε and compute budget, by signal-to-noise ratios.

If all clipped gradients pointed in the same direction, T rounds would move the model by T·S·c along it, with S the
expected number of sentences that count after the user's cap, and the noise would add up to √T·z·ŵ·c in every direction.
So the ratio is √T·S/(z·ŵ) (docs/settings.md), by which rates, cap and noise are chosen under given bounds.

Smaller bounds need less noise for the same S, so this ratio alone would always take the smallest. But they sample the
same few sentences again and again, which teaches the model nothing of the rest. So bounds are compared by the ratio in
which a sentence counts once however often it is drawn: with D different sentences in T rounds it is D/(√T·z·ŵ), which
equals the first where no sentence is drawn twice.

Both ratios ignore too much to tell apart what is within a tenth of the best. Of such rates those with the largest q_e
win, and of such bounds those with the most mentions in a round, q_e times what they keep: smaller ones teach the model
no names.

>>> [round(share, 2) for share in SHARES[:3]]
[1.0, 0.8, 0.64]
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from fl_sim.config import ConfigError
from fl_sim.search.bounds import Candidate, keeping
from fl_sim.search.crowd import Crowd
from fl_sim.strategies.accounting import accountant, calibration
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.accounting.adjacency import PrivacyError
from fl_sim.strategies.accounting.guarantee import Guarantee, ProtectedUnit
from fl_sim.strategies.privacy_config import PrivacyConfig

CAPS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200)
ENTITY_RATES = (1.0, 0.75, 0.5, 0.25)
SHARES = tuple(0.8**step for step in range(16))
"""Candidate shares of the compute budget, largest first."""

TIE = 0.9
"""Bounds, or rates, with at least this share of the best ratio are as good."""

_Choice = TypeVar("_Choice")

_QUIETEST, _LOUDEST = 1e-2, 1e5  # range of the noise multiplier in every search
_NEARBY = 1.5  # ratio between the noise multipliers of most neighbours
_ALTERNATIVES = 4  # at most
_FEWEST_SENTENCES = 1e-3


@dataclass(frozen=True, slots=True)
class Goal:
    """A target ε at ``delta``, and a budget of rounds and of expected sentences whose gradients a round computes.

    Raises:
        ConfigError: for an impossible value.
    """

    target_epsilon: float
    delta: float
    sentences_per_round: float
    rounds: int

    def __post_init__(self) -> None:
        if not 0 < self.target_epsilon < math.inf:
            raise ConfigError(f"target_epsilon is {self.target_epsilon}; allowed: a finite number above 0")
        if not _FEWEST_SENTENCES <= self.sentences_per_round < math.inf:  # the rates of fewer may round to 0
            allowed = f"a finite number of at least {_FEWEST_SENTENCES}"
            raise ConfigError(f"sentences_per_round is {self.sentences_per_round}; allowed: {allowed}")


@dataclass(frozen=True, slots=True)
class Settings:
    """Rates, cap and rounds, with the noise that the target needs.

    Attributes:
        sentences: expected number of sentences whose gradients a round computes.
        signal: expected number of sentences that count in a round after the cap: Σ_u E min(k_u, ŵ).
        different: expected number of different sentences that count in all rounds.
    """

    event: RoundEvent
    rounds: int
    sentences: float
    signal: float
    different: float

    @classmethod
    def of(cls, event: RoundEvent, rounds: int, crowd: Crowd) -> Settings:
        """Return the settings of an event, with what is expected of a crowd."""
        return cls(event, rounds, crowd.sentences(event), crowd.signal(event), crowd.different(event, rounds))

    @property
    def signal_to_noise(self) -> float:
        """Return √T · signal / (z·ŵ)."""
        return math.sqrt(self.rounds) * self.signal / (self.event.noise_multiplier * self.event.user_cap)

    @property
    def different_to_noise(self) -> float:
        """Return different / (√T·z·ŵ), by which bounds are compared."""
        return self.different / (math.sqrt(self.rounds) * self.event.noise_multiplier * self.event.user_cap)

    @property
    def noise_per_sentence(self) -> float:
        """Return z·ŵ / signal: the noise beside the average gradient of a round, in clip norms."""
        return self.event.noise_multiplier * self.event.user_cap / self.signal


@dataclass(frozen=True, slots=True)
class Tradeoff:
    """What bounds (k and m) cost and bring: the best settings under them, and what they keep of the corpus.

    Attributes:
        kept_sentences: the mean weight of a sentence.
        kept_mentions: the mean weight of the sentence of a mention.
    """

    privacy: PrivacyConfig
    guarantee: Guarantee
    kept_sentences: float
    kept_mentions: float
    settings: Settings

    @classmethod
    def of(cls, candidate: Candidate, settings: Settings) -> Tradeoff:
        """Return the trade of a candidate with these settings."""
        crowd = candidate.crowd
        return cls(candidate.privacy, candidate.guarantee, crowd.kept_sentences, crowd.kept_mentions, settings)

    @property
    def ratio(self) -> float:
        """Return the ratio by which bounds are compared."""
        return self.settings.different_to_noise

    @property
    def active_mentions(self) -> float:
        """Return the expected share of all mentions that are kept, in weight, and have an active entity in a round."""
        return self.settings.event.q_e * self.kept_mentions


def best_first(trades: Iterable[Tradeoff]) -> list[Tradeoff]:
    """Return the best trade of each entity bound: the one that wins, and the others by their ratio."""
    by_ratio = sorted(trades, key=lambda trade: -trade.ratio)
    winner = max(_as_good(by_ratio, lambda trade: trade.ratio), key=lambda trade: trade.active_mentions)
    best: dict[int | None, Tradeoff] = {}
    for trade in (winner, *by_ratio):
        best.setdefault(trade.guarantee.entity_bound, trade)
    return list(best.values())


def _as_good(choices: Collection[_Choice], ratio: Callable[[_Choice], float]) -> list[_Choice]:
    """Return the choices whose ratios are as good as the best."""
    least = TIE * max(map(ratio, choices))
    return [choice for choice in choices if ratio(choice) >= least]


@dataclass(frozen=True, slots=True)
class Proposal:
    """The best bounds, the settings under them, and the alternatives, by their signal-to-noise ratios.

    Attributes:
        trades: what was found under each of the bounds, in the order in which they were tried.
        fewer_rounds: ``best`` with half and a quarter of the rounds.
    """

    bounds: Candidate
    trades: tuple[Tradeoff, ...]
    best: Settings
    others: tuple[Settings, ...]
    fewer_rounds: tuple[Settings, ...]


Observe = Callable[[int, int], None]
"""Is called with the number of bounds that were tried, and that of all."""


def propose(
    choices: Sequence[PrivacyConfig],
    candidate_of: Callable[[PrivacyConfig], Candidate],
    goal: Goal,
    keep_mentions: float | None = None,
    observe: Observe = lambda done, total: None,
) -> Proposal:
    """Return the bounds and settings of the best ratios that meet ``goal``, and their alternatives.

    ``observe`` is called before each of the ``choices`` of bounds is tried.

    Args:
        candidate_of: what they keep of the corpus, and the units of the target, of which the largest ε counts.
        keep_mentions: the least share of mentions that bounds keep, in weight; None for any.

    Raises:
        ConfigError: no bounds keep the mentions, or no settings meet the target.
        PrivacyError: for an impossible privacy parameter.
    """
    found: list[Tradeoff] = []
    good: dict[Tradeoff, tuple[Candidate, _Search]] = {}
    starts, noise = _STARTS, None

    def observed() -> Iterator[Candidate]:
        for number, privacy in enumerate(choices):
            observe(number, len(choices))
            yield candidate_of(privacy)

    for candidate in keeping(observed(), keep_mentions):
        search = _Search(candidate.crowd, candidate.units, goal, noise)
        for start in starts:
            search.climb(start)
        if not (ranked := search.ranked()):
            continue
        found.append(Tradeoff.of(candidate, ranked[0]))
        good[found[-1]] = candidate, search
        good = {trade: good[trade] for trade in _as_good(good, lambda trade: trade.ratio)}
        # Bounds that follow each other differ little, and so do their best rates.
        starts, noise = (search.point_of(ranked[0]),), ranked[0].event.noise_multiplier
    if not found:
        raise ConfigError(
            f"target_epsilon is {goal.target_epsilon:g}; allowed: an ε that some noise meets at δ = {goal.delta:g}"
        )
    bounds, search = good[best_first(found)[0]]
    ranked = search.ranked()
    fewer = (search.settings_of(ranked[0].event, goal.rounds // part) for part in (2, 4) if goal.rounds >= part)
    shorter = tuple(settings for settings in fewer if settings is not None)
    first = max([ranked[0], *shorter], key=lambda settings: settings.signal_to_noise)
    others = tuple(settings for settings in ranked if settings is not first)[:_ALTERNATIVES]
    return Proposal(bounds, tuple(found), first, others, tuple(one for one in shorter if one is not first))


_Point = tuple[int, int, int]  # indices of the share of the budget, the cap and the entity rate
_SHARE, _CAP, _ENTITY_RATE = range(3)
_STARTS: tuple[_Point, ...] = ((0, 2, 0), (0, 2, 2))


@dataclass(eq=False)
class _Search:
    """Hill climbing over budget share, cap and entity rate, with sampled sentences."""

    crowd: Crowd
    units: Sequence[ProtectedUnit]
    goal: Goal
    _noise: float | None = None
    _evaluated: dict[_Point, Settings | None] = field(default_factory=dict)

    def climb(self, start: _Point) -> None:
        """Follow each axis in turn while the ratio rises, until no axis improves it."""
        here, moved = start, True
        while moved:
            moved = False
            for axis, step in itertools.product((_CAP, _ENTITY_RATE, _SHARE), (-1, 1)):
                further = _moved(here, axis, step)
                while further is not None and self.value(further) > self.value(here):
                    here, moved = further, True
                    further = _moved(here, axis, step)

    def ranked(self) -> list[Settings]:
        """Return all evaluated settings that meet the target, without duplicates: the best, then by their ratios."""
        distinct = {(s.event.q_s, s.event.q_e, s.event.user_cap): s for s in self._evaluated.values() if s}
        by_ratio = sorted(distinct.values(), key=lambda settings: -settings.signal_to_noise)
        if not by_ratio:
            return []
        best = max(_as_good(by_ratio, lambda settings: settings.signal_to_noise), key=lambda one: one.event.q_e)
        return [best, *(settings for settings in by_ratio if settings is not best)]

    def point_of(self, settings: Settings) -> _Point:
        """Return where the settings were evaluated."""
        return next(point for point, evaluated in self._evaluated.items() if evaluated is settings)

    def settings_of(self, event: RoundEvent, rounds: int) -> Settings | None:
        """Return the settings with these rates and this cap; None if no noise meets the target."""
        noise = self._meet(event, rounds)
        if noise is None:
            return None
        return Settings.of(replace(event, noise_multiplier=noise), rounds, self.crowd)

    def value(self, point: _Point) -> float:
        """Return the ratio at a point; 0 if no noise meets the target."""
        if point not in self._evaluated:
            share, cap, q_e = SHARES[point[_SHARE]], float(CAPS[point[_CAP]]), ENTITY_RATES[point[_ENTITY_RATE]]
            active = self.crowd.sampled_sentences(q_e)
            rate = min(1.0, rounded_down(share * self.goal.sentences_per_round / active, 3))
            event = RoundEvent("uedp", 1.0, q_u=1.0, q_e=q_e, q_s=rate, user_cap=cap)
            self._evaluated[point] = self.settings_of(event, self.goal.rounds)
        settings = self._evaluated[point]
        return settings.signal_to_noise if settings else 0.0

    def _meet(self, event: RoundEvent, rounds: int) -> float | None:
        """Return the noise multiplier at which every unit meets the target; None if none does."""
        found: float | None = None
        for unit in self.units:

            def epsilon_at(noise: float, unit: ProtectedUnit = unit) -> float:
                return epsilon_of_units(replace(event, noise_multiplier=noise), [unit], rounds, self.goal.delta)

            if found is None or epsilon_at(found) > self.goal.target_epsilon:
                found = self._calibrated(epsilon_at)
                if found is None:
                    return None
        return found

    def _calibrated(self, epsilon_at: Callable[[float], float]) -> float | None:
        near = [] if self._noise is None else [(self._noise * _NEARBY, self._noise / _NEARBY)]
        for safest, riskiest in (*near, (_LOUDEST, _QUIETEST)):
            try:
                noise = calibration.bisect_value(
                    epsilon_at, "noise_multiplier", safest, riskiest, self.goal.target_epsilon
                )
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
