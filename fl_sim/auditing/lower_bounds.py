"""Compute lower bounds on ε from the scores of an attack, with a stated confidence.

The attack scores N independent outputs on either of two adjacent corpora; a high score indicates the corpus that holds
the protected data (*with*), a low one the corpus that does not (*without*). An event S about one output (score above a
threshold, or below it) must satisfy, if the mechanism is (ε, δ)-DP,

    P[S | one corpus] ≤ e^ε · P[S | other corpus] + δ.

The event is chosen on the first half of the outputs. Its probabilities are estimated on the second half, each by an
exact Clopper–Pearson bound at half of the allowed failure probability. So every bound fails with probability at most
1 − confidence, for any scores and any event (Jagielski et al. 2020; Nasr et al. 2023).

One training with many canaries: m canaries are included independently with probability ½. The attacker guesses about c
of them; C guesses are right. Let f be the trade-off curve of including one canary, F(w) = 1 − f(w), and p_j = P[C = j].
For every i

    Σ_{j ≥ i} (j/m) p_j  ≤  F( Σ_{j ≥ i−1} ((c − j)/m) p_j )

(Mahloujifar, Melis, Chaudhuri 2024, arXiv 2410.22235): if one bit is flipped, a right guess is a wrong one, and the
number of the other right guesses is the same; F is concave, so the bound survives the mean over canaries. Only a small
P[C ≥ v] satisfies all these inequalities and Σ p_j = 1; it bounds the p-value of v right guesses.

Write s_i = Σ_{j ≥ i} (c/m) p_j and u_i = Σ_{j ≥ i} ((j − i)/m) p_j. Both grow in p, and
u_{i−1} = u_i + s_i/c, s_{i−1} ≥ s_i + (c/(c−i+1)) (F⁻¹(r_i) + r_i − s_i)⁺ with r_i = u_i + (i/c) s_i. The right side
grows in s_i and in u_i, so the smallest total mass has P[C = v] = P[C ≥ v] and equality at every i < v. The bound is
refuted if this total s_0 exceeds c/m.

For (ε, δ) alone the bound is within 1 % of that of Steinke, Nasr and Jagielski 2023 (arXiv 2305.08846).

>>> rng = np.random.default_rng(0)
>>> scores = Scores(without=rng.normal(0.0, 1.0, 10_000), present=rng.normal(1.0, 1.0, 10_000))
>>> round(gaussian_epsilon(mu=1.0, delta=1e-5), 2)  # the truth
4.38
>>> round(epsilon_lower_bound(scores, delta=1e-5, confidence=0.95), 2)
1.81
>>> round(gaussian_lower_bound(scores, delta=1e-5, confidence=0.95), 2)
4.01
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
Bools = NDArray[np.bool_]
Claim = tuple[float, float]
"""A pair (δ, ε)."""
InverseTradeOff = Callable[[float], float]
"""F⁻¹: the smallest probability of a wrong guess that allows the given probability of a right one."""

SHARES = (0.1, 0.25, 0.5, 1.0)  # shares of the canaries to guess, each at an equal part of the failure probability
CURVE_DELTAS = (1e-3, 0.01, 0.1, 0.2, 0.5)
"""Besides the requested δ, a claimed curve is tested at these: some bugs show at a large δ only."""

_THRESHOLDS_PER_TAIL = 150
_LARGEST = 1e6
_PRECISION = 1e-4


@dataclass(frozen=True, slots=True)
class Scores:
    """Hold the attack's scores of N outputs on either corpus, in the order in which they were drawn.

    Attributes:
        without: scores on the corpus without the protected data, float64 (N,).
        present: scores on the corpus with the protected data, float64 (N,).

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


@dataclass(frozen=True, slots=True)
class Verdict:
    """Hold the result of testing a whole claimed curve δ ↦ ε: its worst pair, and the lower bound on ε at that δ."""

    delta: float
    claimed: float
    epsilon: float

    @property
    def refuted(self) -> bool:
        """Tell whether the lower bound refutes the claim."""
        return self.epsilon > self.claimed


def check_confidence(confidence: float) -> None:
    """Raise PrivacyError for a confidence outside (0, 1)."""
    if not 0 < confidence < 1:
        raise PrivacyError(f"confidence is {confidence}; allowed: between 0 and 1, both excluded")


def epsilon_lower_bound(scores: Scores, delta: float, confidence: float) -> float:
    """Return the Clopper–Pearson bound ε ≥ ln((P[S | likely] − δ) / P[S | unlikely]), valid for any mechanism.

    With N outputs it never exceeds about ln(N / 2 / ln(2 / (1 − confidence))), however leaky the mechanism.

    Raises:
        PrivacyError: if ``confidence`` is outside (0, 1).
    """
    return max(0.0, _judged(scores, confidence, lambda high, low: _log_ratio(high, low, delta)))


def gaussian_lower_bound(scores: Scores, delta: float, confidence: float) -> float:
    """Return the bound for a mechanism whose trade-off curve is that of a Gaussian (Nasr et al. 2023, section 4).

    Every event of a μ-GDP mechanism satisfies Φ⁻¹(P[S | one]) − Φ⁻¹(P[S | other]) ≤ μ, so the event bounds μ from
    below, and with it ε at any δ (Dong, Roth, Su 2022, corollary 2.13). The bound is valid only for mechanisms that add
    Gaussian noise to one of two fixed values (no sampling): a trade-off curve that crosses that of a Gaussian in one
    point need not stay above it elsewhere.

    Raises:
        PrivacyError: if ``confidence`` is outside (0, 1).
    """
    return gaussian_epsilon(max(_judged(scores, confidence, _probit_difference), 0.0), delta)


def noise_at_most(
    scores: Scores, claims_at: Callable[[float], Sequence[Claim]], claimed: float, confidence: float
) -> float:
    """Return the smallest noise multiplier at which an accountant's curve is refuted: the true one is below it.

    The first half of the scores chooses the event that refutes the most; the second half tests this one event against
    the curve of every noise multiplier, so the search costs no confidence. The result shows how tight the audit is: for
    a mechanism as noisy as claimed it exceeds the claim only by what the proof and the number of trials lose. It
    assumes that everything but the noise is as claimed.

    Args:
        claims_at: the pairs (δ, ε) that the accountant claims at a noise multiplier; ε decreases in it.
        claimed: the claimed noise multiplier; the search covers half of it to four times it.

    Returns:
        The noise multiplier, within 1 %; inf if not even the upper end of the search is refuted.
    """
    high, low, tested = _halved(scores, confidence)
    most = claimed * 4

    def smallest(likely: Floats, unlikely: Floats) -> float:
        """Return the smallest noise multiplier that an event refutes, within 1 %; inf if none is."""
        lower, upper = claimed / 2, most
        if not _refutes(likely, unlikely, claims_at(upper)).any():
            return math.inf
        while upper > lower * 1.01:
            middle = math.sqrt(lower * upper)
            refuted = _refutes(likely, unlikely, claims_at(middle)).any()
            lower, upper = (lower, middle) if refuted else (middle, upper)
        return upper

    best = _refutes(high, low, claims_at(min(smallest(high, low), most))).argmax()
    return smallest(*tested(int(best)))


def judge_claims(scores: Scores, claims: Sequence[Claim], confidence: float) -> Verdict:
    """Test a whole curve of claims (δ, ε) against the scores; an accountant claims them all at once.

    Some bugs show at one δ only. The first half of the scores chooses the worst claim and the second half tests it, so
    testing many claims costs no confidence.
    """
    high, low, tested = _halved(scores, confidence)
    margins = np.stack([_log_ratio(high, low, delta) - epsilon for delta, epsilon in claims])
    claim, event = np.unravel_index(int(np.nanargmax(margins)), margins.shape)
    delta, claimed = claims[int(claim)]
    return Verdict(delta, claimed, max(float(_log_ratio(*tested(int(event)), delta)[0]), 0.0))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return ε at which a μ-GDP mechanism has δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2) equal to ``delta``."""
    if mu <= 0:
        return 0.0

    def excess(epsilon: float) -> float:
        tail = math.exp(min(epsilon + float(stats.norm.logcdf(-epsilon / mu - mu / 2)), 0.0))
        return float(stats.norm.cdf(-epsilon / mu + mu / 2)) - tail - delta

    if excess(0.0) <= 0:
        return 0.0
    return float(optimize.brentq(excess, 0.0, mu * mu / 2 + mu * float(stats.norm.isf(delta)) + 1.0))


def _judged(scores: Scores, confidence: float, objective: Callable[[Floats, Floats], Floats]) -> float:
    """Choose the event with the largest objective on the first half; return its objective on the second half."""
    check_confidence(confidence)
    high, low, tested = _halved(scores, confidence)
    return float(objective(*tested(int(np.nanargmax(objective(high, low)))))[0])


def _halved(scores: Scores, confidence: float) -> tuple[Floats, Floats, Callable[[int], tuple[Floats, Floats]]]:
    """Return what chooses an event on the first half of the scores, and what tests it on the second half.

    Returns:
        For every event a lower bound on its probability where it is likely, and an upper bound where it is not, both
        (num_events,); and a function that returns the same two bounds of one event, (1,), by its position.
    """
    failure, middle = (1 - confidence) / 2, len(scores.without) // 2
    first = scores.without[:middle], scores.present[:middle]
    second = scores.without[middle:], scores.present[middle:]
    pooled = np.sort(np.concatenate(first))
    from_end = np.unique(np.geomspace(1, len(pooled), _THRESHOLDS_PER_TAIL).astype(int)) - 1
    thresholds = np.unique(np.concatenate([pooled[from_end], pooled[-1 - from_end]]))

    def tested(event: int) -> tuple[Floats, Floats]:
        below, position = divmod(event, len(thresholds))
        likely, unlikely = _limits(*second, thresholds[[position]], failure)
        return likely[[below]], unlikely[[below]]

    return *_limits(*first, thresholds, failure), tested


def _limits(without: Floats, present: Floats, thresholds: Floats, failure: float) -> tuple[Floats, Floats]:
    """Return bounds on the probabilities of the events above each threshold and, after them, below each.

    Returns:
        Lower bounds where the events are likely, upper bounds where they are not, both (2 · num_thresholds,).
    """
    n = len(without)
    above_without = n - np.searchsorted(np.sort(without), thresholds, side="left")
    above_present = n - np.searchsorted(np.sort(present), thresholds, side="left")
    likely = np.concatenate([above_present, n - above_without])
    return lower_limit(likely, n, failure), upper_limit(np.concatenate([above_without, n - above_present]), n, failure)


def upper_limit(hits: NDArray[np.int64], trials: int, failure: float) -> Floats:
    """Return Clopper–Pearson upper limits for int64 (n,) ``hits``; the truth exceeds each with at most ``failure``."""
    limit = stats.beta.ppf(1 - failure, hits + 1, np.maximum(trials - hits, 1))
    return np.where(hits == trials, 1.0, limit)


def lower_limit(hits: NDArray[np.int64], trials: int, failure: float) -> Floats:
    """Return Clopper–Pearson lower limits for int64 (n,) ``hits``; the truth is below each with at most ``failure``."""
    limit = stats.beta.ppf(failure, np.maximum(hits, 1), trials - hits + 1)
    return np.where(hits == 0, 0.0, limit)


def _log_ratio(likely: Floats, unlikely: Floats, delta: float) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(likely > delta, np.log(np.maximum(likely - delta, 0.0) / unlikely), -np.inf)


def _refutes(likely: Floats, unlikely: Floats, claims: Sequence[Claim]) -> NDArray[np.bool_]:
    """Tell which events refute at least one of the claims (δ, ε), bool (num_events,)."""
    return np.any([_log_ratio(likely, unlikely, delta) > epsilon for delta, epsilon in claims], axis=0)


def _probit_difference(likely: Floats, unlikely: Floats) -> Floats:
    return np.where(likely > unlikely, stats.norm.ppf(likely) - stats.norm.ppf(unlikely), -np.inf)


def curve_trade_off(claims: Sequence[Claim]) -> InverseTradeOff:
    """Return F⁻¹ of a mechanism that satisfies every pair (δ, ε) of a curve (Dong, Roth, Su 2022, proposition 2.5).

    F(w) ≤ e^ε w + δ and F(w) ≤ 1 − e^{−ε} (1 − δ − w) for every pair, because both directions of the adjacency satisfy
    it.
    """
    deltas, epsilons = np.array(claims, dtype=np.float64).T
    growth = np.exp(-epsilons)
    finite = np.isfinite(epsilons)
    with np.errstate(over="ignore"):  # inf of a large ε says nothing, as it should
        inverse = np.exp(np.where(finite, epsilons, 0.0))

    def least_wrong(right: float) -> float:
        below = (right - deltas) * growth
        above = np.where(finite, 1 - deltas - inverse * (1 - right), -np.inf)
        return max(0.0, float(below.max()), float(above.max()))

    return least_wrong


def refutes(trade_off: InverseTradeOff, canaries: int, guesses: int, correct: int, failure: float) -> bool:
    """Tell whether ``correct`` right guesses have a probability below ``failure`` under the trade-off curve.

    Args:
        trade_off: F⁻¹ of the claim.
        canaries: m.
        guesses: c, the number of guesses, at most m.
        correct: v, the number of right guesses, at most c.
        failure: the probability at which the claim is refuted.
    """
    mass, excess, most = failure * guesses / canaries, 0.0, guesses / canaries
    for i in range(correct, 0, -1):
        right = excess + mass * i / guesses
        missing = trade_off(min(right, 1.0)) + right - mass
        excess += mass / guesses
        mass += max(missing, 0.0) * guesses / (guesses - i + 1)
        if mass > most:
            return True
    return False


def refutes_by_ranking(
    trade_off: InverseTradeOff, included: Bools, scores: Floats, confidence: float, shares: Sequence[float] = SHARES
) -> bool:
    """Tell whether the scores refute a trade-off curve: the highest are guessed included, as many lowest left out.

    Args:
        trade_off: F⁻¹ of the claim.
        included: whether each canary was included, independently with probability ½, bool (m,).
        scores: the attack's scores, float64 (m,).
        confidence: the confidence of the verdict; the failure probability is shared by ``shares``.
        shares: shares of the canaries to guess, in (0, 1].

    Raises:
        PrivacyError: for fewer than two canaries, or unequal numbers of canaries and scores.
    """
    canaries, failure = len(scores), (1 - confidence) / len(shares)
    if len(included) != canaries or canaries < 2:
        raise PrivacyError(f"canaries are {len(included)} with {canaries} scores; allowed: a score each, at least 2")
    order = np.argsort(scores, kind="stable")
    for share in shares:
        per_side = max(1, int(share * canaries / 2))
        right = int((~included[order[:per_side]]).sum() + included[order[-per_side:]].sum())
        if refutes(trade_off, canaries, 2 * per_side, right, failure):
            return True
    return False


def f_dp_epsilon(
    included: Bools, scores: Floats, delta: float, confidence: float, shares: Sequence[float] = SHARES
) -> float:
    """Return a lower bound on ε at ``delta``, valid for any mechanism.

    The other arguments are those of :func:`refutes_by_ranking`.
    """
    return _largest_refuted(
        lambda epsilon: refutes_by_ranking(curve_trade_off([(delta, epsilon)]), included, scores, confidence, shares)
    )


def fitted_gaussian_epsilon(included: Bools, scores: Floats, delta: float, confidence: float) -> float:
    """Return a lower bound on ε at ``delta`` from a Gaussian fit of the scores (Andrew et al. 2023, arXiv 2302.03098).

    It assumes that the scores are independent and normal, with one variance and a mean for each of included and left
    out, and that this pair is the mechanism's. Sampled mechanisms give mixtures: there it is an estimate. The t
    statistic of the two groups is then noncentral, so that μ, the difference of means in standard deviations, has an
    exact one-sided confidence limit.
    """
    inside, outside = scores[included], scores[~included]
    if min(len(inside), len(outside)) < 2:
        return 0.0
    degrees = len(scores) - 2
    pooled = math.sqrt((inside.var() * len(inside) + outside.var() * len(outside)) / degrees)
    width = math.sqrt(1 / len(inside) + 1 / len(outside))
    if pooled == 0:
        return 0.0
    observed = float(inside.mean() - outside.mean()) / pooled / width
    failure = 1 - confidence
    if observed <= 0 or stats.t.sf(observed, degrees) >= failure:
        return 0.0
    low, high = 0.0, observed
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if stats.nct.sf(observed, degrees, middle) < failure else (low, middle)
    return gaussian_epsilon(low * width, delta)


def _largest_refuted(refuted: Callable[[float], bool]) -> float:
    """Return the largest value that is refuted, within ``_PRECISION``; 0 if none is. All smaller ones must be, too."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high) and high < _LARGEST:
        low, high = high, 2 * high
    while high - low > _PRECISION * max(high, 1.0):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
