"""Compute the same quantities slowly and plainly, without the accountant's code."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping

import numpy as np
from scipy import optimize, stats

from fl_sim.strategies.accounting.accountant import Part, RoundEvent
from fl_sim.strategies.accounting.adjacency import Adjacency
from fl_sim.strategies.accounting.losses.convolution import TiltedLoss
from fl_sim.strategies.accounting.losses.privacy_loss import GridLoss, LossAtoms
from fl_sim.strategies.accounting.random_allocation import EpochEvent


def shift_distribution(
    event_rates: tuple[float, float, float], user_sentences: float, sampled: int, per_user: int, cap: float
) -> tuple[np.ndarray, np.ndarray]:
    """Values and probabilities of (min(B·K', ŵ) + A·K)/ŵ for M sampled users, by enumeration."""
    q_u, q_e, q_s = event_rates
    own = {cap: 1.0} if math.isinf(user_sentences) else _binomial(int(user_sentences), q_s)
    shared = _binomial(sampled * per_user, q_s)
    return law(
        ((b * min(k_own, cap) + a * min(k, 2 * cap * sampled)) / cap, p_own * p * coin(b, q_u) * coin(a, q_e))
        for (k_own, p_own), (k, p), b, a in itertools.product(own.items(), shared.items(), (0, 1), (0, 1))
    )


def _binomial(n: int, p: float) -> dict[float, float]:
    return {float(k): float(stats.binom.pmf(k, n, p)) for k in range(n + 1)}


def hockey_stick(losses: np.ndarray, masses: np.ndarray, at: float) -> float:
    """The divergence at ε of the finite losses of a distribution."""
    beyond = losses > at
    return float((masses[beyond] * -np.expm1(at - losses[beyond])).sum())


def divergence(loss: GridLoss | LossAtoms, at: float) -> float:
    """The divergence at ε that a loss states, all that it does not hold included."""
    losses = loss.losses if isinstance(loss, LossAtoms) else points_of(loss)
    return hockey_stick(losses, loss.masses, at) + loss.infinite + loss.round_off


def all_of(events: Mapping[RoundEvent, int] | Mapping[EpochEvent, int], adjacency: Adjacency) -> list[Part]:
    """The kinds of rounds, by their numbers, that all expose the same."""
    return [(event, adjacency, count) for event, count in events.items()]


def points_of(loss: GridLoss | TiltedLoss) -> np.ndarray:
    return loss.width * (loss.first + np.arange(len(loss.masses)))


class ScalarPair:
    """P = Σ p_i N(s_i, z²) against Q = Σ r_j N(t_j, z²), densities on a fine grid of x."""

    def __init__(self, larger: tuple[np.ndarray, np.ndarray], smaller: tuple[np.ndarray, np.ndarray], z: float) -> None:
        low = min(larger[0].min(), smaller[0].min()) - 10 * z
        high = max(larger[0].max(), smaller[0].max()) + 10 * z
        self.x = np.linspace(low, high, 20_001)
        self.step = float(self.x[1] - self.x[0])
        self.p = self._density(*larger, z)
        self.q = self._density(*smaller, z)

    def _density(self, centres: np.ndarray, weights: np.ndarray, z: float) -> np.ndarray:
        return stats.norm.pdf(self.x[:, None], centres, z) @ weights

    def delta(self, epsilon: float) -> tuple[float, float]:
        """Hockey-stick divergence in both directions after one round."""
        gamma = math.exp(epsilon)
        return self._excess(self.p, gamma * self.q), self._excess(self.q, gamma * self.p)

    def delta_two_rounds(self, epsilon: float) -> tuple[float, float]:
        """The same after two rounds: the second round's divergence, averaged over the first one's loss."""
        rows = slice(None, None, 20)
        with np.errstate(divide="ignore"):
            loss = np.log(self.p[rows]) - np.log(self.q[rows])
        forward = [self._excess(self.p, math.exp(epsilon - value) * self.q) for value in loss]
        backward = [self._excess(self.q, math.exp(epsilon + value) * self.p) for value in loss]
        step = 20 * self.step
        return float(step * (self.p[rows] * forward).sum()), float(step * (self.q[rows] * backward).sum())

    def epsilon(self, delta: float) -> float:
        """ε of one round at ``delta``, the larger direction."""
        return float(optimize.brentq(lambda epsilon: max(self.delta(epsilon)) - delta, 0.0, 200.0))

    def _excess(self, one: np.ndarray, other: np.ndarray) -> float:
        return float(self.step * np.maximum(one - other, 0.0).sum())


def law(masses: Iterable[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    """Values and probabilities of pairs of both, equal values once."""
    distribution: dict[float, float] = {}
    for value, probability in masses:
        distribution[value] = distribution.get(value, 0.0) + probability
    values = np.array(sorted(distribution))
    return values, np.array([distribution[value] for value in values])


NOTHING = np.zeros(1), np.ones(1)
"""The law of a corpus that moves the sum by 0."""


def weighted_epsilon(
    sentences: int, k: float, cap: float, z: float, *, q_u: float = 1.0, user_sentences: float = 32, delta: float = 1e-5
) -> float:
    """ε that an adversary attains in one round (q_e 1, q_s 1) with an entity whose weights add up to ``k``.

    One user has all its ``sentences``, of equal weights. If that user always takes part, ŵ other sentences of it pull
    the other way, so that the entity can reverse its update. Another user is protected.
    """
    counts = np.arange(sentences + 1)
    active = stats.binom.pmf(counts, sentences, k / sentences)
    most = cap * (2 if q_u == 1 else 1)
    shifts = law(
        ((u * min(user_sentences, cap) + w * min(count, most)) / cap, mass * coin(u, q_u) * coin(w, q_u))
        for count, mass in zip(counts.tolist(), active.tolist(), strict=True)
        for u in (0, 1)
        for w in (0, 1)
    )
    return ScalarPair(shifts, NOTHING, z).epsilon(delta)


def coin(side: int, rate: float) -> float:
    return rate if side else 1 - rate


def revealed_delta(
    rates: tuple[float, float, float], user_sentences: float, users: int, per_user: int, cap: float, z: float, at: float
) -> float:
    """δ(``at``) of one round, the larger direction, averaged over the revealed number of sampled users."""
    both = np.zeros(2)
    for sampled in range(users + 1):
        distribution = shift_distribution(rates, user_sentences, sampled, per_user, cap)
        both += stats.binom.pmf(sampled, users, rates[0]) * np.array(ScalarPair(distribution, NOTHING, z).delta(at))
    return float(both.max())


def importance_sampled_delta(q_u: float, z: float, rounds: int, epsilon: float) -> tuple[float, float]:
    """Return δ(ε) of a subsampled Gaussian, the larger corpus against the smaller, and its standard deviation.

    The losses of single rounds are drawn under the exponential tilt that makes a sum of ε likely, so that a tiny δ
    takes no more draws than a large one.
    """
    x = np.linspace(-14 * z, 1 + 14 * z, 400_001)
    log_q = stats.norm.logpdf(x, 0.0, z)
    ratio = np.logaddexp(math.log1p(-q_u), math.log(q_u) + (2 * x - 1) / (2 * z * z))
    log_mass = log_q + ratio + math.log(x[1] - x[0])

    def cumulant(order: float) -> float:
        return float(np.logaddexp.reduce(log_mass + order * ratio))

    bound = optimize.minimize_scalar(lambda o: rounds * cumulant(o) - o * epsilon, bounds=(1e-3, 300), method="bounded")
    order, rng = float(bound.x), np.random.default_rng(0)
    distribution = np.cumsum(np.exp(log_mass + order * ratio - cumulant(order)))
    draws = np.concatenate(
        [
            ratio[np.searchsorted(distribution / distribution[-1], rng.random((100, rounds)))].sum(axis=1)
            for _ in range(60)
        ]
    )
    weights = np.exp(rounds * cumulant(order) - order * draws)
    values = np.where(draws > epsilon, weights * -np.expm1(np.minimum(epsilon - draws, 0.0)), 0.0)
    return float(values.mean()), float(values.std() / math.sqrt(len(values)))
