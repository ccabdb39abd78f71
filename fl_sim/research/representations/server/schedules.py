"""How the adversaries' weight grows over epochs, and how the noise of adaptive training changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

EpsilonSchedule = Callable[[int], float]
"""ε_n of epoch n, from 1."""

AdaptiveName = Literal["1/n", "10/n"]
ADAPTIVE: dict[AdaptiveName, EpsilonSchedule] = {"1/n": lambda n: 1 / n, "10/n": lambda n: 10 / n}
"""The schedules that the study of DPNR tries."""

STEEPNESS = 7.0
"""p_i runs from 0 to this over the epochs: the paper says "scaled", its published code 7·i/epochs."""


def adversary_weight(weight: float, epoch: int, epochs: int) -> float:
    """λ·λ_i, λ_i = 2/(1 + e^(−p_i)) − 1 with p_i = 7·i/epochs, i = ``epoch`` from 0 (FEDERATE, appendix D.4)."""
    return weight * (2.0 / (1.0 + math.exp(-STEEPNESS * epoch / epochs)) - 1.0)
