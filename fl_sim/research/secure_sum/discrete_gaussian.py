"""Draw integers from the discrete Gaussian N_Z(0, σ²), exactly: Pr[k] is proportional to exp(−k²/(2σ²)).

The method of Canonne, Kamath and Steinke (2020, Algorithms 1 to 3): discrete Laplace draws, of which some are rejected.
Every decision compares uniform integers with integers, so no rounding enters the distribution: given uniform 64-bit
words, it is exact. Words come from a named stream (a simulation that can be repeated) or from the operating system
(secure noise).

>>> words = seeded_words(0, "noise share", 1, 5)
>>> discrete_gaussian(3, 8, words)
array([ 0, -6,  2, -3,  0, -1, -1, -1])
>>> len(discrete_gaussian(3, 1000, secure_words))
1000
>>> square_parts(23)
(3, 3, 2, 1)
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from fl_sim.strategies.primitives import streams
from fl_sim.strategies.primitives.limits import require

Integers = npt.NDArray[np.int64]
Words = Callable[[int], npt.NDArray[np.uint64]]
"""Return the next uniform 64-bit words of a source, uint64 (count,), given how many."""

LARGEST_STD = 1 << 20
"""The largest σ: up to it no product of the sampler leaves 64 bits."""
_AT_ONCE = 1 << 14  # coordinates whose intermediate arrays stay in the processor's cache


def seeded_words(seed: int, purpose: str, *indices: int) -> Words:
    """Return the words of the stream ``(seed, purpose, *indices)``, the same in every run."""
    return streams.generator(seed, purpose, *indices).bit_generator.random_raw


def secure_words(count: int) -> npt.NDArray[np.uint64]:
    """Return fresh words of the operating system's cryptographic generator, uint64 (count,)."""
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


def discrete_gaussian(std: int, size: int, words: Words) -> Integers:
    """Return independent draws of N_Z(0, ``std``²), int64 (size,).

    Args:
        std: σ, a whole number from 1 to 2²⁰; the variance of the draws is σ² up to a factor within 10⁻⁶ of 1.
        size: the number of draws.
        words: the source of randomness.

    Raises:
        PrivacyError: ``std`` is out of range.
    """
    require(std == int(std) and 1 <= std <= LARGEST_STD, "std", std, f"a whole number from 1 to {LARGEST_STD}")
    result = np.empty(size, dtype=np.int64)
    for start in range(0, size, _AT_ONCE):
        part = result[start : start + _AT_ONCE]
        missing = np.arange(len(part))
        while len(missing):
            draws = _discrete_laplace(std, len(missing), words)
            # The Laplace scale is σ itself, so the exponent of CKS20, (|y| − σ²/t)²/(2σ²), is (|y| − σ)²/(2σ²).
            accepted = _coin_of_exponential((np.abs(draws) - std) ** 2, 2 * std * std, words)
            part[missing[accepted]] = draws[accepted]
            missing = missing[~accepted]
    return result


def sum_of_shares(std: int, shares: int, size: int, words: Words) -> Integers:
    """Return draws with the variance of ``shares`` draws of N_Z(0, ``std``²), int64 (size,): a sum of at most four."""
    total = np.zeros(size, dtype=np.int64)
    for factor in square_parts(shares):
        total += discrete_gaussian(factor * std, size, words)
    return total


def square_parts(number: int) -> tuple[int, ...]:
    """Return at most four positive integers whose squares add up to ``number`` (Lagrange 1770); none for 0."""
    if number == 0:
        return ()
    for count in range(1, 5):
        for parts in itertools.combinations_with_replacement(range(math.isqrt(number), 0, -1), count - 1):
            rest = number - sum(part * part for part in parts)
            if rest > 0 and math.isqrt(rest) ** 2 == rest:
                return (*parts, math.isqrt(rest))
    raise AssertionError(f"{number} is no sum of four squares")


def uniform_below(bound: npt.NDArray[np.uint64] | int, count: int, words: Words) -> Integers:
    """Return uniform integers from 0 to ``bound`` − 1, int64 (count,), by rejection.

    Args:
        bound: from 1 to 2⁶³, one for all or uint64 (count,).
        count: the number of integers.
        words: the source of randomness.
    """
    bounds = np.broadcast_to(np.asarray(bound, dtype=np.uint64), (count,))
    drawn = words(count)
    # 2⁶⁴ mod bound is (−bound) mod bound in 64 bits; the words below it would make small remainders too likely.
    rejected = np.flatnonzero(drawn < (np.uint64(0) - bounds) % bounds)
    result: Integers = (drawn % bounds).astype(np.int64)
    if len(rejected):
        result[rejected] = uniform_below(bounds[rejected], len(rejected), words)
    return result


def _discrete_laplace(scale: int, size: int, words: Words) -> Integers:
    """Return draws with Pr[k] proportional to exp(−|k|/``scale``), int64 (size,) (CKS20, Algorithm 2)."""
    result = np.empty(size, dtype=np.int64)
    missing = np.arange(size)
    while len(missing):
        fraction = uniform_below(scale, len(missing), words)
        kept = _coin_of_small_exponential(fraction, scale, words)
        magnitude = fraction + scale * _geometric(len(missing), words)
        negative = (words(len(missing)) & np.uint64(1)).astype(bool)
        kept &= ~(negative & (magnitude == 0))  # else 0 would count twice
        result[missing[kept]] = np.where(negative, -magnitude, magnitude)[kept]
        missing = missing[~kept]
    return result


def _geometric(size: int, words: Words) -> Integers:
    """Return the number of coins of probability e⁻¹ that come up before the first that does not, int64 (size,)."""
    result = np.zeros(size, dtype=np.int64)
    going = np.arange(size)
    while len(going):
        going = going[_coin_of_small_exponential(np.ones(len(going), dtype=np.int64), 1, words)]
        result[going] += 1
    return result


def _coin_of_exponential(numerator: Integers, denominator: int, words: Words) -> npt.NDArray[np.bool_]:
    """Return coins of probability exp(−``numerator``/``denominator``), bool (len(numerator),); for any γ ≥ 0."""
    whole, rest = np.divmod(numerator, denominator)
    result = _coin_of_small_exponential(rest, denominator, words)
    going = np.flatnonzero(result & (whole > 0))
    while len(going):  # one coin of probability e⁻¹ for every whole unit
        heads = _coin_of_small_exponential(np.ones(len(going), dtype=np.int64), 1, words)
        result[going[~heads]] = False
        whole[going] -= 1
        going = going[heads & (whole[going] > 0)]
    return result


def _coin_of_small_exponential(numerator: Integers, denominator: int, words: Words) -> npt.NDArray[np.bool_]:
    """Return coins of probability exp(−γ), γ = ``numerator``/``denominator`` from 0 to 1 (CKS20, Algorithm 1).

    Coins of probability γ/1, γ/2, γ/3, … are tossed until one fails; the number of the failing one is odd with
    probability exp(−γ).
    """
    tosses = np.ones(len(numerator), dtype=np.int64)
    going = np.arange(len(numerator))
    while len(going):
        heads = uniform_below((denominator * tosses[going]).astype(np.uint64), len(going), words) < numerator[going]
        going = going[heads]
        tosses[going] += 1
    odd: npt.NDArray[np.bool_] = tosses % 2 == 1
    return odd
