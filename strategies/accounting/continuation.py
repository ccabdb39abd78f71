"""Compute ε of a training that continues earlier ones: their rounds, followed by 1, 2, …, T rounds of its own.

A run that starts from a privately trained model releases its rounds after those of the earlier training. The product
of all dominating pairs dominates both together (docs/privacy.md, section 9).

>>> earlier = [(RoundEvent("user_level", 4.0, q_u=0.1), Adjacency(), 20)]
>>> epsilon_curve(earlier, RoundEvent("user_level", 3.0, q_u=0.1), Adjacency(), [1, 10], delta=1e-5).round(2)
array([0.45, 0.61])
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fl_sim.strategies.accounting import accountant
from fl_sim.strategies.accounting.accountant import Part, RoundEvent
from fl_sim.strategies.accounting.adjacency import Adjacency
from fl_sim.strategies.accounting.losses.privacy_loss import Floats

MOST_COMPOSED = 8
"""Numbers of further rounds for which ε is computed, at most; between two of them the later, larger one holds."""


def epsilon_curve(
    earlier: Sequence[Part], event: RoundEvent, adjacency: Adjacency, rounds: Sequence[int], delta: float
) -> Floats:
    """Return ε of ``earlier`` and each number of further rounds, float64 (len(rounds),); inf where none is provable.

    Args:
        earlier: the rounds that were released before, of one run or of several.
        event: the event of every further round.
        adjacency: the protected unit in the further rounds.
        rounds: numbers of further rounds, each at least 1, in any order.
        delta: δ of the guarantee, in (0, 1).

    Raises:
        PrivacyError: a number of rounds or ``delta`` is impossible.
    """
    if not earlier:
        return accountant.epsilon_curve(event, adjacency, rounds, delta)
    accountant.check_rounds(rounds)
    wanted = np.asarray(rounds, dtype=np.int64)
    distinct = np.unique(wanted)
    positions = np.unique(np.linspace(0, len(distinct) - 1, min(len(distinct), MOST_COMPOSED)).round().astype(np.int64))
    computed = distinct[positions]
    curve = [accountant.composed_epsilon([*earlier, (event, adjacency, int(count))], delta) for count in computed]
    # Fewer rounds are a part of what more rounds release.
    monotone = np.minimum.accumulate(np.array(curve)[::-1])[::-1]
    return np.asarray(monotone[np.searchsorted(computed, wanted)])


def epsilon_before(earlier: Sequence[Part], delta: float) -> float:
    """Return ε of the earlier rounds alone; 0 if there are none, inf where none is provable."""
    return accountant.composed_epsilon(earlier, delta)
