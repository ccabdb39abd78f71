"""Bound what an attacker can do who observes all released models: the true positive rate at a false positive rate.

The attacker decides whether the protected user and entity are in the corpus (membership inference), looks for their
presence or for their absence, and may know every other sentence. The guarantee bounds the true positive rate of a test
with false positive rate α by e^ε·α + δ(ε) for every ε (Wasserman and Zhou 2010; Kairouz, Oh and Viswanath 2015). The
smallest of these bounds, in both directions, is the trade-off function of the composed privacy loss (Dong, Roth and Su
2022). Like ε it holds for the worst corpus, whatever the attack.

>>> event = RoundEvent("uedp", noise_multiplier=4.0, q_e=0.5, q_s=0.1, user_cap=2)
>>> true_positive_rates(event, Adjacency(user_sentences=12), rounds=30, false_positive_rates=[0.001, 0.01]).round(3)
array([0.009, 0.056])
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fl_sim.strategies.accounting import accountant, composition
from fl_sim.strategies.accounting.accountant import Part, RoundEvent
from fl_sim.strategies.accounting.adjacency import Adjacency, PrivacyError
from fl_sim.strategies.accounting.privacy_loss import Floats

_POINTS = 1024  # values of ε at which the bound is taken, as many again by ratio
_LEAST_EPSILON = 1e-7
_ROUND_OFF = 1e-12
_DELTAS = (1e-3, 1e-9)  # at which the proof for each kind of round is chosen


def true_positive_rates(
    event: RoundEvent, adjacency: Adjacency, rounds: int, false_positive_rates: Sequence[float]
) -> Floats:
    """Return upper bounds on the true positive rate at each false positive rate, float64 (num_rates,).

    Args:
        event: the event of every round.
        adjacency: the protected user and entity.
        rounds: number of rounds.
        false_positive_rates: α, each above 0 and below 1.

    Raises:
        PrivacyError: if ``rounds`` or a rate is impossible.
    """
    accountant.check_rounds([rounds])
    return composed_true_positive_rates([(event, adjacency, rounds)], false_positive_rates)


def composed_true_positive_rates(parts: Iterable[Part], false_positive_rates: Sequence[float]) -> Floats:
    """Return the same bounds after rounds of several kinds; see :func:`accountant.composed_epsilon`.

    Args:
        parts: the kinds of rounds and their numbers, 0 included.
        false_positive_rates: α, each above 0 and below 1.

    Raises:
        PrivacyError: if a number of rounds or a rate is impossible.
    """
    for rate in false_positive_rates:
        if not 0 < rate < 1:
            raise PrivacyError(f"false_positive_rate is {rate}; allowed: between 0 and 1, both excluded")
    rates = np.asarray(false_positive_rates, dtype=np.float64)
    kinds, result = accountant.merged(parts), np.ones(len(rates))
    if not kinds or not len(rates):
        return rates
    most = -np.log(rates.min())
    epsilons = np.sort(np.append(np.linspace(0.0, most, _POINTS), np.geomspace(_LEAST_EPSILON, most, _POINTS)))
    for choice in [choice for delta in _DELTAS for choice in accountant.dominating_parts(kinds, delta)]:
        forward, reverse = composition.deltas_of_parts(choice, epsilons)
        sides = [_bounds(rates, epsilons, forward, reverse), _bounds(rates, epsilons, reverse, forward)]
        result = np.minimum(result, np.max(sides, axis=0))
    return result


def _bounds(rates: Floats, epsilons: Floats, deltas: Floats, opposite: Floats) -> Floats:
    """Return bounds on P(reject) by Q(reject), float64 (num_rates,).

    Args:
        rates: Q(reject), float64 (num_rates,).
        epsilons: ε, float64 (num_epsilons,).
        deltas: bounds on the divergence of P from Q at each ε, float64 (num_epsilons,).
        opposite: bounds on that of Q from P, which bounds Q(accept) by P(accept), float64 (num_epsilons,).
    """
    rejected = np.multiply.outer(rates, np.exp(epsilons)) + deltas
    accepted = 1 - np.maximum(1 - rates[:, None] - opposite, 0.0) * np.exp(-epsilons)
    return np.minimum(np.minimum(rejected, accepted).min(axis=1) * (1 + _ROUND_OFF), 1.0)
