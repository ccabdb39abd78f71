"""Test named streams: reproducible, independent of each other, and readable at any position."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_sim.strategies.primitives import streams

GOLDEN = [
    10_568_503_993_442_061_392,
    9_338_820_645_695_000_832,
    3_176_364_690_757_379_422,
    13_675_667_728_816_196_954,
    2_478_816_726_712_946_805,
    17_858_166_472_935_837_663,
]
"""The uniforms of the entities 0 to 4 and 10^12 for seed 0, by numpy's Philox."""


def test_a_stream_is_a_function_of_seed_purpose_and_indices() -> None:
    first = streams.generator(0, "noise", 3).normal(size=5)
    np.testing.assert_array_equal(first, streams.generator(0, "noise", 3).normal(size=5))
    for other in (
        streams.generator(1, "noise", 3),
        streams.generator(0, "users", 3),
        streams.generator(0, "noise", 4),
        streams.generator(0, "noise", 3, 0),
    ):
        assert not np.array_equal(first, other.normal(size=5))


def test_uniforms_never_change() -> None:
    """A run is repeated from its seed: these words are part of what a run folder means."""
    assert streams.uniforms(0, "entity", 0, 5).tolist() == GOLDEN[:5]
    assert streams.uniforms_of(0, "entity", np.array([10**12, 0, 10**12])).tolist() == [GOLDEN[5], GOLDEN[0], GOLDEN[5]]


@given(st.lists(st.integers(0, 2**40), max_size=40), st.integers(0, 2**130))
@settings(max_examples=50)
def test_scattered_uniforms_are_those_of_the_stream(items: list[int], seed: int) -> None:
    one_by_one = [streams.uniforms(seed, "sentence", item, item + 1)[0] for item in items]
    scattered = streams.uniforms_of(seed, "sentence", np.array(items, dtype=np.int64))
    np.testing.assert_array_equal(scattered, np.array(one_by_one, dtype=np.uint64))


def test_uniforms_of_neighbours_and_of_many_blocks_are_those_of_the_stream() -> None:
    stream = streams.uniforms(3, "entity", 0, 2_000_000)
    for step in (1, 2, 7, 31, 33, 100):
        items = np.arange(5, len(stream), step, dtype=np.int32)
        np.testing.assert_array_equal(streams.uniforms_of(3, "entity", items), stream[items])
    few = np.array([1_999_999, 4, 5, 6, 7, 4])
    np.testing.assert_array_equal(streams.uniforms_of(3, "entity", few), stream[few])


def test_uniforms_are_uniform_and_uncorrelated() -> None:
    uniform = streams.uniforms(0, "sentence", 0, 200_000) / 2.0**64
    # Means of independent uniforms: 5 standard errors.
    assert abs(uniform.mean() - 0.5) < 5 * np.sqrt(1 / 12 / len(uniform))
    for lag in (1, 2, 3, 4, 8):
        correlation = np.corrcoef(uniform[:-lag], uniform[lag:])[0, 1]
        assert abs(correlation) < 5 / np.sqrt(len(uniform))


def test_a_derived_seed_tells_rounds_apart_and_hides_the_root() -> None:
    seeds = {streams.derived_seed(0, "round", t) for t in range(100)}
    assert len(seeds) == 100
    assert 0 not in seeds
    # Nobody can try all seeds of a round: all 128 bits vary, and all bits of the root count.
    assert sum(seeds_with_bit == 0 for seeds_with_bit in (sum(s >> bit & 1 for s in seeds) for bit in range(128))) == 0
    roots = [0, *(1 << bit for bit in (31, 32, 63, 64, 95, 127))]
    assert len({streams.derived_seed(root, "round", 1) for root in roots}) == len(roots)


def test_negative_seeds_are_refused() -> None:
    with pytest.raises(ValueError, match="seed is -1"):
        streams.generator(-1, "noise")
