"""Derive all random draws of a run from one root seed, by a named stream per purpose, round and owner.

Every random draw of a run comes from a stream that is a pure function of ``(root seed, purpose, indices)``, so the
same seed gives the same run for any number of nodes, workers or restarts. There are two kinds:

* :func:`generator`, an ordinary numpy generator, for draws made in one place (which users, which noise);
* :func:`uniforms` and :func:`uniforms_of`, a counter-based array (Philox 4x64-10; Salmon et al. 2011) whose item ``i``
  can be read without drawing the items before it, for draws that different nodes must agree on (entities, sentences).
  numpy reads runs of items; our own arithmetic, equal to the last bit, reads scattered items.

>>> generator(0, "noise", 3).integers(0, 100, size=4)
array([90, 73, 19, 57])
>>> words = uniforms(0, "entity", 0, 1000)
>>> bool((uniforms_of(0, "entity", np.array([999, 7])) == words[[999, 7]]).all())
True
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

_UNIFORMS_PER_BLOCK = 4  # one Philox counter value yields four 64-bit words
_BLOCKS_AT_ONCE = 4096  # so that all intermediate words of the arithmetic stay in the processor's cache
_DENSE = 32  # reading one scattered word costs about as much as drawing this many in a row
_ROUNDS = 10
_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_KEY_STEPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_HALF, _LOW_HALF = np.uint64(32), np.uint64(0xFFFFFFFF)


def generator(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """Return the generator of the stream ``(seed, purpose, *indices)``; ``seed`` is an integer of at least 0."""
    return np.random.Generator(np.random.Philox(_sequence(seed, purpose, *indices)))


def derived_seed(seed: int, purpose: str, *indices: int) -> int:
    """Return a 128-bit seed that does not reveal ``seed`` (a node gets the seed of the round, not of the run)."""
    words = _sequence(seed, purpose, *indices).generate_state(4, np.uint32)
    return int.from_bytes(words.tobytes(), "little")


def uniforms(seed: int, purpose: str, start: int, stop: int) -> Words:
    """Return the uniform words of items ``start`` to ``stop - 1`` of a stream, uint64 (K,), in linear time."""
    skipped = start % _UNIFORMS_PER_BLOCK
    philox = np.random.Philox(key=_key(seed, purpose), counter=start // _UNIFORMS_PER_BLOCK)
    return philox.random_raw(stop - start + skipped)[skipped:]


def uniforms_of(seed: int, purpose: str, items: npt.NDArray[np.integer]) -> Words:
    """Return the uniform words of the given items of a stream, uint64 (K,): the words of :func:`uniforms`.

    The items are integers (K,) of at least 0, in any order, repeated or not; the time is proportional to K, wherever
    they lie.
    """
    if len(items) == 0:
        return np.empty(0, dtype=np.uint64)
    first, last = int(items.min()), int(items.max())
    if last - first < _DENSE * len(items):
        return uniforms(seed, purpose, first, last + 1)[items - first]
    blocks, position = np.unique(items // _UNIFORMS_PER_BLOCK, return_inverse=True)
    return _blocks(_key(seed, purpose), blocks)[position, items % _UNIFORMS_PER_BLOCK]


def _key(seed: int, purpose: str) -> Words:
    return np.asarray(_sequence(seed, purpose).generate_state(2, np.uint64), dtype=np.uint64)


def _blocks(key: Words, blocks: npt.NDArray[np.integer]) -> Words:
    """Return the four words of each of ``blocks`` (B,), uint64 (B, 4): Philox 4x64-10 at block + 1, as in numpy."""
    words = np.empty((len(blocks), _UNIFORMS_PER_BLOCK), dtype=np.uint64)
    for start in range(0, len(blocks), _BLOCKS_AT_ONCE):
        rows = slice(start, start + _BLOCKS_AT_ONCE)
        words[rows] = np.stack(_philox(key, blocks[rows].astype(np.uint64) + np.uint64(1)), axis=1)
    return words


def _philox(key: Words, counters: Words) -> list[Words]:
    zeros = np.zeros_like(counters)
    words = [counters, zeros, zeros, zeros]
    keys = [int(word) for word in key]
    for _ in range(_ROUNDS):
        high0, low0 = _product(_MULTIPLIERS[0], words[0])
        high1, low1 = _product(_MULTIPLIERS[1], words[2])
        words = [high1 ^ words[1] ^ np.uint64(keys[0]), low1, high0 ^ words[3] ^ np.uint64(keys[1]), low0]
        keys = [(word + step) % 2**64 for word, step in zip(keys, _KEY_STEPS, strict=True)]
    return words


def _product(constant: int, words: Words) -> tuple[Words, Words]:
    """Return the high and the low 64 bits of ``constant`` times ``words``, from products of halves."""
    top, bottom = np.uint64(constant >> 32), np.uint64(constant & 0xFFFFFFFF)
    word_top, word_bottom = words >> _HALF, words & _LOW_HALF
    crossed = bottom * word_top
    middle = ((bottom * word_bottom) >> _HALF) + (crossed & _LOW_HALF) + top * word_bottom
    return top * word_top + (crossed >> _HALF) + (middle >> _HALF), np.uint64(constant) * words


def _sequence(seed: int, purpose: str, *indices: int) -> np.random.SeedSequence:
    if seed < 0:
        raise ValueError(f"seed is {seed}; allowed: an integer of at least 0")
    name = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "little")
    return np.random.SeedSequence(entropy=seed, spawn_key=(name, *indices))
