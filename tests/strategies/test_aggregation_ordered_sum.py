"""The order of arrival changes no bit of a sum, and a vector that was added is not kept."""

from __future__ import annotations

import weakref
from itertools import permutations

import numpy as np
import pytest

from fl_sim.strategies.aggregation import OrderedSum

VECTORS = {
    node: np.random.default_rng(node).normal(scale=10.0**node, size=50).astype(np.float32) for node in (2, 3, 5, 9)
}


def summed(order: tuple[int, ...], silent: frozenset[int] = frozenset()) -> bytes:
    total = OrderedSum(VECTORS, 50)
    for node in order:
        if node not in silent:
            total.settle(node, VECTORS[node])
    return total.finish().tobytes()


@pytest.mark.parametrize("silent", [(), (2,), (5,), (2, 9)])
def test_every_order_of_arrival_gives_the_same_bits(silent: tuple[int, ...]) -> None:
    expected = np.zeros(50)
    for node in sorted(VECTORS):
        if node not in silent:
            expected += VECTORS[node]
    assert {summed(order, frozenset(silent)) for order in permutations(VECTORS)} == {expected.tobytes()}


def test_a_node_that_counts_as_zero_keeps_nobody_waiting() -> None:
    total = OrderedSum([1, 2], size=1)
    early = np.ones(1, np.float32)
    kept = weakref.ref(early)
    total.settle(2, early)
    del early
    assert kept() is not None  # it waits for node 1
    total.settle(1, None)
    assert kept() is None  # it was added and forgotten
    np.testing.assert_array_equal(total.finish(), [1.0])
