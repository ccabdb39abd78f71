"""The law of the shift: how far one protected user and one protected entity can move a round's sum.

In units of the user clip β = ŵ·c one round of ``uedp`` moves by at most ( min(B·K', ŵ) + A·K ) / ŵ with
independent coins B ~ Bernoulli(q_u), K' ~ Binomial(n', q_s), A ~ Bernoulli(q_e), K ~ Binomial(J, q_s); J, the
number of sentences with the entity that belong to sampled users, is revealed (docs/privacy.md, section 4).
Whatever is cut here is cut pessimistically: rare small shifts become larger ones, rare large ones count as a
certain loss.
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
    """Law of what a round reveals of the entity: how many of its users were sampled, with how many sentences.

    The arrays run in parallel, one entry per case; probabilities that do not reach 1 count as a certain loss.

    Attributes:
        probabilities: of the cases.
        users: sampled users that mention the entity.
        sentences: upper bound on the sentences with the entity that belong to them.
    """

    probabilities: Floats
    users: np.ndarray
    sentences: np.ndarray


@dataclass(frozen=True, slots=True)
class Distribution:
    """A law on the numbers ``values`` (ascending); ``probabilities`` may fall short of 1."""

    values: Floats
    probabilities: Floats


def exposure_from_bound(entity_bound: ContributionBound, q_u: float, tail: float) -> Exposure:
    """The worst exposure within ``reach``: M ~ Binomial(F, q_u) sampled users, min(M·n, total) sentences."""
    sampled = _coarsen(_raise_rare(binomial(entity_bound.users, q_u, tail), tail))
    users = sampled.values.astype(np.int64)
    sentences = np.minimum(users * entity_bound.sentences_per_user, entity_bound.total)
    return Exposure(sampled.probabilities, users, sentences)


def user_shift(q_u: float, q_s: float, user_sentences: float, user_cap: float, tail: float) -> Distribution:
    """min(B·K', ŵ): the protected user's own contribution, counted in sentences."""
    if math.isinf(user_sentences):
        return _bernoulli(q_u, Distribution(np.array([user_cap]), np.ones(1)))
    taken = binomial(int(user_sentences), q_s, tail)
    return _bernoulli(q_u, _merge(np.minimum(taken.values, user_cap), taken.probabilities))


def entity_shift(q_e: float, q_s: float, sentences: int, most: float, tail: float) -> Distribution:
    """min(A·K, most) with K ~ Binomial(sentences, q_s): the protected entity's share, in sentences."""
    taken = binomial(sentences, q_s, tail)
    return _bernoulli(q_e, _merge(np.minimum(taken.values, most), taken.probabilities))


def mixtures(
    user: Distribution, entity_distributions: list[Distribution], probabilities: Floats, unit: float, tail: float
) -> tuple[GaussianMixturePair, ...]:
    """One mixture per revealed case: the user's and the entity's shift together, divided by ``unit``."""
    result = []
    for distribution, probability in zip(entity_distributions, probabilities, strict=True):
        total = _prune(_sum(user, distribution), tail)
        still = total.values == 0
        common = float(total.probabilities[still].sum())
        moved = total.values[~still] / unit
        result.append(GaussianMixturePair(float(probability), common, moved, total.probabilities[~still]))
    return tuple(result)


def two_sided_mixture(
    user: Distribution, users: int, q_u: float, q_e: float, unit: float, tail: float
) -> GaussianMixturePair:
    """The round in which it stays hidden who was sampled of the users whose updates the entity turns round.

    Where nothing protected takes part both corpora agree; else the larger one is moved by the number of sampled
    affected users plus the user's own share, and the smaller one by that number the other way (docs/privacy.md,
    section 5).

    Args:
        user: law of min(B·K', ŵ).
        users: F, the users that mention the entity.
        q_u: their sampling rate.
        q_e: the entity's rate.
        unit: ŵ, what the user's law counts a full user as.
        tail: what may be cut from each law.
    """
    sampled = binomial(users, q_u, tail)
    own = Distribution(user.values / unit, user.probabilities)
    absent = float(own.probabilities[own.values == 0].sum())
    present = Distribution(own.values[own.values > 0], own.probabilities[own.values > 0])
    active = _sum(sampled, own)
    weights = [q_e * active.probabilities]
    values = [active.values]
    if q_e < 1:
        inactive = _sum(sampled, present)
        values.append(inactive.values)
        weights.append((1 - q_e) * inactive.probabilities)
    moved = _prune(_merge(np.concatenate(values), np.concatenate(weights)), tail)
    return GaussianMixturePair(
        1.0, (1 - q_e) * absent, moved.values, moved.probabilities, sampled.values, sampled.probabilities
    )


def binomial(n: int, p: float, tail: float) -> Distribution:
    """Binomial(n, p) with its upper ``tail`` left out; negligible small values are moved up."""
    if p >= 1.0 or n == 0:
        return Distribution(np.array([float(n)]), np.ones(1))
    low = int(stats.binom.ppf(_NEGLIGIBLE, n, p))
    high = int(stats.binom.isf(tail, n, p))
    values = np.arange(low, high + 1)
    probabilities = stats.binom.pmf(values, n, p)
    probabilities[0] += stats.binom.cdf(values[0] - 1, n, p)
    return _prune(Distribution(values.astype(np.float64), probabilities), tail)


def _raise_rare(distribution: Distribution, tail: float) -> Distribution:
    """Move the lower ``tail`` to the smallest value above it, which saves cases where the value is revealed."""
    low = int(np.searchsorted(np.cumsum(distribution.probabilities), tail))
    probabilities = distribution.probabilities[low:].copy()
    probabilities[0] += distribution.probabilities[:low].sum()
    return Distribution(distribution.values[low:], probabilities)


def _coarsen(distribution: Distribution) -> Distribution:
    """At most ``_MOST_CASES`` values: of equally many neighbours only the largest stays."""
    size = -(-len(distribution.values) // _MOST_CASES)
    starts = np.arange(0, len(distribution.values), size)
    ends = np.minimum(starts + size, len(distribution.values)) - 1
    return Distribution(distribution.values[ends], np.add.reduceat(distribution.probabilities, starts))


def _bernoulli(probability: float, distribution: Distribution) -> Distribution:
    """coin · value: 0 when the coin with ``probability`` falls, else a draw of ``law``."""
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
    """Leave out the largest values (a certain loss) up to ``tail``; very rare values join the next larger one.

    A rare small shift still sets the loss where nothing else of P comes near, so it is merged only if negligible.
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
