"""Clip vectors: Π_r, the projection onto the L2 ball of radius r, bounds one sentence's and one user's contribution.

Π_r(x) = x · min(1, r / ‖x‖) is the projection onto a convex set and therefore 1-Lipschitz; the proof of the guarantee
(docs/privacy-proofs.md) uses this and ‖Π_r(x)‖ ≤ r.

>>> gradient = np.array([3.0, 4.0], dtype=np.float32)
>>> project(gradient, radius=1.0)
5.0
>>> gradient.round(3), round(norm(gradient), 3)
(array([0.6, 0.8], dtype=float32), 1.0)
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]

SMALLEST_FACTOR = float(np.finfo(np.float32).tiny)
"""The smallest factor of a clip; rounded to a float32, a smaller one could leave twice the radius."""


def norm(vector: Vector) -> float:
    """Return the L2 norm of a float32 (d,) vector, accumulated in float64; NaN or inf if a coordinate is not finite."""
    return math.sqrt(float(np.einsum("i,i->", vector, vector, dtype=np.float64)))


def factor_of(length: float, radius: float) -> float:
    """Return min(1, r/‖x‖), the factor of Π_r for an x of a finite ``length``; 0 below :data:`SMALLEST_FACTOR`."""
    if length <= radius:
        return 1.0
    factor = radius / length
    return factor if factor >= SMALLEST_FACTOR else 0.0


def project(vector: Vector, radius: float) -> float:
    """Replace ``vector`` by Π_radius(vector) in place.

    Args:
        vector: float32 (d,); it becomes zero if a coordinate is not finite, because no factor could bound it.
        radius: the largest norm afterwards, at least 0; ``math.inf`` leaves a finite vector unchanged.

    Returns:
        The norm before the projection; not finite if and only if the vector became zero for that reason.
    """
    length = norm(vector)
    if not math.isfinite(length):
        vector[:] = 0
    elif length > radius:
        vector *= factor_of(length, radius)
    return length
