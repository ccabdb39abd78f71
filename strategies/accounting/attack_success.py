"""Bound what an attacker who tests for the protected unit can reach: the true positive rate at a false positive rate.

(ε, δ) differential privacy holds for every δ at the ε of that δ, and each such pair bounds every test between the two
corpora: TPR ≤ δ + e^ε·FPR and TPR ≤ 1 − e^−ε·(1 − δ − FPR) (Wasserman and Zhou 2010; Kairouz, Oh and Viswanath 2015).
The smallest over a few δ counts.

>>> from fl_sim.strategies.accounting.accountant import RoundEvent, epsilon
>>> from fl_sim.strategies.accounting.adjacency import Adjacency
>>> gaussian = RoundEvent("user_level", noise_multiplier=1.0)  # one round, everybody: exactly Φ(Φ⁻¹(FPR) + 1)
>>> rate = largest_true_positive_rate(lambda delta: epsilon(gaussian, Adjacency(), 1, delta), false_positive_rate=0.01)
>>> 0.0923 < rate < 0.097
True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fl_sim.strategies.primitives.limits import require

FALSE_POSITIVE_RATES = (0.001, 0.01)
DELTAS = (1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
"""The δ of which the best counts, fixed in advance; any others would be valid as well."""


def largest_true_positive_rate(
    epsilon_at: Callable[[float], float], false_positive_rate: float, deltas: Sequence[float] = DELTAS
) -> float:
    """Return an upper bound on the true positive rate of every test at ``false_positive_rate``, in (0, 1).

    ``epsilon_at`` returns a proven ε at a δ, ∞ where none is; the best of the ``deltas``, fixed in advance, counts.
    """
    require(0 < false_positive_rate < 1, "false_positive_rate", false_positive_rate, "in (0, 1)")
    return min((_bound(epsilon_at(delta), delta, false_positive_rate) for delta in deltas), default=1.0)


def _bound(epsilon: float, delta: float, false_positive_rate: float) -> float:
    """Return the bound of one pair (ε, δ), at most 1."""
    if math.isinf(epsilon) or epsilon > 700:
        return 1.0
    by_positives = delta + math.exp(epsilon) * false_positive_rate
    by_negatives = 1.0 - math.exp(-epsilon) * (1.0 - delta - false_positive_rate)
    return min(1.0, by_positives, by_negatives)
