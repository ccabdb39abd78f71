"""Account for the privacy loss of training: events, and the ε proven for them.

A :class:`RoundEvent` describes one round by the settings that its ε depends on. Every figure is an upper bound,
rounding included; guarantee, assumptions and proofs are in docs/privacy.md.

>>> event = RoundEvent("uedp", noise_multiplier=1.0, q_u=0.05, q_e=0.5, user_cap=15)
>>> round(epsilon(event, Adjacency(), rounds=50, delta=1e-5), 2)
2.67
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, pdtr

from fl_sim.strategies.accounting import calibration, random_allocation
from fl_sim.strategies.accounting.adjacency import Adjacency, PrivacyError
from fl_sim.strategies.accounting.losses import composition, dominating_pairs
from fl_sim.strategies.accounting.losses.privacy_loss import Floats, GaussianMixturePair
from fl_sim.strategies.accounting.random_allocation import EpochEvent
from fl_sim.strategies.primitives.limits import check_delta, check_rate, require

Strategy = Literal["uedp", "user_level"]
Clipping = Literal["sentence", "user"]
_SAMPLES_TEXT: dict[str, bool] = {"uedp": True, "user_level": False}
"""The two kinds of event: whether entities and sentences are sampled, and sentences may be clipped."""
Unknown = Literal["noise_multiplier", "rounds", "q_u", "q_s", "user_cap"]

MAX_ROUNDS = 10_000_000
_HARDLY = 1e-3  # probability that a sampled user has fewer active sentences than its cap
_COMPARED = 4  # nested selections of kinds of rounds that are composed, so that more rounds never seem to cost less
_TURNING = 0.25  # Theorem 2 is tried only if an entity can move a user's update by more than this share of its clip
_SEARCHED: dict[str, tuple[float, float]] = {  # safest and riskiest value
    "noise_multiplier": (1e5, 1e-2),
    "q_u": (1e-7, 1.0),
    "q_s": (1e-7, 1.0),
    "user_cap": (1e6, 1.0),
}


@dataclass(frozen=True, slots=True)
class RoundEvent:
    """Describe one round: it releases Σ of clipped client updates plus Gaussian noise of standard deviation z·β.

    Attributes:
        strategy: ``uedp`` (samples users, entities and sentences) or ``user_level`` (DP-FedAvg: samples users, clips
            users only).
        noise_multiplier: z > 0.
        q_u: probability with which each user is included.
        q_e: probability with which each entity is included, for all users at once; 1 for ``user_level``.
        q_s: probability with which each sentence is included; 1 for ``user_level``.
        user_cap: ŵ ≥ 1, the user clip counted in sentence clips: β = ŵ·c.
        clipping: ``sentence`` if each sentence's gradient is clipped to c and the user's sum to β; ``user`` if only
            the update is clipped to β, as ``user_level`` always does.
        epoch_rounds: t of random allocation: each user takes part in one of every t rounds, and q_u is 1/t; None for
            users who are included independently in every round. Only ``user_level`` has it.

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
    epoch_rounds: int | None = None

    def __post_init__(self) -> None:
        require(self.strategy in _SAMPLES_TEXT, "strategy", repr(self.strategy), "'uedp', 'user_level'")
        require(self.clipping in ("sentence", "user"), "clipping", repr(self.clipping), "'sentence', 'user'")
        z, cap = self.noise_multiplier, self.user_cap
        require(0 < z < math.inf, "noise_multiplier", z, "finite and above 0")
        for name in ("q_u", "q_e", "q_s"):
            check_rate(name, getattr(self, name))
        require(1 <= cap < math.inf, "user_cap", cap, "a finite number of at least 1")
        if not _SAMPLES_TEXT[self.strategy] and (self.q_e != 1 or self.q_s != 1):
            raise PrivacyError(f"{self.strategy} with q_e {self.q_e} and q_s {self.q_s}; allowed: 1 for both")
        if self.epoch_rounds is not None:
            random_allocation.check_epoch(self.epoch_rounds, self.q_u, self.strategy)

    def robust(self) -> RoundEvent:
        """Return the same round with q_e = 1: its ε also holds for an entity that the detector missed."""
        return replace(self, q_e=1.0)

    @property
    def clips_sentences(self) -> bool:
        """Tell whether one sentence moves the sum by at most c."""
        return _SAMPLES_TEXT[self.strategy] and self.clipping == "sentence"


def epsilon_curve(event: RoundEvent, adjacency: Adjacency, rounds: Sequence[int], delta: float) -> NDArray[np.float64]:
    """Return ε after each number of rounds, float64 (len(rounds),), in the order given; inf where none is provable.

    Raises:
        PrivacyError: if a number of rounds or ``delta`` is impossible.
    """
    check_rounds(rounds)
    check_delta(delta)
    distinct, places = np.unique(np.asarray(rounds, dtype=np.int64), return_inverse=True)
    return _curve(event, adjacency, tuple(distinct.tolist()), delta)[places]


@functools.lru_cache(maxsize=1024)  # a run's plan, its ledger's check, its report and its card ask for the same ε
def _curve(event: RoundEvent, adjacency: Adjacency, rounds: tuple[int, ...], delta: float) -> NDArray[np.float64]:
    """Return :func:`epsilon_curve` after ``rounds``, which ascend; the array is shared, so it must not be changed."""
    if event.epoch_rounds is not None:
        return random_allocation.epsilon_curve(event.noise_multiplier, event.epoch_rounds, adjacency, rounds, delta)
    tail = composition.tail_share(delta, rounds[-1])
    pairs = [pair for wide in _widened(event, adjacency) for pair in dominating_pairs_for(event, wide, tail)]
    counts = np.array(rounds)
    curves = [composition.epsilon_curve(pair, event.noise_multiplier, counts, delta) for pair in pairs]
    return np.min(curves, axis=0)


def epsilon(event: RoundEvent, adjacency: Adjacency, rounds: int, delta: float) -> float:
    """Return ε after ``rounds`` equal rounds at ``delta``; see :func:`epsilon_curve`."""
    return float(epsilon_curve(event, adjacency, [rounds], delta)[0])


Part = tuple[RoundEvent | EpochEvent, Adjacency, int]
"""Equal rounds (or epochs of random allocation): their event, how the two corpora differ in them, and their number."""


def composed_epsilon(parts: Iterable[Part], delta: float) -> float:
    """Return ε of rounds of several kinds, of several runs on one corpus for instance; inf where none is provable.

    The product of the rounds' dominating pairs dominates the training (docs/privacy-accounting.md, section 9). Each
    kind has its own adjacency. Of several proofs for a kind, the one with the smallest ε of its own is used; ε is never
    below that of a kind alone.

    Args:
        parts: the kinds of rounds and their numbers, 0 included; equal kinds are added. Under random allocation also
            epochs.
        delta: δ, in (0, 1).

    Raises:
        PrivacyError: if a number of rounds or ``delta`` is impossible.
    """
    check_delta(delta)
    counted = _counted(parts)
    if not counted:
        return 0.0
    check_rounds([*(count for _, _, count in counted), _rounds(counted)])
    return _composed(tuple(counted), delta)


@functools.lru_cache(maxsize=1024)
def _composed(counted: tuple[Part, ...], delta: float) -> float:
    """Return :func:`composed_epsilon` of different kinds of rounds, each at least once."""
    tail = composition.tail_share(delta, _rounds(counted))
    epochs = {kind: count for kind, _, count in counted if isinstance(kind, EpochEvent)}
    adjacencies = {adjacency for _, adjacency, _ in counted}
    if (
        len(epochs) == len(counted)
        and len(adjacencies) == len({(e.noise_multiplier, e.epoch_rounds) for e in epochs}) == 1
    ):
        return random_allocation.composed(epochs, adjacencies.pop(), delta, tail)
    alone = [_epsilon_alone(part, delta, tail) for part in counted]
    if len(counted) == 1:
        return alone[0]
    largest_first = [counted[index] for index in np.argsort(alone)[::-1]]
    together = []
    for size in range(max(2, len(counted) - _COMPARED + 1), len(counted) + 1):
        parts = largest_first[:size]
        choices = _dominating_parts(parts, delta, composition.tail_share(delta, _rounds(parts)))
        together.append(min(composition.epsilon_of_parts(choice, delta) for choice in choices))
    return max([*alone, *together])  # grids of their own may put upper bounds in the wrong order in their last digits


def _rounds(parts: Iterable[Part]) -> int:
    return sum(count * (kind.rounds if isinstance(kind, EpochEvent) else 1) for kind, _, count in parts)


def _counted(parts: Iterable[Part]) -> list[Part]:
    """Return the kinds that occur, each once; rounds of random allocation as epochs that begin with the first one."""
    kinds: Counter[tuple[RoundEvent | EpochEvent, Adjacency]] = Counter()
    for event, adjacency, count in parts:
        if isinstance(event, RoundEvent) and event.epoch_rounds is not None:
            for epoch, number in random_allocation.epochs(event.noise_multiplier, event.epoch_rounds, count).items():
                kinds[epoch, adjacency] += number
        else:
            kinds[event, adjacency] += count
    return [(event, adjacency, count) for (event, adjacency), count in kinds.items() if count]


def _epsilon_alone(part: Part, delta: float, tail: float) -> float:
    event, adjacency, count = part
    if isinstance(event, EpochEvent):
        return random_allocation.composed({event: count}, adjacency, delta, tail)
    return epsilon(event, adjacency, count, delta)


def _dominating_parts(
    parts: Sequence[Part], delta: float, tail: float
) -> list[list[composition.Part | composition.AtomPart]]:
    """Return the dominating pairs of several kinds of rounds; twice if no bound on the user matters, then without."""
    widened = [_widened(event, adjacency) for event, adjacency, _ in parts]
    choices = [[wide[0] for wide in widened]]
    if all(len(wide) > 1 for wide in widened):
        choices.append([wide[-1] for wide in widened])
    return [
        [
            _best_part(event, adjacency, count, delta, tail)
            for (event, _, count), adjacency in zip(parts, adjacencies, strict=True)
        ]
        for adjacencies in choices
    ]


def delta(event: RoundEvent, adjacency: Adjacency, rounds: int, epsilon: float) -> float:
    """Return an upper bound on δ(ε) after ``rounds`` equal rounds, the larger of both directions.

    Raises:
        PrivacyError: if ``rounds`` is impossible or ``epsilon`` is negative or not finite.
    """
    check_rounds([rounds])
    require(0 <= epsilon < math.inf, "epsilon", epsilon, "a finite number of at least 0")
    if event.epoch_rounds is not None:
        return random_allocation.delta_of(event.noise_multiplier, event.epoch_rounds, adjacency, rounds, epsilon)
    tail = composition.tail_share(composition.DELTA_IN_SEARCH, rounds)
    pairs = [pair for wide in _widened(event, adjacency) for pair in dominating_pairs_for(event, wide, tail)]
    return min(composition.delta_at(pair, event.noise_multiplier, rounds, epsilon) for pair in pairs)


def solve(
    unknown: Unknown,
    event: RoundEvent,
    adjacencies: Sequence[Adjacency],
    rounds: int,
    delta: float,
    target_epsilon: float,
) -> float:
    """Return the value of one setting at which ε just meets the target, all other settings as given.

    That is the smallest noise multiplier, the smallest user cap (z is kept, so the noise z·ŵ·c grows with the cap), the
    largest number of rounds or the largest rate; a larger q_s or smaller cap may meet it, too, where
    :func:`hidden_pairs` are tried. ε, the largest over ``adjacencies``, lies within 0.5 % below the
    target, unless even the end of the range stays below it, or rounds are solved for, which are whole. The value of
    ``unknown`` in ``event`` (or ``rounds``) is ignored.

    Raises:
        PrivacyError: if the target is impossible, or even the safest value exceeds it.
    """
    require(0 < target_epsilon < math.inf, "target_epsilon", target_epsilon, "finite and above 0")
    if not any(adjacency.user_sentences or adjacency.entity_bound.total for adjacency in adjacencies):
        raise PrivacyError("target_epsilon without a protected user or entity; allowed: at least one of them")

    def worst(changed: RoundEvent, count: int) -> float:
        return max(epsilon(changed, adjacency, count, delta) for adjacency in adjacencies)

    if unknown == "rounds":
        return calibration.largest_count(lambda count: worst(event, count), MAX_ROUNDS, target_epsilon)
    require(unknown in _SEARCHED, "unknown", repr(unknown), f"'rounds', {', '.join(map(repr, _SEARCHED))}")
    poisson = unknown != "q_u" or event.epoch_rounds is None
    require(poisson, "unknown", repr(unknown), "'noise_multiplier' or 'rounds' under random allocation")
    safest, riskiest = _SEARCHED[unknown]

    def epsilon_at(value: float) -> float:
        changes: dict[str, Any] = {unknown: value}
        return worst(replace(event, **changes), rounds)

    return calibration.bisect_value(epsilon_at, unknown, safest, riskiest, target_epsilon)


def dominating_pairs_for(event: RoundEvent, adjacency: Adjacency, tail: float) -> list[tuple[GaussianMixturePair, ...]]:
    """Return the dominating pairs of a round that may give the smallest ε; each truncation may cut off ``tail``."""
    exposure = dominating_pairs.exposure_from_bound(adjacency.entity_bound, event.q_u, tail)  # the worst (Theorem 1)
    revealed = dominating_pairs_of(event, adjacency, exposure, tail)
    return [revealed, *hidden_pairs(event, adjacency, tail)]


def hidden_pairs(event: RoundEvent, adjacency: Adjacency, tail: float) -> list[tuple[GaussianMixturePair, ...]]:
    """Return the pair that does not reveal the sampled users (Theorem 2) where it may be better; else an empty list."""
    entity_bound = adjacency.entity_bound
    of_one_user = min(entity_bound.sentences_per_user, entity_bound.total_weight)
    turned = event.q_s * of_one_user / event.user_cap
    if event.q_u == 1 or entity_bound.total == 0 or (event.clips_sentences and turned <= _TURNING):
        return []
    user, unit = user_distribution(event, adjacency, tail)
    return [(dominating_pairs.two_sided_mixture(user, entity_bound.users, event.q_u, event.q_e, unit, tail),)]


def _widened(event: RoundEvent | EpochEvent, adjacency: Adjacency) -> list[Adjacency]:
    """Return the adjacency, and also without its bound on the user if that bound hardly matters.

    Rounding may put two upper bounds computed on different grids in the wrong order in their last digits. ε without the
    bound on the user is valid too, so the smaller of the two is.
    """
    hardly = (
        0 < adjacency.user_sentences < math.inf
        and isinstance(event, RoundEvent)
        and event.clips_sentences
        and event.q_s < 1
        and _probability_of_fewer(math.ceil(event.user_cap), event.q_s, adjacency) < _HARDLY
    )
    return [adjacency, replace(adjacency, user_sentences=math.inf)] if hardly else [adjacency]


def _probability_of_fewer(sentences: int, q_s: float, adjacency: Adjacency) -> float:
    """Return about the probability that the protected user has fewer active sentences than ``sentences``."""
    n = adjacency.user_sentences
    return float(pdtr(sentences - 1, n * q_s) if adjacency.weighted else bdtr(sentences - 1, int(n), q_s))


def _best_part(
    event: RoundEvent | EpochEvent, adjacency: Adjacency, count: int, delta: float, tail: float
) -> composition.Part | composition.AtomPart:
    """Return ``count`` equal rounds with the dominating pair that gives them the smallest ε by themselves."""
    if isinstance(event, EpochEvent):
        return random_allocation.part(event, adjacency, count, tail)
    pairs = dominating_pairs_for(event, adjacency, tail)
    best = 0
    if len(pairs) > 1:
        counts = np.array([count])
        best = int(np.argmin([composition.epsilon_curve(one, event.noise_multiplier, counts, delta) for one in pairs]))
    return composition.Part(pairs[best], event.noise_multiplier, count)


def dominating_pairs_of(
    event: RoundEvent,
    user: Adjacency,
    exposure: dominating_pairs.Exposure,
    tail: float,
) -> tuple[GaussianMixturePair, ...]:
    """Return the dominating pair of a round for an explicit exposure, from an entity's own profile for instance.

    What ``user`` says of an entity is not read; ``tail`` is the probability mass that each truncation may cut off.
    """
    of_user, unit = user_distribution(event, user, tail)
    unlisted = None if exposure.cut is None else exposure.cut / float(exposure.probabilities.sum())
    weights = exposure.sentences if exposure.weights is None else exposure.weights
    result = []
    for case, probability in enumerate(exposure.probabilities.tolist()):
        users, sentences, weight = int(exposure.users[case]), int(exposure.sentences[case]), float(weights[case])
        entity = entity_distribution(event, users, sentences, tail, weight)
        result.append(dominating_pairs.mixture(of_user, entity, probability, unit, tail, unlisted))
    return tuple(result)


def entity_distribution(
    event: RoundEvent, users: int, sentences: int, tail: float, weight: float | None = None
) -> dominating_pairs.Distribution:
    """Return the distribution of the entity's shift, given its sampled users and their sentences that mention it.

    ``weight`` bounds the sum of these sentences' weights, all 1 by default.
    """
    if not event.clips_sentences:
        cap = 2.0 * min(users, sentences)
        return dominating_pairs.entity_shift(event.q_e, dominating_pairs.constant(cap), cap)
    mean = event.q_s * (sentences if weight is None else weight)
    active = dominating_pairs.active_sentences(sentences, event.q_s, mean, tail)
    return dominating_pairs.entity_shift(event.q_e, active, 2 * event.user_cap * users)


def user_distribution(event: RoundEvent, user: Adjacency, tail: float) -> tuple[dominating_pairs.Distribution, float]:
    """Return the distribution of the protected user's own shift, and the shift that equals one user clip β.

    Raises:
        PrivacyError: under random allocation, whose rounds have no dominating pairs of their own.
    """
    if event.epoch_rounds is not None:
        raise PrivacyError(f"epoch_rounds is {event.epoch_rounds}; allowed: none, where ε is computed round by round")
    n = user.user_sentences
    if event.clips_sentences:
        shift = dominating_pairs.user_shift(event.q_u, event.q_s, n, event.user_cap, tail, weighted=user.weighted)
        return shift, event.user_cap
    sentences = math.inf if n else 0.0
    return dominating_pairs.user_shift(event.q_u, 1.0, sentences, 1.0, tail), 1.0


def check_rounds(rounds: Sequence[float]) -> None:
    """Raise PrivacyError unless ``rounds`` is not empty and all its numbers are whole and in range."""
    require(len(rounds) > 0, "rounds", "empty", "at least one number of rounds")
    for count in rounds:
        in_range = 1 <= count <= MAX_ROUNDS and count == int(count)
        require(in_range, "rounds", count, f"an integer from 1 to {MAX_ROUNDS}")


MOST_COMPOSED = 8
"""Numbers of further rounds for which ε is computed, at most; between two of them the later, larger one holds."""


def continued_epsilon_curve(
    earlier: Sequence[Part], event: RoundEvent, adjacency: Adjacency, rounds: Sequence[int], delta: float
) -> Floats:
    """Return ε of ``earlier`` and each number of further rounds, float64 (len(rounds),); inf where none is provable.

    A run that starts from a privately trained model releases its rounds after those of the earlier training, of one run
    or of several. Each further round has the ``event`` and the ``adjacency``.

    Raises:
        PrivacyError: a number of rounds or ``delta`` is impossible.
    """
    if not earlier:
        return epsilon_curve(event, adjacency, rounds, delta)
    check_rounds(rounds)
    wanted = np.asarray(rounds, dtype=np.int64)
    distinct = np.unique(wanted)
    positions = np.unique(np.linspace(0, len(distinct) - 1, min(len(distinct), MOST_COMPOSED)).round().astype(np.int64))
    computed = distinct[positions]
    curve = [composed_epsilon([*earlier, (event, adjacency, int(count))], delta) for count in computed]
    # Fewer rounds are a part of what more rounds release.
    monotone = np.minimum.accumulate(np.array(curve)[::-1])[::-1]
    return np.asarray(monotone[np.searchsorted(computed, wanted)])
