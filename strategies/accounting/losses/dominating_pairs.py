"""Build the dominating pair of a round: how far one protected user and one protected entity shift its sum.

In units of the user clip β = ŵ·c the sum of one round of ``uedp`` shifts by at most ( min(B·K', ŵ) + A·K ) / ŵ, with
independent B ~ Bernoulli(q_u), K' ~ Binomial(n', q_s), A ~ Bernoulli(q_e), K ~ Binomial(J, q_s); J, the number of
sentences with the entity that belong to sampled users, is revealed (docs/privacy-proofs.md, section 4). If sentences
have weights, K is a sum of unequal draws. Every truncation is pessimistic: rare small shifts become larger ones, rare
large ones count as a certain loss.

>>> user = user_shift(q_u=0.5, q_s=1.0, user_sentences=3, user_cap=2.0, tail=1e-12)
>>> user.values, user.probabilities
(array([0., 2.]), array([0.5, 0.5]))
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import pdtrc

from fl_sim.strategies.accounting.adjacency import ANY_NUMBER, ContributionBound
from fl_sim.strategies.accounting.losses.privacy_loss import Floats, GaussianMixturePair

NEGLIGIBLE = 1e-60  # of a probability
_EQUAL = 1e-12  # relative difference at which two products of the same numbers count as equal
_MOST_CASES = 128
_COUNTABLE = 1 << 50  # sentences: more than any corpus has, and few enough for the quantiles of a binomial


@dataclass(frozen=True, slots=True)
class Exposure:
    """Hold the distribution of what a round reveals: the sampled users who mention the entity, and their sentences.

    The arrays have one entry per case; what the probabilities miss of 1 counts as a certain loss.

    Attributes:
        probabilities: the probability of each case, float64 (num_cases,).
        users: the number of sampled users who mention the entity, int64 (num_cases,).
        sentences: an upper bound on the number of sentences of those users with the entity, int64 (num_cases,).
        weights: an upper bound on the sum of the weights of those sentences, float64 (num_cases,); None if all are 1.
        cut: what the probabilities miss of 1, where it is known better than by subtraction.
    """

    probabilities: Floats
    users: np.ndarray
    sentences: np.ndarray
    weights: Floats | None = None
    cut: float | None = None


@dataclass(frozen=True, slots=True)
class Distribution:
    """Hold a discrete distribution.

    Attributes:
        values: float64 (num_values,), ascending.
        probabilities: float64 (num_values,); their sum may fall short of 1.
        cut: what they miss of 1, which may be far below the rounding of their sum; None if it is not known.
    """

    values: Floats
    probabilities: Floats
    cut: float | None = None


def exposure_from_bound(entity_bound: ContributionBound, q_u: float, tail: float) -> Exposure:
    """Return the worst exposure within a contribution bound: M ~ Binomial(F, q_u) users, min(M·n, total) sentences."""
    sampled = coarsened(_raise_rare(binomial(entity_bound.users, q_u, tail), tail), _MOST_CASES)
    users = sampled.values.astype(np.int64)
    each, total = min(entity_bound.sentences_per_user, _COUNTABLE), min(entity_bound.total, _COUNTABLE)
    held = _COUNTABLE // max(each, 1)  # of more users every sentence counts
    sentences = np.where(users > held, total, np.minimum(np.minimum(users, held) * each, total))
    weights = np.minimum(sentences, entity_bound.total_weight)
    return Exposure(sampled.probabilities, users, sentences, weights, sampled.cut)


def user_shift(
    q_u: float, q_s: float, user_sentences: float, user_cap: float, tail: float, *, weighted: bool = False
) -> Distribution:
    """Return the distribution of min(B·K', ŵ), the protected user's own shift, in sentences; n' may be inf.

    ``weighted``: n' bounds the sum of the weights of any number of sentences.
    """
    if math.isinf(user_sentences):
        return _bernoulli(q_u, constant(user_cap))
    if weighted:
        active = active_sentences(ANY_NUMBER, q_s, q_s * user_sentences, tail)
    else:
        active = binomial(int(user_sentences), q_s, tail)
    return _bernoulli(q_u, capped(active, user_cap))


def entity_shift(q_e: float, active: Distribution, most: float) -> Distribution:
    """Return the distribution of min(A·K, most), the entity's shift, in sentences; K is that of ``active``."""
    return _bernoulli(q_e, capped(active, most))


def capped(distribution: Distribution, most: float) -> Distribution:
    """Return the distribution of the smaller of a draw and ``most``."""
    return _merge(np.minimum(distribution.values, most), distribution.probabilities, distribution.cut)


def constant(value: float) -> Distribution:
    """Return the distribution of a constant."""
    return Distribution(np.array([float(value)]), np.ones(1), 0.0)


def active_sentences(sentences: int, rate: float, mean: float, tail: float) -> Distribution:
    """Return an upper bound in distribution on K, a sum of independent draws of unequal rates.

    If ``mean`` leaves every sentence its largest rate, K is binomial. Otherwise the tails are the smallest of three
    that are valid (docs/privacy-proofs.md, section 15, Lemma 3): those of Binomial(sentences, rate); those of
    Poisson(−mean·ln(1−rate)/rate), as Bernoulli(p) is stochastically at most Poisson(−ln(1−p)), and −ln(1−p)/p
    increases with p; and, for K ≥ t with t ≥ mean + 1, those of Poisson(mean) (Hoeffding 1956, Theorem 4; Anderson and
    Samuels 1967).

    Args:
        sentences: an upper bound on the number of draws.
        rate: an upper bound on each rate.
        mean: an upper bound on the sum of all rates.
        tail: probability mass that each truncation may cut off.
    """
    from scipy import stats  # half a second to import, which no configuration needs

    if mean <= 0:
        return constant(0.0)
    rate, mean = max(rate, NEGLIGIBLE), max(mean, NEGLIGIBLE)  # SciPy overflows at subnormal rates
    if mean >= (1 - _EQUAL) * sentences * rate:
        return binomial(sentences, rate, tail)
    first_bounded = math.ceil(mean + 1)
    inflated = -mean * math.log1p(-rate) / rate if rate < 1 else math.inf
    high = first_bounded + 1 + _rarely_exceeded(mean, tail)
    low = min(first_bounded - 1, int(stats.poisson.ppf(NEGLIGIBLE, mean)))
    values = np.arange(low, high + 1)
    candidates = [stats.binom(sentences, rate), stats.poisson(mean)]
    if inflated < math.inf:
        candidates.append(stats.poisson(inflated))
    above = np.array([law.sf(values - 1) for law in candidates])  # P(K ≥ value)
    masses = np.array([law.pmf(values) for law in candidates])
    above[1, values < first_bounded] = 1.0
    above[:, 0] = 1.0  # mass below the lowest value moves up to it
    smallest = above.argmin(axis=0)
    tails = above.min(axis=0)
    probabilities = np.append(tails[:-1] - tails[1:], 0.0)
    own = np.append(smallest[1:] == smallest[:-1], False) & (tails < 1)
    probabilities[own] = masses[smallest, np.arange(len(values))][own]
    return _prune(Distribution(values.astype(np.float64), probabilities, float(tails[-1])), tail)


def mixture(
    user: Distribution,
    entity: Distribution,
    probability: float,
    unit: float,
    tail: float,
    unlisted: float | None = None,
) -> GaussianMixturePair:
    """Return the pair of one revealed case: the sum of the user's and the entity's shift, divided by ``unit``.

    Args:
        user, entity: distributions of their shifts.
        unit: the shift that equals one user clip β.
        tail: probability mass that each truncation may cut off.
        unlisted: the probability of the cases that are left out, which each case adds to what it cuts off; None if it
            is not known.
    """
    total = _prune(summed(user, entity), tail)
    moved = total.values > 0
    common = float(total.probabilities[~moved].sum())
    return GaussianMixturePair(
        probability,
        common,
        total.values[moved] / unit,
        total.probabilities[moved],
        cut=_cut(total.cut, 0.0, unlisted, common),
    )


def two_sided_mixture(
    user: Distribution, users: int, q_u: float, q_e: float, unit: float, tail: float
) -> GaussianMixturePair:
    """Return the pair of Theorem 2, which does not reveal the sampled users whose updates the entity reverses.

    Where nothing protected takes part both corpora agree; else the larger one is shifted by the number of sampled
    affected users plus the user's share, the smaller one by that number the other way (docs/privacy-proofs.md, section
    5).

    Args:
        user: distribution of min(B·K', ŵ).
        users: F, the number of users who mention the entity.
        q_u, q_e: sampling rates of users and of the entity.
        unit: ŵ, the value of ``user`` that equals one user clip β.
        tail: probability mass that each truncation may cut off.
    """
    sampled = binomial(users, q_u, tail)
    user_share = Distribution(user.values / unit, user.probabilities, user.cut)
    moved = user_share.values > 0
    absent = float(user_share.probabilities[~moved].sum())
    present = Distribution(user_share.values[moved], user_share.probabilities[moved], user.cut)
    cases = [(q_e, summed(sampled, user_share))]
    if q_e < 1:
        cases.append((1 - q_e, summed(sampled, present)))
    values, weights = [case.values for _, case in cases], [share * case.probabilities for share, case in cases]
    cuts = [None if case.cut is None else share * case.cut for share, case in cases]
    cut = None if None in cuts else sum(one for one in cuts if one is not None)
    shifts = _prune(_merge(np.concatenate(values), np.concatenate(weights), cut), tail)
    return GaussianMixturePair(
        1.0,
        (1 - q_e) * absent,
        shifts.values,
        shifts.probabilities,
        sampled.values,
        sampled.probabilities,
        _cut(shifts.cut, sampled.cut, 0.0, 0.0),
    )


def _cut(
    larger: float | None, smaller: float | None, unlisted: float | None, common: float
) -> tuple[float, float] | None:
    """Return the mass that P, apart from ``common``, and Q miss, with the cases left out; None if any is not known."""
    if larger is None or smaller is None or unlisted is None:
        return None
    return larger + (1 - common) * unlisted, smaller + unlisted


def binomial(n: int, p: float, tail: float) -> Distribution:
    """Return Binomial(n, p) without its upper ``tail``; negligible mass at small values is moved up."""
    from scipy import stats  # half a second to import, which no configuration needs

    if p >= 1.0 or n == 0:
        return constant(n)
    low = int(stats.binom.ppf(NEGLIGIBLE, n, p))
    high = binomial_quantile(n, p, tail)
    values = np.arange(low, high + 1)
    probabilities = stats.binom.pmf(values, n, p)
    probabilities[0] += stats.binom.cdf(values[0] - 1, n, p)
    above = float(stats.binom.sf(high, n, p))
    return _prune(Distribution(values.astype(np.float64), probabilities, above), tail)


def binomial_quantile(n: int, p: float, tail: float) -> int:
    """Return the smallest number that Binomial(n, p) exceeds with probability at most ``tail``.

    SciPy's own is n for a tail below 1e-19, and arrays of all values up to it would not fit into memory.
    """
    from scipy import stats  # half a second to import, which no configuration needs

    low, high = -1, n  # low is exceeded too often
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if stats.binom.sf(middle, n, p) <= tail else (middle, high)
    return high


def _rarely_exceeded(mean: float, tail: float) -> int:
    """Return a number that Poisson(mean) exceeds with probability at most ``tail``; SciPy's own is NaN below 1e-16."""
    high = 16 + math.ceil(mean)
    while pdtrc(high, mean) > tail:
        high += 16 + high // 4
    return high


def _raise_rare(distribution: Distribution, tail: float) -> Distribution:
    """Move the lower ``tail`` to the smallest value above it, which leaves fewer revealed cases."""
    low = int(np.searchsorted(np.cumsum(distribution.probabilities), tail))
    probabilities = distribution.probabilities[low:].copy()
    probabilities[0] += distribution.probabilities[:low].sum()
    return Distribution(distribution.values[low:], probabilities, distribution.cut)


def coarsened(distribution: Distribution, most: int) -> Distribution:
    """Reduce a distribution to at most ``most`` values: runs of neighbours move to their largest value."""
    size = -(-len(distribution.values) // most)
    starts = np.arange(0, len(distribution.values), size)
    ends = np.minimum(starts + size, len(distribution.values)) - 1
    return Distribution(
        distribution.values[ends], np.add.reduceat(distribution.probabilities, starts), distribution.cut
    )


def _bernoulli(probability: float, distribution: Distribution) -> Distribution:
    """Return the distribution of a draw of ``distribution`` with ``probability``, else 0."""
    if probability >= 1.0:
        return distribution
    return _merge(
        np.concatenate([[0.0], distribution.values]),
        np.concatenate([[1.0 - probability], probability * distribution.probabilities]),
        None if distribution.cut is None else probability * distribution.cut,
    )


def summed(first: Distribution, second: Distribution) -> Distribution:
    """Return the distribution of the sum of two independent draws."""
    return _merge(
        np.add.outer(first.values, second.values).ravel(),
        np.multiply.outer(first.probabilities, second.probabilities).ravel(),
        None if first.cut is None or second.cut is None else first.cut + second.cut,
    )


def _merge(values: Floats, probabilities: Floats, cut: float | None) -> Distribution:
    distinct, position = np.unique(values, return_inverse=True)
    masses = np.bincount(position, weights=probabilities, minlength=len(distinct)).astype(float)
    return Distribution(distinct, masses, cut)


def _prune(distribution: Distribution, tail: float) -> Distribution:
    """Cut off the largest values up to ``tail`` (a certain loss); move negligible mass to the next larger value.

    A rare small shift decides the loss where no other part of P has mass, so it moves only if it is negligible.
    """
    from_top = np.cumsum(distribution.probabilities[::-1])[::-1]
    kept = max(1, int(np.count_nonzero(from_top > tail)))
    cut = None if distribution.cut is None else distribution.cut + float(np.append(from_top, 0.0)[kept])
    probabilities = distribution.probabilities[:kept]
    stays, carried, last = probabilities > NEGLIGIBLE, 0.0, -1
    for place in np.flatnonzero(~stays).tolist():  # whose mass moves on until enough has come together
        carried = (carried if place == last + 1 else 0.0) + float(probabilities[place])
        if carried > NEGLIGIBLE:
            stays[place], carried = True, 0.0
        last = place
    stays[-1] = True
    ends = np.flatnonzero(stays)
    masses = np.add.reduceat(probabilities, np.append(0, ends[:-1] + 1))
    return Distribution(distribution.values[ends], masses, cut)
