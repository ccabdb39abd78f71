"""The Gaussian noise of the mechanism, drawn once per round on the server: seeded for simulation, or secure.

Seeded noise is a pure function of seed and round, so that a run can be repeated; whoever knows the seed can subtract
it. Secure noise comes from the operating system's cryptographic generator and cannot be repeated by anybody.

What doubles leak: a real Gaussian has every number as a value, a floating-point one has not, and which low bits
occur in a released double can tell sums apart that differ (Mironov 2012; for Gaussians Jin et al. 2022). The secure
sampler meets this twice. Its samples keep all 64 bits of their uniforms in the tail, and the noisy sum is rounded
to a public grid, some 2⁻¹¹ to 2⁻¹⁰ of the noise's standard deviation apart (the granularity of Google's "Secure Noise
Generation", 2020): the bits below it, in which the leak is, are never released. Rounding is post-processing and
costs no ε. What that does not prove is in docs/privacy.md, section 9.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from fl_sim.strategies.primitives import streams

Floats = npt.NDArray[np.float64]

_GRID_BITS = 10  # the grid is 2^-10 of the standard deviation, rounded down to a power of two
_BLOCK = 1 << 22  # coordinates of one stream; a large model's blocks are drawn side by side


def gaussian_noise(seed: int, server_round: int, size: int, std: float, purpose: str = "noise") -> Floats:
    """N(0, std² I) of ``size`` coordinates, a pure function of the run's seed, the round and the ``purpose``.

    Re-running a round therefore releases the same noise, never a second sample of it, whatever the number of
    processors. The sampler is numpy's ziggurat on doubles: right for simulation; it does not defend against attacks on
    the low bits of floating-point noise (Mironov 2012), which assume an adversary who sees the exact released doubles.
    """

    def draw(block: int, place: Floats) -> None:
        indices = (server_round, block) if block > 0 else (server_round,)
        streams.generator(seed, purpose, *indices).standard_normal(out=place)
        place *= std

    return _in_blocks(size, draw)


def secure_gaussian_noise(size: int, std: float) -> Floats:
    """N(0, std² I) of ``size`` coordinates from the operating system's randomness, another sample at every call.

    Box and Muller (1958) on 64 random bits for the radius, up to 9.4 standard deviations, and 53 for the angle. Add
    it with :func:`round_to_grid`.
    """

    def draw(block: int, place: Floats) -> None:
        pairs = (len(place) + 1) // 2
        bits = np.frombuffer(os.urandom(16 * pairs), dtype=np.uint64).reshape(2, pairs)
        radius = std * np.sqrt(-2.0 * np.log((bits[0].astype(np.float64) + 1.0) * 2.0**-64))
        angle = (bits[1] >> np.uint64(11)) * (2.0 * math.pi * 2.0**-53)
        place[:pairs] = radius * np.cos(angle)
        place[pairs:] = (radius * np.sin(angle))[: len(place) - pairs]

    return _in_blocks(size, draw)


def _in_blocks(size: int, draw: Callable[[int, Floats], None]) -> Floats:
    """A vector whose blocks ``draw`` fills by their numbers, as many at once as there are processors."""
    noise = np.empty(size)
    blocks = [noise[start : start + _BLOCK] for start in range(0, size, _BLOCK)]
    if len(blocks) == 1:
        draw(0, noise)
        return noise
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(draw, range(len(blocks)), blocks))
    return noise


def grid_width(std: float) -> float:
    """The distance of two values that a securely noised sum may have: a power of two, 2⁻¹¹ to 2⁻¹⁰ of ``std``."""
    return 2.0 ** (math.floor(math.log2(std)) - _GRID_BITS)


def round_to_grid(noisy: Floats, std: float) -> Floats:
    """``noisy`` sums on the public grid that belongs to noise of ``std``; exact, as the width is a power of two."""
    width = grid_width(std)
    return np.round(noisy / width) * width
