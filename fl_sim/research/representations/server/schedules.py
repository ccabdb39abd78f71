"""Schedules over epochs: the weight of the adversaries, and ε of adaptive noise.

>>> [round(rising_weight(1.0, epoch, epochs=10), 3) for epoch in (0, 5, 9)]
[0.0, 0.941, 0.996]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

EpsilonSchedule = Callable[[int], float]
"""ε_n of epoch n, from 1."""

AdaptiveName = Literal["1/n", "10/n"]
ADAPTIVE: dict[AdaptiveName, EpsilonSchedule] = {"1/n": lambda n: 1 / n, "10/n": lambda n: 10 / n}
"""The schedules of the study of DPNR, by name."""

STEEPNESS = 7.0
"""p_i rises from 0 to this over the epochs: "scaled" in the paper, 7·i/epochs in its published code."""


WeightSchedule = Literal["rising", "constant"]
"""λ of an epoch: from 0 to λ (FEDERATE), or always λ."""


def rising_weight(weight: float, epoch: int, epochs: int) -> float:
    """Return λ·λ_i, λ_i = 2/(1 + e^(−p_i)) − 1 with p_i = 7·i/epochs (FEDERATE, appendix D.4).

    Args:
        weight: λ.
        epoch: i, from 0.
        epochs: of the schedule.
    """
    return weight * (2.0 / (1.0 + math.exp(-STEEPNESS * epoch / epochs)) - 1.0)
