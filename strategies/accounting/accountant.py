"""What training releases, and the ε that is proven for it.

A :class:`RoundEvent` says what one round releases, in the terms that its ε depends on. :func:`epsilon_curve`
and its kin turn a number of equal rounds into (ε, δ) for a stated
:class:`~fl_sim.strategies.accounting.adjacency.Adjacency`.
The guarantee, its assumptions and its proof are in docs/privacy.md; in short: all coins are independent and
fresh each round, the noise is Gaussian with standard deviation z·β on the sum of clipped user updates, and
everything else that the server uses is public. Every figure is an upper bound, rounding included.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr

from fl_sim.strategies.accounting import calibration, composition, dominating_pairs
from fl_sim.strategies.accounting.adjacency import Adjacency, PrivacyError
from fl_sim.strategies.accounting.privacy_loss import GaussianMixturePair

Strategy = Literal["uedp", "user_level"]
Clipping = Literal["sentence", "user"]
Unknown = Literal["noise_multiplier", "rounds", "q_u", "q_s", "user_cap"]

MAX_ROUNDS = 10_000_000
_HARDLY = 1e-3  # probability that a user who takes part has less than its cap
_TURNING = 0.25  # an entity that moves less than this share of a user's clip is not worth a second proof
_SEARCHED: dict[str, tuple[float, float]] = {  # from the safest value to the riskiest
    "noise_multiplier": (1e5, 1e-2),
    "q_u": (1e-7, 1.0),
    "q_s": (1e-7, 1.0),
    "user_cap": (1e6, 1.0),
}


@dataclass(frozen=True, slots=True)
class RoundEvent:
    """What one round releases: Σ of clipped user updates plus Gaussian noise of standard deviation z·β.

    Attributes:
        strategy: ``uedp`` (coins for users, entities and sentences) or ``user_level`` (DP-FedAvg: coins
            for users, user clip only).
        noise_multiplier: z > 0.
        q_u: probability that a user takes part.
        q_e: probability that an entity is active, one coin shared by all users; 1 for ``user_level``.
        q_s: probability that a sentence is active; 1 for ``user_level``.
        user_cap: ŵ ≥ 1, the user clip counted in sentence clips: β = ŵ·c.
        clipping: ``sentence`` when each sentence's gradient is clipped to c before the user's sum to β;
            ``user`` when only the update is clipped to β. ``user_level`` is always the latter.

    Raises:
        PrivacyError: if a value is impossible.
    """

    strategy: Strategy
    noise_multiplier: float
    q_u: float = 1.0
    q_e: float = 1.0
    q_s: float = 1.0
    user_cap: float = 1.0
    clipping: Clipping = "sentence"

    def __post_init__(self) -> None:
        if self.strategy not in ("uedp", "user_level"):
            raise PrivacyError(f"strategy is {self.strategy!r}; allowed: 'uedp', 'user_level'")
        if self.clipping not in ("sentence", "user"):
            raise PrivacyError(f"clipping is {self.clipping!r}; allowed: 'sentence', 'user'")
        if not (self.noise_multiplier > 0 and math.isfinite(self.noise_multiplier)):
            raise PrivacyError(f"noise_multiplier is {self.noise_multiplier}; allowed: finite and above 0")
        for name in ("q_u", "q_e", "q_s"):
            rate = getattr(self, name)
            if not 0 < rate <= 1:
                raise PrivacyError(f"{name} is {rate}; allowed: above 0, at most 1")
        if not (self.user_cap >= 1 and math.isfinite(self.user_cap)):
            raise PrivacyError(f"user_cap is {self.user_cap}; allowed: a finite number of at least 1")
        if self.strategy == "user_level" and (self.q_e != 1 or self.q_s != 1):
            raise PrivacyError(f"user_level with q_e {self.q_e} and q_s {self.q_s}; allowed: 1 for both")

    def robust(self) -> RoundEvent:
        """The same round with q_e = 1: its ε also holds for an entity that the detector missed."""
        return replace(self, q_e=1.0)

    @property
    def clips_sentences(self) -> bool:
        """Whether one sentence is known to move the sum by at most c."""
        return self.strategy == "uedp" and self.clipping == "sentence"


def epsilon_curve(event: RoundEvent, adjacency: Adjacency, rounds: Sequence[int], delta: float) -> NDArray[np.float64]:
    """ε after each number of rounds, in the order given; inf where nothing can be proven.

    Args:
        event: what every round releases.
        adjacency: whom ε protects.
        rounds: numbers of rounds, each at least 1.
        delta: δ, in (0, 1).

    Raises:
        PrivacyError: if ``rounds`` or ``delta`` is impossible.
    """
    check_rounds(rounds)
    check_delta(delta)
    wanted = np.unique(np.asarray(rounds, dtype=np.int64))
    tail = composition.tail_share(delta, int(wanted[-1]))
    pairs = [pair for wide in _widened([event], adjacency) for pair in dominating_pairs_for(event, wide, tail)]
    curves = [composition.epsilon_curve(pair, event.noise_multiplier, wanted, delta) for pair in pairs]
    curve = np.min(curves, axis=0)
    return curve[np.searchsorted(wanted, np.asarray(rounds, dtype=np.int64))]


def epsilon(event: RoundEvent, adjacency: Adjacency, rounds: int, delta: float) -> float:
    """ε after ``rounds`` equal rounds at ``delta``; see :func:`epsilon_curve`."""
    return float(epsilon_curve(event, adjacency, [rounds], delta)[0])


def composed_epsilon(events: Mapping[RoundEvent, int], adjacency: Adjacency, delta: float) -> float:
    """ε of rounds that differ from one another, several runs on one corpus for instance; inf where none can be proven.

    Every round is dominated by a pair of its own and the training by the product of the pairs, in whatever order they
    came (docs/privacy.md, section 9). Of several proofs for a kind of round the one that is best by itself is taken.

    Args:
        events: how many rounds there were of each kind; 0 for none.
        adjacency: whom ε protects, the same in all rounds.
        delta: δ, in (0, 1).

    Raises:
        PrivacyError: if a number of rounds or ``delta`` is impossible.
    """
    check_delta(delta)
    kinds = {event: count for event, count in events.items() if count}
    if not kinds:
        return 0.0
    check_rounds([*kinds.values(), sum(kinds.values())])
    if len(kinds) == 1:
        ((event, count),) = kinds.items()
        return epsilon(event, adjacency, count, delta)
    tail = composition.tail_share(delta, sum(kinds.values()))
    return min(
        composition.epsilon_of_parts(
            [_best_part(event, wide, count, delta, tail) for event, count in kinds.items()], delta
        )
        for wide in _widened(kinds, adjacency)
    )


def delta(event: RoundEvent, adjacency: Adjacency, rounds: int, epsilon: float) -> float:
    """δ(ε) after ``rounds`` equal rounds, as an upper bound in both directions.

    Raises:
        PrivacyError: if ``rounds`` is impossible or ``epsilon`` is negative or not finite.
    """
    check_rounds([rounds])
    if not (epsilon >= 0 and math.isfinite(epsilon)):
        raise PrivacyError(f"epsilon is {epsilon}; allowed: a finite number of at least 0")
    tail = composition.tail_share(composition.DELTA_IN_SEARCH, rounds)
    pairs = [pair for wide in _widened([event], adjacency) for pair in dominating_pairs_for(event, wide, tail)]
    return min(composition.delta_at(pair, event.noise_multiplier, rounds, epsilon) for pair in pairs)


def calibrate_noise_multiplier(
    event: RoundEvent, adjacencies: Sequence[Adjacency], rounds: int, delta: float, target_epsilon: float
) -> float:
    """z at which the largest ε over ``adjacencies`` is at most the target and within 0.5 % of it.

    Raises:
        PrivacyError: if the target is impossible, or out of reach of any noise multiplier that is computed.
    """
    return solve("noise_multiplier", event, adjacencies, rounds, delta, target_epsilon)


def solve(
    unknown: Unknown,
    event: RoundEvent,
    adjacencies: Sequence[Adjacency],
    rounds: int,
    delta: float,
    target_epsilon: float,
) -> float:
    """The value of one setting at which ε just stays within the target, everything else as given.

    The smallest noise multiplier, the smallest user cap (z is kept, so the noise z·ŵ·c grows with the cap),
    the largest number of rounds, the largest rate. ε ends within 0.5 % below the target, except where even the
    end of the range stays below it, and for whole rounds.

    Args:
        unknown: what to solve for; the value that ``event`` (or ``rounds``) has for it is ignored.
        event: what every round releases.
        adjacencies: whom ε protects; the largest ε of them counts.
        rounds: number of rounds.
        delta: δ, in (0, 1).
        target_epsilon: finite and above 0.

    Raises:
        PrivacyError: if the target is impossible, or even the safest value exceeds it.
    """
    if not (target_epsilon > 0 and math.isfinite(target_epsilon)):
        raise PrivacyError(f"target_epsilon is {target_epsilon}; allowed: finite and above 0")
    if not any(adjacency.user_sentences or adjacency.entity_bound.total for adjacency in adjacencies):
        raise PrivacyError("target_epsilon without a protected user or entity; allowed: at least one of them")

    def worst(changed: RoundEvent, count: int) -> float:
        return max(epsilon(changed, adjacency, count, delta) for adjacency in adjacencies)

    if unknown == "rounds":
        return calibration.largest_count(lambda count: worst(event, count), MAX_ROUNDS, target_epsilon)
    if unknown not in _SEARCHED:
        raise PrivacyError(f"unknown is {unknown!r}; allowed: 'rounds', {', '.join(map(repr, _SEARCHED))}")
    safest, riskiest = _SEARCHED[unknown]

    def epsilon_at(value: float) -> float:
        changes: dict[str, Any] = {unknown: value}
        return worst(replace(event, **changes), rounds)

    return calibration.bisect_value(epsilon_at, unknown, safest, riskiest, target_epsilon)


def dominating_pairs_for(event: RoundEvent, adjacency: Adjacency, tail: float) -> list[tuple[GaussianMixturePair, ...]]:
    """Every law that is proven to dominate a round and may be the best; each may cut ``tail``."""
    return [round_mixtures(event, adjacency, tail), *hidden_pairs(event, adjacency, tail)]


def hidden_pairs(event: RoundEvent, adjacency: Adjacency, tail: float) -> list[tuple[GaussianMixturePair, ...]]:
    """The law that does not reveal who was sampled (Theorem 2), where it may be the better one; else none."""
    entity_bound = adjacency.entity_bound
    turned = event.q_s * entity_bound.sentences_per_user / event.user_cap
    if event.q_u == 1 or entity_bound.total == 0 or (event.clips_sentences and turned <= _TURNING):
        return []
    user, unit = user_distribution(event, adjacency.user_sentences, tail)
    return [(dominating_pairs.two_sided_mixture(user, entity_bound.users, event.q_u, event.q_e, unit, tail),)]


def _widened(events: Iterable[RoundEvent], adjacency: Adjacency) -> list[Adjacency]:
    """The adjacency, and without its bound on the user where that bound hardly matters.

    Two upper bounds that lie on different grids may come out in the wrong order in their last digits. As ε without
    the bound is valid too, the smaller one is.
    """
    hardly = 0 < adjacency.user_sentences < math.inf and all(
        event.clips_sentences
        and event.q_s < 1
        and bdtr(math.ceil(event.user_cap) - 1, int(adjacency.user_sentences), event.q_s) < _HARDLY
        for event in events
    )
    return [adjacency, replace(adjacency, user_sentences=math.inf)] if hardly else [adjacency]


def _best_part(event: RoundEvent, adjacency: Adjacency, count: int, delta: float, tail: float) -> composition.Part:
    """``count`` equal rounds under the law that gives them the smallest ε by themselves."""
    pairs = dominating_pairs_for(event, adjacency, tail)
    alone = [composition.epsilon_curve(pair, event.noise_multiplier, np.array([count]), delta)[0] for pair in pairs]
    return composition.Part(pairs[int(np.argmin(alone))], event.noise_multiplier, count)


def round_mixtures(event: RoundEvent, adjacency: Adjacency, tail: float) -> tuple[GaussianMixturePair, ...]:
    """The law of the round's shift at the worst exposure of the adjacency; each law may cut ``tail``."""
    exposure = dominating_pairs.exposure_from_bound(adjacency.entity_bound, event.q_u, tail)
    return dominating_pairs_of(event, adjacency.user_sentences, exposure, tail)


def dominating_pairs_of(
    event: RoundEvent, user_sentences: float, exposure: dominating_pairs.Exposure, tail: float
) -> tuple[GaussianMixturePair, ...]:
    """The law of the round's shift for an explicit exposure, an entity's own profile for instance."""
    user, unit = user_distribution(event, user_sentences, tail)
    entity = [
        entity_distribution(event, int(users), int(sentences), tail)
        for users, sentences in zip(exposure.users, exposure.sentences, strict=True)
    ]
    return dominating_pairs.mixtures(user, entity, exposure.probabilities, unit, tail)


def entity_distribution(event: RoundEvent, users: int, sentences: int, tail: float) -> dominating_pairs.Distribution:
    """The law of the protected entity's share, given how many of its users were sampled, with how many sentences."""
    if event.clips_sentences:
        return dominating_pairs.entity_shift(event.q_e, event.q_s, sentences, 2 * event.user_cap * users, tail)
    return dominating_pairs.entity_shift(event.q_e, 1.0, 2 * min(users, sentences), math.inf, tail)


def user_distribution(
    event: RoundEvent, user_sentences: float, tail: float
) -> tuple[dominating_pairs.Distribution, float]:
    """The law of the protected user's own share, and what a full user counts in it."""
    if event.clips_sentences:
        return dominating_pairs.user_shift(event.q_u, event.q_s, user_sentences, event.user_cap, tail), event.user_cap
    sentences = math.inf if user_sentences else 0.0
    return dominating_pairs.user_shift(event.q_u, 1.0, sentences, 1.0, tail), 1.0


def check_delta(delta: float) -> None:
    """Raises PrivacyError unless δ lies between 0 and 1."""
    if not 0 < delta < 1:
        raise PrivacyError(f"delta is {delta}; allowed: between 0 and 1, both excluded")


def check_rounds(rounds: Sequence[int]) -> None:
    """Raises PrivacyError unless there are numbers of rounds, all whole and in range."""
    if not len(rounds):
        raise PrivacyError("rounds is empty; allowed: at least one number of rounds")
    for count in rounds:
        if count != int(count) or not 1 <= count <= MAX_ROUNDS:
            raise PrivacyError(f"rounds is {count}; allowed: an integer from 1 to {MAX_ROUNDS}")
