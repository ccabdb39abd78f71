"""Draw the Gaussian noise of the mechanism, once per round on the server: seeded for simulation, or secure.

Seeded noise is a pure function of seed, round and named stream, so that a run can be repeated; an adversary who knows
the seed can subtract it. Secure noise comes from the operating system's cryptographic generator and cannot be repeated.

Floating-point noise leaks through its low bits: a real Gaussian takes every value, a floating-point one does not, and
the low bits of a released double can distinguish two sums (Mironov 2012; for Gaussians Jin et al. 2022). Secure noise
counters this in two ways. It is computed in extended precision, with a tail of any length, and the noisy sum is rounded
to a public grid with a step of 2⁻¹¹ to 2⁻¹⁰ standard deviations (the granularity of Google's "Secure Noise
Generation", 2020): the bits below the grid, which carry the leak, are never released. Rounding is post-processing and
costs no ε. docs/privacy-threats.md, section 10, states what is not proven about it.

>>> gaussian_noise(seed=0, server_round=1, size=3, std=2.0).round(2)
array([ 1.85, -1.61, -2.21])
>>> noisy = np.zeros(3)
>>> add_secure_noise(noisy, std=2.0) > 0, bool((noisy % grid_width(2.0) == 0).all())
(True, True)
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from fl_sim.strategies.primitives import streams
from fl_sim.strategies.primitives.limits import PrivacyError

Floats = npt.NDArray[np.float64]
Extended = npt.NDArray[np.longdouble]
AddNoise = Callable[[Floats], float]
"""Add the next coordinates of a stream of noise to a part of a sum in place, and return their squared norm."""

_GRID_BITS = 10  # the grid is 2^-10 of the standard deviation, rounded down to a power of two
_BLOCK = 1 << 22  # coordinates of one stream; the blocks of a large model are drawn in parallel
_SECURE_BLOCK = 1 << 17  # smaller, because no stream of secure noise depends on where its block begins
_AT_ONCE = 1 << 13  # coordinates drawn at a time, which stay in the processor's cache
_EXTENDED_BITS = 63  # behind the point of an 80-bit number
_FULL_TURN = 8 * np.arctan(np.longdouble(1)) * np.longdouble(2) ** -64  # of a word of 64 bits


def gaussian_noise(seed: int, server_round: int, size: int, std: float, purpose: str = "noise") -> Floats:
    """Return a sample of N(0, std² I), float64 (size,): what :func:`add_gaussian_noise` adds."""
    noise = np.zeros(size)
    add_gaussian_noise(noise, seed, server_round, std, purpose)
    return noise


def add_gaussian_noise(total: Floats, seed: int, server_round: int, std: float, purpose: str = "noise") -> float:
    """Add a sample of N(0, std² I) to a sum, float64 (d,), in place, and return its norm.

    It is a pure function of the seed, the round and the ``purpose``, which names the stream, for any number of
    processors: a repeated round releases the same noise, never a second sample. The sampler is numpy's ziggurat on
    doubles, which suits simulation; it does not resist attacks on the low bits of floating-point noise (Mironov 2012),
    whose adversary observes the exact released doubles.
    """

    def stream_of(block: int) -> AddNoise:
        indices = (server_round, block) if block > 0 else (server_round,)
        generator = streams.generator(seed, purpose, *indices)

        def add(part: Floats) -> float:
            noise = std * generator.standard_normal(len(part))
            part += noise
            return float(noise @ noise)

        return add

    return _add_in_blocks(total, stream_of, _BLOCK)


def sum_hash(seed: int, server_round: int, total: Floats, others: Sequence[float]) -> str:
    """Return a hash of a sum, which tells two sums of a round apart and reveals neither to whom lacks the seed.

    ``total`` is float64 (d,); ``others`` are further numbers on which the release depends.
    """
    key = streams.derived_seed(seed, "hash of the sum", server_round).to_bytes(16, "little")
    digest = hashlib.blake2b(np.array(others, dtype=np.float64).tobytes(), key=key, digest_size=16)
    digest.update(np.ascontiguousarray(total, dtype=np.float64).data)
    return digest.hexdigest()


def secure_gaussian_noise(size: int, std: float) -> Extended:
    """Return a fresh sample of N(0, std² I), extended precision (size,), from the operating system's randomness.

    The method of Box and Muller (1958), with 64 random bits for the angle and 33 to 64 significant ones for the radius.

    Raises:
        PrivacyError: the platform's extended precision has less than 64 bits.
    """
    if np.finfo(np.longdouble).nmant < _EXTENDED_BITS:
        raise PrivacyError("secure noise is asked for; allowed: on a platform with 80-bit floating-point numbers")
    pairs = (size + 1) // 2
    radius = std * np.sqrt(2 * _exponential(pairs))
    angle = _random_words(pairs).astype(np.longdouble) * _FULL_TURN
    return np.concatenate([radius * np.cos(angle), (radius * np.sin(angle))[: size - pairs]])


def _exponential(size: int) -> Extended:
    """Return −ln of uniform numbers, extended precision (size,), without an upper end.

    A word of 64 bits whose first 32 are zero says that the number is below 2⁻³²: another word says where.
    """
    words, halvings = _random_words(size), np.zeros(size, dtype=np.longdouble)
    while (small := words < 1 << 32).any():
        halvings[small] += 32
        words[small] = _random_words(int(small.sum()))
    return halvings * np.log(np.longdouble(2)) - np.log((words.astype(np.longdouble) + 1) * np.longdouble(2) ** -64)


def _random_words(size: int) -> npt.NDArray[np.uint64]:
    return np.frombuffer(bytearray(os.urandom(8 * size)), dtype=np.uint64)


def add_secure_noise(total: Floats, std: float) -> float:
    """Add a sample of :func:`secure_gaussian_noise` to a sum in place, and round it to the public grid.

    Sum and grid point are computed in extended precision, so that no double is rounded before. Returns the norm of the
    noise.
    """

    def add(part: Floats) -> float:
        noise = secure_gaussian_noise(len(part), std)
        part[:] = round_to_grid(part + noise, std)
        return float(noise @ noise)

    return _add_in_blocks(total, lambda block: add, _SECURE_BLOCK)


def _add_in_blocks(total: Floats, stream_of: Callable[[int], AddNoise], in_block: int) -> float:
    """Add noise to a sum, float64 (d,), in place, its blocks in parallel, and return the norm of the noise.

    ``stream_of`` returns what adds the noise of a block, given its number; it is called for a few coordinates at a
    time, so that no vector of noise exists. ``in_block`` is the number of coordinates of a block.
    """

    def add(block: int) -> float:
        add_to, end = stream_of(block), min(len(total), (block + 1) * in_block)
        starts = range(block * in_block, end, _AT_ONCE)
        return sum(add_to(total[start : min(end, start + _AT_ONCE)]) for start in starts)

    blocks = range(-(-len(total) // in_block))
    if len(blocks) <= 1:
        return math.sqrt(sum(map(add, blocks)))
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return math.sqrt(sum(threads.map(add, blocks)))


def grid_width(std: float) -> float:
    """Return the step of the public grid of secure noise: a power of two, 2⁻¹¹ to 2⁻¹⁰ of ``std``."""
    return 2.0 ** (math.floor(math.log2(std)) - _GRID_BITS)


def round_to_grid(noisy: Extended, std: float) -> Extended:
    """Round noisy sums, (d,), to the public grid of noise of ``std``; exact, as the step is a power of two."""
    width = np.longdouble(grid_width(std))
    return np.asarray(np.round(noisy / width) * width, dtype=np.longdouble)
