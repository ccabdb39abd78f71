"""Bounding what one sentence and one user can move: Π_r, the projection on the L2 ball of radius r.

Π_r(x) = x · min(1, r / ‖x‖) is the projection on a convex set and therefore 1-Lipschitz; the proof of the guarantee
(docs/privacy.md) rests on that and on ‖Π_r(x)‖ ≤ r.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]


def norm(vector: Vector) -> float:
    """The L2 norm over all coordinates, accumulated in float64 (NaN or inf when a coordinate is not finite)."""
    return math.sqrt(float(np.einsum("i,i->", vector, vector, dtype=np.float64)))


def project(vector: Vector, radius: float) -> float:
    """Replace ``vector`` by Π_radius(vector) in place; ``math.inf`` leaves it as it is.

    A vector with a coordinate that is not finite carries no information that could be bounded: it becomes zero.

    Returns:
        The norm before the projection; not finite exactly when the vector was replaced by zero.
    """
    length = norm(vector)
    if not math.isfinite(length):
        vector[:] = 0
    elif length > radius:
        vector *= radius / length
    return length
