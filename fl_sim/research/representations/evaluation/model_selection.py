"""Model selection: the fairest model among those of nearly the best accuracy (FEDERATE, §5.1).

>>> models = [Candidate("a", 1, 0.84, 0.10), Candidate("b", 2, 0.835, 0.03), Candidate("c", 1, 0.80, 0.0)]
>>> select(models, relaxation=0.01).point
'b'
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Candidate:
    """A grid point's model after an epoch, with its validation metrics.

    Attributes:
        point: identifies the grid point.
        epoch: from 1.
        accuracy: on validation, a share.
        unfairness: |TPR-gap| on validation, or GRMS; lower is better.
    """

    point: Any
    epoch: int
    accuracy: float
    unfairness: float


def select(candidates: Sequence[Candidate], relaxation: float) -> Candidate:
    """Return the least unfair candidate with an accuracy in [α* − relaxation, α*], α* the best accuracy.

    Ties go to the more accurate candidate, then to the earlier epoch.

    Args:
        candidates: at least one.
        relaxation: the relaxation threshold, a share (the paper's 1.0 is 0.01).
    """
    best = max(candidate.accuracy for candidate in candidates)
    near = [c for c in candidates if c.accuracy >= best - relaxation - 1e-12]
    return min(near, key=lambda c: (math.inf if math.isnan(c.unfairness) else c.unfairness, -c.accuracy, c.epoch))
