"""Add vectors in a fixed order, whatever the order of their arrival: a sum of floats depends on its order.

A vector that comes in its turn is added at once and forgotten; one that comes early waits. With as many nodes as
workers, at most one vector per worker waits.

>>> total = OrderedSum([3, 1, 2], size=2)
>>> total.settle(2, np.array([1.0, 0.0], dtype=np.float32))  # waits for node 1
>>> total.settle(1, None)  # node 1 sent nothing: node 2 is added
>>> total.finish()  # node 3 was silent
array([1., 0.])
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]


class OrderedSum:
    """Hold the running sum of the vectors of nodes, added in ascending order of node ids.

    Args:
        nodes: the ids of the nodes that may send a vector.
        size: d, the number of coordinates.
    """

    def __init__(self, nodes: Iterable[int], size: int) -> None:
        self._turns = deque(sorted(nodes))
        self._early: dict[int, Vector | None] = {}
        self._total = np.zeros(size)

    def settle(self, node: int, vector: Vector | None) -> None:
        """Add the vector of a node when its turn comes.

        Args:
            node: the id, one of ``nodes`` that has not been settled.
            vector: float32 (d,); None if the node counts as zero.
        """
        self._early[node] = vector
        while self._turns and self._turns[0] in self._early:
            self._add(self._early.pop(self._turns.popleft()))

    def finish(self) -> npt.NDArray[np.float64]:
        """Return the sum, float64 (d,); nodes that were not settled count as zero."""
        for node in sorted(self._early):
            self._add(self._early.pop(node))
        return self._total

    def _add(self, vector: Vector | None) -> None:
        if vector is not None:
            self._total += vector
