"""Randomness as an argument: one root seed, one named stream per purpose, round and owner.

Every random draw of a run comes from a stream that is a pure function of ``(root seed, purpose, indices)``, so the
same seed gives the same run whatever the number of nodes, workers or restarts. Two kinds are needed:

* :func:`generator`, an ordinary numpy generator, for draws made in one place (which users, which noise);
* :func:`coins`, a counter-based array (Philox 4x64-10; Salmon et al. 2011) in which the coin of item ``i`` can be
  read without drawing those before it, for draws that different nodes must agree on (entities, sentences).
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

_COINS_PER_BLOCK = 4  # one Philox counter value yields four 64-bit words


def generator(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """The generator of the stream ``(seed, purpose, *indices)``; 0 is a seed like any other."""
    return np.random.Generator(np.random.Philox(_sequence(seed, purpose, *indices)))


def derived_seed(seed: int, purpose: str, *indices: int) -> int:
    """A 128-bit seed for a party that must not learn ``seed`` itself (a node gets the round's seed, not the run's)."""
    words = _sequence(seed, purpose, *indices).generate_state(4, np.uint32)
    return int.from_bytes(words.tobytes(), "little")


def coins(seed: int, purpose: str, start: int, stop: int) -> npt.NDArray[np.uint64]:
    """The uniform 64-bit coins of items ``start`` to ``stop - 1`` of a stream, in time proportional to their number."""
    key = _sequence(seed, purpose).generate_state(2, np.uint64)
    skipped = start % _COINS_PER_BLOCK
    philox = np.random.Philox(key=key, counter=start // _COINS_PER_BLOCK)
    return philox.random_raw(stop - start + skipped)[skipped:]


def _sequence(seed: int, purpose: str, *indices: int) -> np.random.SeedSequence:
    if seed < 0:
        raise ValueError(f"seed is {seed}; allowed: an integer of at least 0")
    name = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "little")
    return np.random.SeedSequence(entropy=seed, spawn_key=(name, *indices))
