"""Compute how far a canary user and a canary entity move a round's sum, as the theorems of docs/privacy.md state it.

Every sentence of a canary has the same direction and a gradient longer than the clip. A user with k eligible sentences
then moves the sum by g(k) = min(k, ŵ)/ŵ user clips if sentences are clipped, and by g(k) = [k > 0] otherwise. The shift
of a round is A·Σ_f g(K_f) + g(K'), with A ~ Bernoulli(q_e), K_f and K' binomial and thinned by q_u.

>>> event = RoundEvent("uedp", 4.0, q_e=0.5, q_s=0.5, user_cap=2)
>>> law = shift_distribution(event, Scenario(reach_users=1, reach_sentences=1, user_sentences=1))
>>> law.values, np.exp(law.log_weights).round(4)
(array([0. , 0.5, 1. ]), array([0.375, 0.5  , 0.125]))
>>> mean_shift(law)
0.375
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fl_sim.auditing.attack import Distribution
from fl_sim.auditing.worst_case_corpora import Scenario
from fl_sim.strategies.accounting.accountant import RoundEvent

Floats = NDArray[np.float64]

_DECIMALS = 9
_NEGLIGIBLE = 1e-14  # probability of a value that is left out


def shift_distribution(event: RoundEvent, scenario: Scenario) -> Distribution:
    """Return the distribution of the shift of a round's sum, in user clips.

    Args:
        event: the event of the round.
        scenario: the sentences of the canary user, and of the users who mention the canary entity.
    """
    alone = _of_user(event, scenario.user_sentences)
    mentions = _of_user(event, scenario.reach_sentences)
    entity = {0.0: 1.0}
    for _ in range(scenario.reach_users):
        entity = _sum(entity, mentions)
    entity = {length: event.q_e * p for length, p in entity.items()}
    entity[0.0] = entity.get(0.0, 0.0) + 1 - event.q_e
    total = _sum(alone, entity)
    lengths = sorted(total)
    weights = np.array([total[length] for length in lengths])
    return Distribution(np.array(lengths) / _cap(event), np.log(weights / weights.sum()))


def mean_shift(law: Distribution) -> float:
    """Return the expected shift of a round, in user clips."""
    return float(law.values @ np.exp(law.log_weights))


def log_ratios(law: Distribution, outputs: Floats, noise_std: float) -> Floats:
    """Return ln(density with the canary / density without it) of every training.

    Args:
        law: the distribution of the shift.
        outputs: the releases along one direction per canary, in user clips, float64 (rounds, canaries).
        noise_std: the standard deviation of their noise.

    Returns:
        float64 (canaries,).
    """
    nothing = Distribution(np.zeros(1), np.zeros(1))
    return law.log_likelihood(outputs, noise_std) - nothing.log_likelihood(outputs, noise_std)


def _cap(event: RoundEvent) -> float:
    """Return the number of sentences in a user clip; 1 if sentences are not clipped."""
    return event.user_cap if event.clips_sentences else 1.0


def _of_user(event: RoundEvent, sentences: int) -> dict[float, float]:
    """Return the probabilities of ŵ·g(K) of a user with ``sentences`` sentences, by value."""
    counts = np.arange(sentences + 1)
    chances = event.q_u * stats.binom.pmf(counts, sentences, event.q_s)
    law = {0.0: 1 - event.q_u}
    for count, chance in zip(counts.tolist(), chances.tolist(), strict=True):
        length = min(float(count), _cap(event))
        law[length] = law.get(length, 0.0) + chance
    return {length: chance for length, chance in law.items() if chance > _NEGLIGIBLE}


def _sum(first: dict[float, float], second: dict[float, float]) -> dict[float, float]:
    """Return the probabilities of the sum of two independent shifts."""
    law: dict[float, float] = {}
    for a, p in first.items():
        for b, q in second.items():
            length = round(a + b, _DECIMALS)
            law[length] = law.get(length, 0.0) + p * q
    return {length: chance for length, chance in law.items() if chance > _NEGLIGIBLE}
