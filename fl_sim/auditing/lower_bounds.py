"""From an attack's scores to a lower bound on ε that holds with a stated confidence.

The attack scores N independent outputs on either of two adjacent corpora; a high score speaks for the one that holds
the protected data (*with*), a low one for the one that does not (*without*). An event S about one output (score above
a threshold, or below it) must satisfy, if the mechanism is (ε, δ)-DP,

    P[S | one corpus] ≤ e^ε · P[S | other corpus] + δ.

The event is chosen on the first half of the outputs and its probabilities are estimated on the second, each by an
exact Clopper–Pearson bound at half of the allowed failure probability. So every bound here fails with probability at
most 1 − confidence, however the scores were made and whatever the event (Jagielski et al. 2020; Nasr et al. 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from fl_sim.strategies.accounting.adjacency import PrivacyError

Floats = NDArray[np.float64]
Objective = Callable[[Floats, Floats], Floats]

_THRESHOLDS_PER_TAIL = 150
_LARGEST_EPSILON = 1e6


@dataclass(frozen=True, slots=True)
class Scores:
    """What the attack says about N outputs on either corpus, in the order in which they were drawn.

    Attributes:
        without: scores on the corpus without the protected data, (N,).
        present: scores on the corpus with it, (N,).

    Raises:
        PrivacyError: for fewer than four scores, unequal numbers, or a score that is not a number.
    """

    without: Floats
    present: Floats

    def __post_init__(self) -> None:
        if len(self.without) != len(self.present) or len(self.without) < 4:
            raise PrivacyError(
                f"scores are {len(self.without)} without and {len(self.present)} with the protected data; "
                "allowed: equally many, at least 4"
            )
        if np.isnan(self.without).any() or np.isnan(self.present).any():
            raise PrivacyError("a score is not a number; allowed: numbers and infinities")

    def halves(self) -> tuple[Scores, Scores]:
        """The first half, on which an event may be chosen, and the second, on which it is judged."""
        middle = len(self.without) // 2
        first = Scores(self.without[:middle], self.present[:middle])
        return first, Scores(self.without[middle:], self.present[middle:])


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound on ε at ``delta``, with the event that it rests on.

    Attributes:
        epsilon: at least 0; it holds with the confidence asked for.
        delta: the δ it is stated at.
        likely: lower bound on the event's probability on the corpus that makes it likely.
        unlikely: upper bound on its probability on the other one.
    """

    epsilon: float
    delta: float
    likely: float
    unlikely: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a whole claimed curve δ ↦ ε looks like against the scores: the pair that fared worst.

    Attributes:
        delta, claimed: the claim (ε ``claimed`` at ``delta``) that was chosen to be judged.
        epsilon: lower bound on ε at that δ.
    """

    delta: float
    claimed: float
    epsilon: float

    @property
    def refuted(self) -> bool:
        """Whether the claim cannot hold, at the confidence of the bound."""
        return self.epsilon > self.claimed


def epsilon_lower_bound(scores: Scores, delta: float, confidence: float) -> Bound:
    """The Clopper–Pearson bound ε ≥ ln((P[S | likely] − δ) / P[S | unlikely]), for any mechanism.

    With N outputs it never exceeds about ln(N / 2 / ln(2 / (1 − confidence))), however leaky the mechanism.
    """
    likely, unlikely = _judged(scores, confidence, lambda high, low: _log_ratio(high, low, delta))
    epsilon = float(_log_ratio(np.array([likely]), np.array([unlikely]), delta)[0])
    return Bound(max(epsilon, 0.0), delta, likely, unlikely)


def gaussian_lower_bound(scores: Scores, delta: float, confidence: float) -> Bound:
    """The bound for a mechanism whose trade-off curve is a Gaussian's (Nasr et al. 2023, section 4).

    Every event of a μ-GDP mechanism satisfies Φ⁻¹(P[S | one]) − Φ⁻¹(P[S | other]) ≤ μ, so the event bounds μ from
    below, and with it ε at any δ (Dong, Roth, Su 2022, corollary 2.13). Only for mechanisms that add Gaussian noise
    to one of two fixed values (no coin decides the shift): elsewhere a curve that crosses a Gaussian's in one point
    need not stay above it.
    """
    likely, unlikely = _judged(scores, confidence, _probit_difference)
    mu = float(_probit_difference(np.array([likely]), np.array([unlikely]))[0])
    return Bound(gaussian_epsilon(max(mu, 0.0), delta), delta, likely, unlikely)


def noise_at_most(
    scores: Scores, claims_at: Callable[[float], Sequence[tuple[float, float]]], claimed: float, confidence: float
) -> float:
    """The smallest noise multiplier at which an accountant's curve is refuted: the true one is below it.

    The event that refutes most on the first half is held, on the second, against the curve of every noise
    multiplier; one event, so the search costs no confidence. This is how tight an audit is: where a mechanism is as
    noisy as claimed, the result is as close above the claim as the proof and the number of trials let it be. It
    takes for granted that nothing but the noise is in question.

    Args:
        scores: of the attack.
        claims_at: the pairs (δ, ε) that the accountant claims at a noise multiplier; ε falls with it.
        claimed: the noise multiplier that is claimed; the search goes from half of it to four times it.
        confidence: of the result; inf where not even the upper end is refuted.
    """
    first, second = scores.halves()
    failure = (1 - confidence) / 2
    high, low, events = _candidates(first, failure)
    lower, upper = claimed / 2, claimed * 4

    def smallest(likely: Floats, unlikely: Floats) -> float:
        return _smallest_refuted(lambda z: bool(_refutes(likely, unlikely, claims_at(z)).any()), lower, upper)

    best = _refutes(high, low, claims_at(min(smallest(high, low), upper))).argmax()
    likely, unlikely = _probabilities(second, *events[int(best)], failure)
    return smallest(np.array([likely]), np.array([unlikely]))


def _smallest_refuted(refuted: Callable[[float], bool], lower: float, upper: float) -> float:
    """The smallest refuted value within 1 %, where all above a refuted one are refuted, too; inf if none is."""
    if not refuted(upper):
        return math.inf
    while upper > lower * 1.01:
        middle = math.sqrt(lower * upper)
        lower, upper = (lower, middle) if refuted(middle) else (middle, upper)
    return upper


def judge_claims(scores: Scores, claims: Sequence[tuple[float, float]], confidence: float) -> Verdict:
    """Hold a whole curve of claims (δ, ε) against the scores; an accountant claims them all at once.

    Some bugs show at one δ only. The claim that fares worst on the first half is the one judged on the second, so
    that looking at many costs no confidence.

    Raises:
        PrivacyError: if there is no claim.
    """
    if not claims:
        raise PrivacyError("claims is empty; allowed: at least one pair of δ and ε")
    first, second = scores.halves()
    failure = (1 - confidence) / 2
    high, low, events = _candidates(first, failure)
    margins = np.stack([_log_ratio(high, low, delta) - epsilon for delta, epsilon in claims])
    claim, event = np.unravel_index(int(np.nanargmax(margins)), margins.shape)
    delta, claimed = claims[int(claim)]
    likely, unlikely = _probabilities(second, *events[int(event)], failure)
    bound = float(_log_ratio(np.array([likely]), np.array([unlikely]), delta)[0])
    return Verdict(delta, claimed, max(bound, 0.0))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """ε at which a μ-GDP mechanism has δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2) equal to ``delta``."""
    if mu <= 0:
        return 0.0

    def excess(epsilon: float) -> float:
        tail = math.exp(min(epsilon + float(stats.norm.logcdf(-epsilon / mu - mu / 2)), 0.0))
        return float(stats.norm.cdf(-epsilon / mu + mu / 2)) - tail - delta

    if excess(0.0) <= 0:
        return 0.0
    return float(optimize.brentq(excess, 0.0, mu * mu / 2 + mu * float(stats.norm.isf(delta)) + 1.0))


def one_run_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """How likely at most ``guesses`` guesses are ``correct`` times right if the training is (ε, δ)-DP.

    Theorem 5.2 of Steinke, Nasr and Jagielski 2023 (arXiv 2305.08846), with canaries that are in or out by
    independent fair coins: with W ~ Binomial(guesses, e^ε / (1 + e^ε)) it is at most
    P[W ≥ correct] + 2·canaries·δ·max_i P[correct > W ≥ correct − i] / i.
    """
    distribution = stats.binom(guesses, 1 / (1 + math.exp(-epsilon)))
    if correct == 0:
        return 1.0
    steps = np.arange(1, correct + 1)
    below = np.cumsum(distribution.pmf(correct - steps))
    return float(min(1.0, distribution.sf(correct - 1) + 2 * canaries * delta * (below / steps).max()))


def one_run_lower_bound(
    included: NDArray[np.bool_], scores: Floats, delta: float, confidence: float, shares: Sequence[float]
) -> float:
    """Lower bound on ε from the scores of canaries in a single training.

    The canaries with the highest scores are guessed to be in, as many with the lowest to be out, the rest is left
    open. Every share in ``shares`` (of the canaries that are guessed) is tried at an equal part of the failure
    probability.

    Args:
        included: which canaries an independent fair coin put into the corpus, bool (m,).
        scores: how much the training looks as if each were in it, (m,).
        delta: δ.
        confidence: of the result.
        shares: shares of the canaries to guess, in (0, 1].
    """
    if len(included) != len(scores) or len(included) < 2:
        raise PrivacyError(f"canaries are {len(included)} with {len(scores)} scores; allowed: a score each, at least 2")
    order = np.argsort(scores, kind="stable")
    failure = (1 - confidence) / len(shares)
    best = 0.0
    for share in shares:
        side = max(1, int(share * len(scores) / 2))
        correct = int((~included[order[:side]]).sum() + included[order[-side:]].sum())
        best = max(best, _one_run_epsilon(len(scores), 2 * side, correct, delta, failure))
    return best


def _one_run_epsilon(canaries: int, guesses: int, correct: int, delta: float, failure: float) -> float:
    """The largest ε (to 1e-6) that is refuted at the failure probability; 0 if none is."""

    def refuted(epsilon: float) -> bool:
        return one_run_p_value(canaries, guesses, correct, epsilon, delta) < failure

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high) and high < _LARGEST_EPSILON:
        low, high = high, 2 * high
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _judged(scores: Scores, confidence: float, objective: Objective) -> tuple[float, float]:
    """Choose the event with the best objective on the first half; its probabilities' bounds on the second."""
    if not 0 < confidence < 1:
        raise PrivacyError(f"confidence is {confidence}; allowed: between 0 and 1, both excluded")
    first, second = scores.halves()
    failure = (1 - confidence) / 2
    high, low, events = _candidates(first, failure)
    best = int(np.nanargmax(objective(high, low)))
    return _probabilities(second, *events[best], failure)


def _candidates(scores: Scores, failure: float) -> tuple[Floats, Floats, list[tuple[float, bool]]]:
    """Events (threshold, whether above it) with the bounds on their probabilities, likely and unlikely."""
    pooled = np.sort(np.concatenate([scores.without, scores.present]))
    from_end = np.unique(np.geomspace(1, len(pooled), _THRESHOLDS_PER_TAIL).astype(int)) - 1
    thresholds = np.unique(np.concatenate([pooled[from_end], pooled[-1 - from_end]]))
    n = len(scores.without)
    without, present = np.sort(scores.without), np.sort(scores.present)
    above_without = n - np.searchsorted(without, thresholds, side="left")
    above_present = n - np.searchsorted(present, thresholds, side="left")
    high = [lower_limit(above_present, n, failure), lower_limit(n - above_without, n, failure)]
    low = [upper_limit(above_without, n, failure), upper_limit(n - above_present, n, failure)]
    events = [(float(t), True) for t in thresholds] + [(float(t), False) for t in thresholds]
    return np.concatenate(high), np.concatenate(low), events


def _probabilities(scores: Scores, threshold: float, above: bool, failure: float) -> tuple[float, float]:
    """Bounds on the event's probability where it is likely (from below) and where it is not (from above)."""
    n = len(scores.without)
    if above:
        likely, unlikely = (scores.present >= threshold).sum(), (scores.without >= threshold).sum()
    else:
        likely, unlikely = (scores.without < threshold).sum(), (scores.present < threshold).sum()
    low = lower_limit(np.array([likely]), n, failure)
    return float(low[0]), float(upper_limit(np.array([unlikely]), n, failure)[0])


def upper_limit(hits: NDArray[np.int64], trials: int, failure: float) -> Floats:
    """Clopper–Pearson: a probability that the true one exceeds with probability at most ``failure``."""
    limit = stats.beta.ppf(1 - failure, hits + 1, np.maximum(trials - hits, 1))
    return np.where(hits == trials, 1.0, limit)


def lower_limit(hits: NDArray[np.int64], trials: int, failure: float) -> Floats:
    """Clopper–Pearson: a probability that the true one falls short of with probability at most ``failure``."""
    limit = stats.beta.ppf(failure, np.maximum(hits, 1), trials - hits + 1)
    return np.where(hits == 0, 0.0, limit)


def _log_ratio(likely: Floats, unlikely: Floats, delta: float) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(likely > delta, np.log(np.maximum(likely - delta, 0.0) / unlikely), -np.inf)


def _refutes(likely: Floats, unlikely: Floats, claims: Sequence[tuple[float, float]]) -> NDArray[np.bool_]:
    """Which events refute at least one of the claims (δ, ε)."""
    return np.any([_log_ratio(likely, unlikely, delta) > epsilon for delta, epsilon in claims], axis=0)


def _probit_difference(likely: Floats, unlikely: Floats) -> Floats:
    return np.where(likely > unlikely, stats.norm.ppf(likely) - stats.norm.ppf(unlikely), -np.inf)
