"""Put an update on the integer lattice: rotate, round at random within a norm bound, reduce modulo 2^bits.

The ε of a sum rests on one fact alone: the squared norm of each rounded vector is an integer that is at most the public
bound. :func:`round_within` checks it in whole numbers, so neither rounding errors nor a faulty update can break it.

>>> from fl_sim.research.secure_sum.discrete_gaussian import seeded_words
>>> rotation = Rotation(size=3, seed=7)
>>> vector = np.array([0.5, -1.0, 2.0])
>>> bool(np.allclose(rotation.undo(rotation.apply(vector)), vector)), rotation.padded
(True, 4)
>>> rounded = round_within(np.array([1.2, -0.7]), norm_bound_squared=4, words=seeded_words(0, "rounding"))
>>> int(rounded @ rounded) <= 4
True
>>> centred(residues(np.array([-3, 5, 130]), bits=8), bits=8)
array([  -3,    5, -126])
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from fl_sim.research.secure_sum.discrete_gaussian import Integers, Words
from fl_sim.strategies.primitives import streams

Floats = npt.NDArray[np.float64]

MOST_BITS = 40
"""The largest modulus is 2⁴⁰: sums of a million such residues fit into 64 bits."""
_ATTEMPTS = 64
_UNIT = 2.0**-53


class Rotation:
    """Rotate vectors by a public random orthogonal matrix: random signs, then the Hadamard transform.

    It spreads a long coordinate over all, so that fewer bits hold a sum. Norms stay the same.
    """

    def __init__(self, size: int, seed: int) -> None:
        """Draw the signs.

        Args:
            size: d, the number of coordinates.
            seed: public; all nodes and the server have the same one.
        """
        self.size = size
        self.padded = padded_size(size)
        words = streams.generator(seed, "rotation").integers(0, 2, self.padded)
        self._signs: Floats = (2 * words - 1).astype(np.float64)

    def apply(self, vector: Floats) -> Floats:
        """Return the rotated vector, float64 (padded,)."""
        padded = np.zeros(self.padded)
        padded[: self.size] = vector
        return _hadamard(padded * self._signs)

    def undo(self, rotated: Floats) -> Floats:
        """Return the vector that was rotated, float64 (size,)."""
        return (_hadamard(rotated) * self._signs)[: self.size]


def padded_size(size: int) -> int:
    """Return D, the smallest power of two that is at least ``size``."""
    return 1 << (size - 1).bit_length()


def _hadamard(vector: Floats) -> Floats:
    """Return H·vector for the orthonormal Hadamard matrix H, float64 (len(vector),), a power of two; H·H = 1."""
    result = vector
    half = 1
    while half < len(vector):
        pairs = result.reshape(-1, 2, half)
        result = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).ravel()
        half *= 2
    return result / math.sqrt(len(vector))


def round_within(vector: Floats, norm_bound_squared: int, words: Words) -> Integers:
    """Return ``vector`` with each coordinate rounded up or down at random, int64 (len(vector),), within a norm bound.

    The mean of unconditioned rounding is the vector. Roundings longer than the bound are drawn again; after 64 of them
    the vector is rounded towards zero, and one that is too long even so, or not finite, becomes zero.

    Args:
        vector: the scaled update, float64 (D,).
        norm_bound_squared: the largest squared norm of the result.
        words: the source of randomness.
    """
    finite = float(np.abs(vector).max()) <= norm_bound_squared  # NaN is not
    if not finite or float(vector @ vector) > norm_bound_squared:
        return np.zeros(len(vector), dtype=np.int64)
    low = np.floor(vector)
    share = vector - low
    for _ in range(_ATTEMPTS):
        up = (words(len(vector)) >> np.uint64(11)) * _UNIT < share
        rounded: Integers = low.astype(np.int64) + up
        if int(rounded @ rounded) <= norm_bound_squared:
            return rounded
    towards_zero: Integers = np.trunc(vector).astype(np.int64)
    if int(towards_zero @ towards_zero) <= norm_bound_squared:
        return towards_zero
    return np.zeros(len(vector), dtype=np.int64)


def residues(integers: Integers, bits: int) -> npt.NDArray[np.uint64]:
    """Return integers modulo 2^``bits``, uint64 (D,): all that leaves a node."""
    return (integers & ((1 << bits) - 1)).astype(np.uint64)


def add_modulo(first: npt.NDArray[np.uint64], second: npt.NDArray[np.uint64], bits: int) -> npt.NDArray[np.uint64]:
    """Return the sum of two vectors of residues modulo 2^``bits``, uint64 (D,)."""
    return (first + second) & np.uint64((1 << bits) - 1)


def centred(sums: npt.NDArray[np.uint64], bits: int) -> Integers:
    """Return the integers from −2^(bits−1) to 2^(bits−1) − 1 with the given residues, int64 (D,)."""
    half = 1 << (bits - 1)
    return ((sums.astype(np.int64) + half) & ((1 << bits) - 1)) - half
