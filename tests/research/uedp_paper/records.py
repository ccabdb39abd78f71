"""Parts of records that several tests are about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fl_sim.research.uedp_paper.figure_records import Epsilons, PointRecord, spread


def plain_point(
    values: Sequence[float], start: float, *, x: float | None = None, of_entity: float | None = None, **epsilons: Any
) -> PointRecord:
    """Return a point of runs that end at ``values``; ε of an entity in the corpus is ``of_entity``."""
    of_corpus = dict.fromkeys(("user_entity_median", "user_entity_p95", "user_entity_max", "robust_p95"), of_entity)
    return PointRecord(
        x=x, settings={}, noise_multiplier=1.0, utility=spread(values), initial=spread([start] * len(values)),
        epsilon=Epsilons(**of_corpus, **epsilons), trace=None, seconds=61.0,
    )  # fmt: skip
