"""Exact distributions of sums of discrete Gaussians, by convolution of their probabilities: an oracle of the tests."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
HALF = 400
"""Integers from −HALF to HALF carry all the mass."""


def gaussian(variance: float) -> Floats:
    """Return the probabilities of N_Z(0, ``variance``), float64 (2·HALF + 1,)."""
    masses = np.exp(-(np.arange(-HALF, HALF + 1) ** 2) / (2 * variance))
    return np.asarray(masses / masses.sum())


def summed(*laws: Floats) -> Floats:
    """Return the probabilities of a sum of independent integers, float64 (2·HALF + 1,)."""
    total = np.zeros(2 * HALF + 1)
    total[HALF] = 1.0
    for law in laws:
        total = np.convolve(total, law)[HALF : 3 * HALF + 1]
    return total


def moved(law: Floats, shift: int) -> Floats:
    """Return the probabilities of the integer plus ``shift``, from 0 on."""
    return np.concatenate([np.zeros(shift), law])[: len(law)]


def hockey_stick(larger: Floats, smaller: Floats, epsilon: float) -> float:
    """Return Σ (P − e^ε·Q)₊."""
    return float(np.maximum(larger - math.exp(epsilon) * smaller, 0.0).sum())


def epsilon_of(delta_at: object, delta: float) -> float:
    """Return the smallest ε with ``delta_at(ε)`` at most ``delta``, by bisection."""
    low, high = 0.0, 60.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if delta_at(middle) <= delta else (middle, high)  # type: ignore[operator]
    return high
