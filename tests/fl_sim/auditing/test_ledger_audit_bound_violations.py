"""Test the check of enforced bounds: on weights that keep them, and on every way of breaking them."""

from __future__ import annotations

import numpy as np
import pytest

from fl_sim.auditing.ledger_audit import violations
from fl_sim.data_prep.store.ownership import Ownership

# user 0: sentences 0 (entities 0, 1), 1 (entity 0), 2 (none); user 1: sentences 3 (entity 0), 4 (entity 1)
OWNERSHIP = Ownership(
    user_offsets=np.array([0, 3, 5]),
    entity_offsets=np.array([0, 2, 3, 3, 4, 5]),
    entity_ids=np.array([0, 1, 0, 0, 1], dtype=np.int32),
    num_entities=2,
)
LIMITS: dict[str, int] = {"entity_sentences": 2, "entity_users": 1, "user_sentences": 2}
KEPT = np.array([0.0, 1.0, 1.0, 0.0, 1.0])


def test_weights_within_the_bounds_pass() -> None:
    assert violations(OWNERSHIP, KEPT, **LIMITS) == []
    assert violations(OWNERSHIP, np.ones(5)) == []
    thirds = np.array([1 / 3, 1 / 3, 0.5, 1 / 3, 1 / 3])
    assert violations(OWNERSHIP, thirds, entity_sentences=1.0) == []


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.array([1.0, 1.0, 0.0, 1.0, 0.0]), "entity 0 has weight 3 in sentences; allowed: at most 2"),
        (np.array([0.0, 1.0, 0.0, 0.1, 0.0]), "entity 0 has 2 users; allowed: at most 1"),
        (np.array([1.0, 0.5, 0.75, 0.0, 0.0]), "user 0 has weight 2.25 in sentences; allowed: at most 2"),
        (np.array([0.0, 1.5, 0.0, 0.0, 0.0]), "sentence 1 has weight 1.5; allowed: 0 to 1"),
        (np.array([0.0, np.nan, 0.0, 0.0, 0.0]), "sentence 1 has weight nan; allowed: 0 to 1"),
        (np.ones(4), r"weights have shape (4,); allowed: (5,)"),
    ],
)
def test_every_violation_is_named(weights: np.ndarray, message: str) -> None:
    assert message in violations(OWNERSHIP, weights, **LIMITS)
