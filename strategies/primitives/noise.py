"""Draw the Gaussian noise of the mechanism, once per round on the server: seeded for simulation, or secure.

Seeded noise is a pure function of seed, round and named stream, so that a run can be repeated; an adversary who knows
the seed can subtract it. Secure noise comes from the operating system's cryptographic generator and cannot be repeated.

Floating-point noise leaks through its low bits: a real Gaussian takes every value, a floating-point one does not, and
the low bits of a released double can distinguish two sums (Mironov 2012; for Gaussians Jin et al. 2022). Secure noise
counters this in two ways. Its samples keep all 64 bits of their uniforms in the tail, and the noisy sum is rounded to a
public grid with a step of 2⁻¹¹ to 2⁻¹⁰ standard deviations (the granularity of Google's "Secure Noise Generation",
2020): the bits below the grid, which carry the leak, are never released. Rounding is post-processing and costs no ε.
docs/privacy-threats.md, section 10, states what is not proven about it.

>>> gaussian_noise(seed=0, server_round=1, size=3, std=2.0).round(2)
array([ 1.85, -1.61, -2.21])
>>> noisy = round_to_grid(secure_gaussian_noise(size=3, std=2.0), std=2.0)
>>> bool((noisy % grid_width(2.0) == 0).all())
True
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

Floats = npt.NDArray[np.float64]
Draw = Callable[[int], Floats]
"""Return the next coordinates of a stream of noise, given how many."""

_GRID_BITS = 10  # the grid is 2^-10 of the standard deviation, rounded down to a power of two
_BLOCK = 1 << 22  # coordinates of one stream; the blocks of a large model are drawn in parallel
_SECURE_BLOCK = 1 << 17  # smaller, because no stream of secure noise depends on where its block begins
_AT_ONCE = 1 << 13  # coordinates drawn at a time, which stay in the processor's cache


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

    def stream_of(block: int) -> Draw:
        indices = (server_round, block) if block > 0 else (server_round,)
        generator = streams.generator(seed, purpose, *indices)
        return lambda size: std * generator.standard_normal(size)

    return _add_in_blocks(total, stream_of)


def sum_hash(seed: int, server_round: int, total: Floats, others: Sequence[float]) -> str:
    """Return a hash of a sum, which tells two sums of a round apart and reveals neither to whom lacks the seed.

    ``total`` is float64 (d,); ``others`` are further numbers on which the release depends.
    """
    key = streams.derived_seed(seed, "hash of the sum", server_round).to_bytes(16, "little")
    digest = hashlib.blake2b(np.array(others, dtype=np.float64).tobytes(), key=key, digest_size=16)
    digest.update(np.ascontiguousarray(total, dtype=np.float64).data)
    return digest.hexdigest()


def secure_gaussian_noise(size: int, std: float) -> Floats:
    """Return a fresh sample of N(0, std² I), float64 (size,), from the operating system's randomness.

    The method of Box and Muller (1958), with 64 random bits for the radius, up to 9.4 standard deviations, and 53 for
    the angle. Round the noisy sum with :func:`round_to_grid`.
    """
    pairs = (size + 1) // 2
    bits = np.frombuffer(os.urandom(16 * pairs), dtype=np.uint64).reshape(2, pairs)
    radius = std * np.sqrt(-2.0 * np.log((bits[0].astype(np.float64) + 1.0) * 2.0**-64))
    angle = (bits[1] >> np.uint64(11)) * (2.0 * math.pi * 2.0**-53)
    return np.concatenate([radius * np.cos(angle), (radius * np.sin(angle))[: size - pairs]])


def add_secure_noise(total: Floats, std: float) -> float:
    """Add a sample of :func:`secure_gaussian_noise` to a sum in place, and round it to the public grid.

    Returns the norm of the noise.
    """
    norm = _add_in_blocks(total, lambda block: lambda size: secure_gaussian_noise(size, std), _SECURE_BLOCK)
    for start in range(0, len(total), _AT_ONCE):
        part = total[start : start + _AT_ONCE]
        part[:] = round_to_grid(part, std)
    return norm


def _add_in_blocks(total: Floats, stream_of: Callable[[int], Draw], block_size: int | None = None) -> float:
    """Add noise to a sum in place, its blocks in parallel, and return the norm of the noise.

    Args:
        total: the sum, float64 (d,).
        stream_of: returns the sampler of a block, given its number; it is called for a few coordinates at a time, so
            that no vector of noise exists.
        block_size: of a block; by default that of seeded noise, on which its streams depend.
    """
    in_block = block_size or _BLOCK

    def add(block: int) -> float:
        draw, end, squared = stream_of(block), min(len(total), (block + 1) * in_block), 0.0
        for start in range(block * in_block, end, _AT_ONCE):
            part = total[start : min(end, start + _AT_ONCE)]
            noise = draw(len(part))
            part += noise
            squared += float(noise @ noise)
        return squared

    blocks = range(-(-len(total) // in_block))
    if len(blocks) <= 1:
        return math.sqrt(sum(map(add, blocks)))
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return math.sqrt(sum(threads.map(add, blocks)))


def grid_width(std: float) -> float:
    """Return the step of the public grid of secure noise: a power of two, 2⁻¹¹ to 2⁻¹⁰ of ``std``."""
    return 2.0 ** (math.floor(math.log2(std)) - _GRID_BITS)


def round_to_grid(noisy: Floats, std: float) -> Floats:
    """Round noisy sums, float64 (d,), to the public grid of noise of ``std``; exact, as the step is a power of two."""
    width = grid_width(std)
    return np.round(noisy / width) * width
