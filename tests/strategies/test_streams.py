"""Named streams: reproducible, independent of each other, and readable at any position."""

import numpy as np
import pytest

from strategies import streams


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


@pytest.mark.parametrize("start", [0, 1, 2, 3, 4, 5, 17, 1000])
def test_coins_can_be_read_from_any_position(start: int) -> None:
    whole = streams.coins(7, "sentence", 0, 1100)
    np.testing.assert_array_equal(streams.coins(7, "sentence", start, 1100), whole[start:])


def test_coins_of_an_empty_range() -> None:
    assert len(streams.coins(7, "sentence", 5, 5)) == 0


def test_coins_are_uniform_and_uncorrelated() -> None:
    uniform = streams.coins(0, "sentence", 0, 200_000) / 2.0**64
    # Means of independent uniforms: 5 standard errors.
    assert abs(uniform.mean() - 0.5) < 5 * np.sqrt(1 / 12 / len(uniform))
    for lag in (1, 2, 3, 4, 8):
        correlation = np.corrcoef(uniform[:-lag], uniform[lag:])[0, 1]
        assert abs(correlation) < 5 / np.sqrt(len(uniform))


def test_a_derived_seed_tells_rounds_apart_and_hides_the_root() -> None:
    seeds = {streams.derived_seed(0, "round", t) for t in range(100)}
    assert len(seeds) == 100
    assert 0 not in seeds


def test_negative_seeds_are_refused() -> None:
    with pytest.raises(ValueError, match="seed is -1"):
        streams.generator(-1, "noise")
