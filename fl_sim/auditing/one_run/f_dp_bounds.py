"""Bound ε from one training with many canaries, by its whole trade-off curve, or by a Gaussian fit of the scores.

m canaries are included independently with probability ½. The attacker guesses about c of them; C guesses are right. Let
f be the trade-off curve of including one canary, F(w) = 1 − f(w), and p_j = P[C = j]. For every i

    Σ_{j ≥ i} (j/m) p_j  ≤  F( Σ_{j ≥ i−1} ((c − j)/m) p_j )

(Mahloujifar, Melis, Chaudhuri 2024, arXiv 2410.22235): if one bit is flipped, a right guess is a wrong one, and the
number of the other right guesses is the same; F is concave, so the bound survives the mean over canaries. Only a small
P[C ≥ v] satisfies all these inequalities and Σ p_j = 1; it bounds the p-value of v right guesses. Steinke et al. 2023
(:func:`fl_sim.auditing.lower_bounds.one_run_lower_bound`) use one pair (ε, δ) of the curve.

The least mass. Write s_i = Σ_{j ≥ i} (c/m) p_j and u_i = Σ_{j ≥ i} ((j − i)/m) p_j. Both grow in p, and
u_{i−1} = u_i + s_i/c, s_{i−1} ≥ s_i + (c/(c−i+1)) (F⁻¹(r_i) + r_i − s_i)⁺ with r_i = u_i + (i/c) s_i. The right side
grows in s_i and in u_i, so the smallest total mass has P[C = v] = P[C ≥ v] and equality at every i < v. The bound is
refuted if this total s_0 exceeds c/m.

How sharp the bound is depends on the family of curves: for (ε, δ) alone it is about that of Steinke et al. (sharper
where m·δ matters), for the curve of a Gaussian it is about 1.5 to 2 times theirs.

>>> rng = np.random.default_rng(0)
>>> included = rng.random(1000) < 0.5
>>> scores = rng.normal(0.0, 1.0, 1000) + 3.0 * included  # ε is 16.6
>>> round(f_dp_epsilon(included, scores, 1e-5, confidence=0.95), 1)  # any mechanism
4.7
>>> round(f_dp_gaussian_epsilon(included, scores, 1e-5, confidence=0.95), 1)  # if f is that of a Gaussian
8.2
>>> round(fitted_gaussian_epsilon(included, scores, 1e-5, confidence=0.95), 1)  # if the scores are Gaussian
15.0
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from fl_sim.auditing.lower_bounds import gaussian_epsilon, ranked_guesses
from fl_sim.strategies.accounting.adjacency import PrivacyError

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
InverseTradeOff = Callable[[float], float]
"""F⁻¹: the smallest probability of a wrong guess that allows the given probability of a right one."""

SHARES = (0.1, 0.25, 0.5, 1.0)  # shares of the canaries to guess, each at an equal part of the failure probability

_LARGEST = 1e6
_PRECISION = 1e-4


def gaussian_trade_off(mu: float) -> InverseTradeOff:
    """Return F⁻¹(r) = Φ(Φ⁻¹(r) − μ) of a μ-GDP mechanism."""
    return lambda right: float(special.ndtr(special.ndtri(right) - mu))


def curve_trade_off(claims: Sequence[tuple[float, float]]) -> InverseTradeOff:
    """Return F⁻¹ of a mechanism that satisfies every pair of a curve (Dong, Roth, Su 2022, proposition 2.5).

    F(w) ≤ e^ε w + δ and F(w) ≤ 1 − e^{−ε} (1 − δ − w) for every pair, because both directions of the adjacency satisfy
    it.

    Args:
        claims: pairs (δ, ε).

    Raises:
        PrivacyError: if there is no pair.
    """
    if not claims:
        raise PrivacyError("claims is empty; allowed: at least one pair of δ and ε")
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
    """
    failure = (1 - confidence) / len(shares)
    tried = (ranked_guesses(included, scores, share) for share in shares)
    return any(refutes(trade_off, len(scores), guesses, correct, failure) for guesses, correct in tried)


def f_dp_epsilon(
    included: Bools, scores: Floats, delta: float, confidence: float, shares: Sequence[float] = SHARES
) -> float:
    """Return a lower bound on ε at ``delta``, valid for any mechanism; the arguments are those of the functions above.

    Args:
        included: whether each canary was included, independently with probability ½, bool (m,).
        scores: the attack's scores, float64 (m,).
        delta: δ of the bound.
        confidence: confidence of the bound.
        shares: shares of the canaries to guess, in (0, 1].
    """
    return _largest_refuted(
        lambda epsilon: refutes_by_ranking(curve_trade_off([(delta, epsilon)]), included, scores, confidence, shares)
    )


def f_dp_gaussian_epsilon(
    included: Bools, scores: Floats, delta: float, confidence: float, shares: Sequence[float] = SHARES
) -> float:
    """Return a lower bound on ε at ``delta`` if the trade-off curve is that of a Gaussian mechanism.

    The arguments are those of :func:`f_dp_epsilon`. Nothing is assumed of the scores.
    """
    mu = _largest_refuted(lambda mu: refutes_by_ranking(gaussian_trade_off(mu), included, scores, confidence, shares))
    return gaussian_epsilon(mu, delta)


def fitted_gaussian_epsilon(included: Bools, scores: Floats, delta: float, confidence: float) -> float:
    """Return a lower bound on ε at ``delta`` from a Gaussian fit of the scores (Andrew et al. 2023, arXiv 2302.03098).

    It assumes that the scores are independent and normal, with one variance and a mean for each of included and left
    out, and that this pair is the mechanism's. Sampled mechanisms give mixtures: there it is an estimate. The t
    statistic of the two groups is then noncentral, so that μ, the difference of means in standard deviations, has an
    exact one-sided confidence limit.

    Args:
        included: whether each canary was included, bool (m,).
        scores: the attack's scores, float64 (m,).
        delta: δ of the bound.
        confidence: confidence of the limit on μ.
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
