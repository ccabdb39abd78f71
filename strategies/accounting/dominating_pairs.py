"""Build the dominating pair of a round: how far one protected user and one protected entity shift its sum.

In units of the user clip β = ŵ·c the sum of one round of ``uedp`` shifts by at most ( min(B·K', ŵ) + A·K ) / ŵ, with
independent B ~ Bernoulli(q_u), K' ~ Binomial(n', q_s), A ~ Bernoulli(q_e), K ~ Binomial(J, q_s); J, the number of
sentences with the entity that belong to sampled users, is revealed (docs/privacy.md, section 4). Every truncation is
pessimistic: rare small shifts become larger ones, rare large ones count as a certain loss.

>>> user = user_shift(q_u=0.5, q_s=1.0, user_sentences=3, user_cap=2.0, tail=1e-12)
>>> user.values, user.probabilities
(array([0., 2.]), array([0.5, 0.5]))
>>> entity = entity_shift(q_e=0.5, q_s=1.0, sentences=1, most=4.0, tail=1e-12)
>>> (pair,) = mixtures(user, [entity], np.ones(1), unit=2.0, tail=1e-12)
>>> pair.common, pair.shifts, pair.weights
(0.25, array([0.5, 1. , 1.5]), array([0.25, 0.25, 0.25]))
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from fl_sim.strategies.accounting.adjacency import ContributionBound
from fl_sim.strategies.accounting.privacy_loss import Floats, GaussianMixturePair

_NEGLIGIBLE = 1e-60
_MOST_CASES = 128


@dataclass(frozen=True, slots=True)
class Exposure:
    """Hold the distribution of what a round reveals: the sampled users who mention the entity, and their sentences.

    The arrays have one entry per case; what the probabilities miss of 1 counts as a certain loss.

    Attributes:
        probabilities: the probability of each case, float64 (num_cases,).
        users: the number of sampled users who mention the entity, int64 (num_cases,).
        sentences: an upper bound on the number of sentences of those users with the entity, int64 (num_cases,).
    """

    probabilities: Floats
    users: np.ndarray
    sentences: np.ndarray


@dataclass(frozen=True, slots=True)
class Distribution:
    """Hold a discrete distribution.

    Attributes:
        values: float64 (num_values,), ascending.
        probabilities: float64 (num_values,); their sum may fall short of 1.
    """

    values: Floats
    probabilities: Floats


def exposure_from_bound(entity_bound: ContributionBound, q_u: float, tail: float) -> Exposure:
    """Return the worst exposure within a contribution bound: M ~ Binomial(F, q_u) users, min(M·n, total) sentences.

    Args:
        entity_bound: F, n and the total of the protected entity.
        q_u: user sampling rate.
        tail: probability mass that each truncation may cut off.
    """
    sampled = _coarsen(_raise_rare(binomial(entity_bound.users, q_u, tail), tail))
    users = sampled.values.astype(np.int64)
    sentences = np.minimum(users * entity_bound.sentences_per_user, entity_bound.total)
    return Exposure(sampled.probabilities, users, sentences)


def user_shift(q_u: float, q_s: float, user_sentences: float, user_cap: float, tail: float) -> Distribution:
    """Return the distribution of min(B·K', ŵ), the protected user's own shift, counted in sentences.

    Args:
        q_u: user sampling rate, of B.
        q_s: sentence sampling rate, of K'.
        user_sentences: n'; inf assumes no bound.
        user_cap: ŵ.
        tail: probability mass that each truncation may cut off.
    """
    if math.isinf(user_sentences):
        return _bernoulli(q_u, Distribution(np.array([user_cap]), np.ones(1)))
    active = binomial(int(user_sentences), q_s, tail)
    return _bernoulli(q_u, _merge(np.minimum(active.values, user_cap), active.probabilities))


def entity_shift(q_e: float, q_s: float, sentences: int, most: float, tail: float) -> Distribution:
    """Return the distribution of min(A·K, most), K ~ Binomial(sentences, q_s): the entity's shift, in sentences.

    Args:
        q_e: entity sampling rate, of A.
        q_s: sentence sampling rate, of K.
        sentences: number of sentences with the entity that belong to sampled users.
        most: upper end of the shift.
        tail: probability mass that each truncation may cut off.
    """
    active = binomial(sentences, q_s, tail)
    return _bernoulli(q_e, _merge(np.minimum(active.values, most), active.probabilities))


def mixtures(
    user: Distribution, entity_distributions: list[Distribution], probabilities: Floats, unit: float, tail: float
) -> tuple[GaussianMixturePair, ...]:
    """Return one mixture per revealed case: the sum of the user's and the entity's shift, divided by ``unit``.

    Args:
        user: distribution of the user's shift.
        entity_distributions: distribution of the entity's shift in each case.
        probabilities: the probability of each case, float64 (num_cases,).
        unit: the shift that equals one user clip β.
        tail: probability mass that each truncation may cut off.
    """
    result = []
    for distribution, probability in zip(entity_distributions, probabilities, strict=True):
        total = _prune(_sum(user, distribution), tail)
        unmoved = total.values == 0
        common = float(total.probabilities[unmoved].sum())
        shifts = total.values[~unmoved] / unit
        result.append(GaussianMixturePair(float(probability), common, shifts, total.probabilities[~unmoved]))
    return tuple(result)


def two_sided_mixture(
    user: Distribution, users: int, q_u: float, q_e: float, unit: float, tail: float
) -> GaussianMixturePair:
    """Return the pair of Theorem 2, which does not reveal the sampled users whose updates the entity reverses.

    Where nothing protected takes part both corpora agree; else the larger one is shifts by the number of sampled
    affected users plus the user's user_share share, and the smaller one by that number the other way (docs/privacy.md,
    section 5).

    Args:
        user: distribution of min(B·K', ŵ).
        users: F, the number of users who mention the entity.
        q_u: user sampling rate.
        q_e: entity sampling rate.
        unit: ŵ, the value of ``user`` that equals one user clip β.
        tail: probability mass that each truncation may cut off.
    """
    sampled = binomial(users, q_u, tail)
    user_share = Distribution(user.values / unit, user.probabilities)
    absent = float(user_share.probabilities[user_share.values == 0].sum())
    present = Distribution(user_share.values[user_share.values > 0], user_share.probabilities[user_share.values > 0])
    active = _sum(sampled, user_share)
    weights = [q_e * active.probabilities]
    values = [active.values]
    if q_e < 1:
        inactive = _sum(sampled, present)
        values.append(inactive.values)
        weights.append((1 - q_e) * inactive.probabilities)
    shifts = _prune(_merge(np.concatenate(values), np.concatenate(weights)), tail)
    return GaussianMixturePair(
        1.0, (1 - q_e) * absent, shifts.values, shifts.probabilities, sampled.values, sampled.probabilities
    )


def binomial(n: int, p: float, tail: float) -> Distribution:
    """Return Binomial(n, p) without its upper ``tail``; negligible mass at small values is moved up."""
    if p >= 1.0 or n == 0:
        return Distribution(np.array([float(n)]), np.ones(1))
    low = int(stats.binom.ppf(_NEGLIGIBLE, n, p))
    high = int(stats.binom.isf(tail, n, p))
    values = np.arange(low, high + 1)
    probabilities = stats.binom.pmf(values, n, p)
    probabilities[0] += stats.binom.cdf(values[0] - 1, n, p)
    return _prune(Distribution(values.astype(np.float64), probabilities), tail)


def _raise_rare(distribution: Distribution, tail: float) -> Distribution:
    """Move the lower ``tail`` to the smallest value above it, which leaves fewer revealed cases."""
    low = int(np.searchsorted(np.cumsum(distribution.probabilities), tail))
    probabilities = distribution.probabilities[low:].copy()
    probabilities[0] += distribution.probabilities[:low].sum()
    return Distribution(distribution.values[low:], probabilities)


def _coarsen(distribution: Distribution) -> Distribution:
    """Reduce a distribution to at most ``_MOST_CASES`` values: runs of neighbours move to their largest value."""
    size = -(-len(distribution.values) // _MOST_CASES)
    starts = np.arange(0, len(distribution.values), size)
    ends = np.minimum(starts + size, len(distribution.values)) - 1
    return Distribution(distribution.values[ends], np.add.reduceat(distribution.probabilities, starts))


def _bernoulli(probability: float, distribution: Distribution) -> Distribution:
    """Return the distribution of a draw of ``distribution`` with ``probability``, else 0."""
    if probability >= 1.0:
        return distribution
    return _merge(
        np.concatenate([[0.0], distribution.values]),
        np.concatenate([[1.0 - probability], probability * distribution.probabilities]),
    )


def _sum(first: Distribution, second: Distribution) -> Distribution:
    return _merge(
        np.add.outer(first.values, second.values).ravel(),
        np.multiply.outer(first.probabilities, second.probabilities).ravel(),
    )


def _merge(values: Floats, probabilities: Floats) -> Distribution:
    distinct, position = np.unique(values, return_inverse=True)
    return Distribution(distinct, np.bincount(position, weights=probabilities, minlength=len(distinct)).astype(float))


def _prune(distribution: Distribution, tail: float) -> Distribution:
    """Cut off the largest values up to ``tail`` (a certain loss); move negligible mass to the next larger value.

    A rare small shift decides the loss where no other part of P has mass, so it moves only if it is negligible.
    """
    from_top = np.cumsum(distribution.probabilities[::-1])[::-1]
    kept = max(1, int(np.count_nonzero(from_top > tail)))
    if distribution.probabilities[:kept].min() > _NEGLIGIBLE:
        return Distribution(distribution.values[:kept], distribution.probabilities[:kept])
    values, probabilities, carried = [], [], 0.0
    for value, probability in zip(distribution.values[:kept], distribution.probabilities[:kept], strict=True):
        carried += probability
        if carried > _NEGLIGIBLE or value == distribution.values[kept - 1]:
            values.append(value)
            probabilities.append(carried)
            carried = 0.0
    return Distribution(np.array(values), np.array(probabilities))
