"""Bound δ at a claimed ε from below by simulating the privacy loss of one pair of corpora; no accountant is involved.

The pair is that of docs/privacy.md: every protected sentence pulls one way, with a gradient longer than the clip. A
round releases the shift of :mod:`fl_sim.auditing.real_rounds.canary_shifts` plus Gaussian noise. With L the privacy
loss of T rounds, δ(ε) = E[(1 − e^{ε−L})⁺] on the corpus with the protected data; the empirical Bernstein bound (Maurer
and Pontil 2009) limits this mean from below.

>>> law = Distribution(np.array([1.0]), np.zeros(1))  # one Gaussian with μ = 1: δ(1) is 0.127
>>> 0.12 < delta_at_least(law, noise_std=1.0, rounds=1, epsilon=1.0, seed=0) < 0.127
True
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fl_sim.auditing.attack import Distribution
from fl_sim.auditing.real_rounds.canary_shifts import log_ratios
from fl_sim.strategies.primitives import streams

TRIALS = 400_000
FAILURE = 1e-4
_AT_ONCE = 20_000


def delta_at_least(
    law: Distribution, noise_std: float, rounds: int, epsilon: float, seed: int, trials: int = TRIALS
) -> float:
    """Return a lower bound on δ at ``epsilon`` after ``rounds`` rounds; it fails with probability 1e-4.

    Args:
        law: the distribution of a round's shift.
        noise_std: the standard deviation of the noise, in the unit of the shift.
        rounds: T.
        epsilon: ε.
        seed: of the simulation.
        trials: the number of simulated trainings.
    """
    rng = streams.generator(seed, "simulated losses")
    parts = []
    for start in range(0, trials, _AT_ONCE):
        losses = _losses(law, noise_std, rounds, min(_AT_ONCE, trials - start), rng)
        parts.append(-np.expm1(np.minimum(epsilon - losses, 0.0)))
    excess = np.concatenate(parts)
    spread = math.log(2 / FAILURE)
    slack = math.sqrt(2 * excess.var(ddof=1) * spread / trials) + 7 * spread / (3 * (trials - 1))
    return max(0.0, float(excess.mean()) - slack)


def _losses(
    law: Distribution, noise_std: float, rounds: int, trials: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return the privacy losses of trainings on the corpus with the protected data, float64 (trials,)."""
    weights = np.exp(law.log_weights)
    shifts = rng.choice(law.values, size=(rounds, trials), p=weights / weights.sum())
    return log_ratios(law, shifts + noise_std * rng.standard_normal(shifts.shape), noise_std)
