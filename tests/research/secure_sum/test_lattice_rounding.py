"""Rounded updates never exceed their norm bound, and sums modulo a power of two are those of the integers."""

from __future__ import annotations

import numpy as np
import pytest

from fl_sim.research.secure_sum.discrete_gaussian import seeded_words
from fl_sim.research.secure_sum.lattice_rounding import (
    Rotation,
    add_modulo,
    centred,
    padded_size,
    residues,
    round_within,
)
from fl_sim.research.secure_sum.noise_shares import _norm_bound_squared

NASTY = {
    "halves": np.full(64, 0.5),
    "one coordinate": np.eye(64)[0] * 10.0,
    "just above whole": np.full(64, 1.0 + 1e-12),
    "short": np.full(64, 1e-9),
    "random": np.random.default_rng(0).standard_normal(64),
}


@pytest.mark.parametrize("name", NASTY)
def test_no_rounding_is_longer_than_the_bound(name: str) -> None:
    vector = NASTY[name]
    bound = int(_norm_bound_squared(float(np.linalg.norm(vector)), 64))
    for attempt in range(300):
        rounded = round_within(vector, bound, seeded_words(0, "rounding", attempt))
        assert int(rounded @ rounded) <= bound
        assert np.abs(rounded - vector).max() < 1


def test_a_bound_that_few_roundings_meet_rounds_towards_zero_in_the_end() -> None:
    rounded = round_within(np.full(64, 1.9), 64 * 4 - 50, seeded_words(0, "rounding"))
    assert rounded.tolist() == [1] * 64 or int(rounded @ rounded) <= 64 * 4 - 50
    assert round_within(np.full(1000, -1.999), 4 * 1000 - 1, seeded_words(0, "rounding")).max() <= -1


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e200, 11.0])
def test_what_is_too_long_or_not_finite_becomes_zero(wrong: float) -> None:
    assert not round_within(np.array([wrong, 0.0]), 100, seeded_words(0, "rounding")).any()


def test_most_roundings_meet_the_bound_and_the_mean_is_the_vector() -> None:
    """The share of kept first attempts is at least 1 − e^(−1/2); a bias would be that of the conditioning alone."""
    vector = np.random.default_rng(1).standard_normal(256)
    bound = int(_norm_bound_squared(float(np.linalg.norm(vector)), 256))
    rounded = np.array([round_within(vector, bound, seeded_words(0, "mean", attempt)) for attempt in range(4000)])
    assert np.abs(rounded.mean(axis=0) - vector).max() < 5 * 0.5 / np.sqrt(4000)
    free = np.array([round_within(vector, 10**9, seeded_words(0, "mean", attempt)) for attempt in range(1000)])
    assert float((np.einsum("ij,ij->i", free, free) <= bound).mean()) > 1 - np.exp(-0.5)


def test_the_rotation_keeps_norms_spreads_coordinates_and_can_be_undone() -> None:
    rotation = Rotation(size=1000, seed=3)
    vector = np.eye(1000)[17] * 5.0
    rotated = rotation.apply(vector)
    assert rotated.shape == (1024,) == (padded_size(1000),)
    assert np.isclose(np.linalg.norm(rotated), 5.0)
    assert np.allclose(np.abs(rotated), 5 / 32)
    assert np.allclose(rotation.undo(rotated), vector)
    assert not np.allclose(rotated, Rotation(size=1000, seed=4).apply(vector))


def test_sizes_are_padded_to_powers_of_two() -> None:
    assert [padded_size(size) for size in (1, 2, 3, 4, 5, 1024, 1025)] == [1, 2, 4, 4, 8, 1024, 2048]


@pytest.mark.parametrize("bits", [2, 8, 40])
def test_sums_modulo_are_those_of_the_integers_while_they_fit(bits: int) -> None:
    limit = 1 << (bits - 1)
    random = np.random.default_rng(bits)
    integers = random.integers(-limit // 8, limit // 8 + 1, (5, 300))
    total = np.zeros(300, dtype=np.uint64)
    for row in integers:
        assert residues(row, bits).max() < 1 << bits
        total = add_modulo(total, residues(row, bits), bits)
    expected = integers.sum(axis=0)
    fits = (expected >= -limit) & (expected < limit)
    assert np.array_equal(centred(total, bits)[fits], expected[fits])
    assert (centred(total, bits) >= -limit).all()
    assert (centred(total, bits) < limit).all()


def test_a_sum_beyond_the_modulus_wraps_around() -> None:
    assert centred(add_modulo(residues(np.array([127]), 8), residues(np.array([1]), 8), 8), 8).tolist() == [-128]
