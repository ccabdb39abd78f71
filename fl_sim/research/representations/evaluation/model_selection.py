"""Which of many trained models counts: the fairest among those whose accuracy is near the best (FEDERATE, §5.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model: a grid point after an epoch, with what validation says.

    Attributes:
        point: what identifies the grid point. epoch: from 1.
        accuracy: on validation, a share. unfairness: |TPR-gap| there (or GRMS); the less the better.
    """

    point: Any
    epoch: int
    accuracy: float
    unfairness: float


def select(candidates: Sequence[Candidate], relaxation: float) -> Candidate:
    """The least unfair candidate with an accuracy in [α* − relaxation, α*], α* the best; the more accurate, then the
    earlier of equals.

    Args:
        candidates: at least one. relaxation: the relaxation threshold, a share (the paper's 1.0 is 0.01).
    """
    best = max(candidate.accuracy for candidate in candidates)
    near = [c for c in candidates if c.accuracy >= best - relaxation - 1e-12]
    return min(near, key=lambda c: (math.inf if math.isnan(c.unfairness) else c.unfairness, -c.accuracy, c.epoch))
