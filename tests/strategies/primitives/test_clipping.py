"""Test Π_r: exact on the sphere, 1-Lipschitz, zero for vectors that are not finite."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from fl_sim.strategies.primitives.clipping import norm, project
from fl_sim.strategies.primitives.limits import SMALLEST_CLIP

vectors = npst.arrays(np.float32, 6, elements=st.floats(-1e6, 1e6, width=32))


@given(vectors, st.floats(1e-3, 1e3))
def test_nothing_leaves_the_ball(vector: np.ndarray, radius: float) -> None:
    project(vector, radius)
    assert norm(vector) <= radius * (1 + 1e-6)


@given(vectors, vectors, st.floats(1e-2, 1e3))
def test_projection_moves_two_vectors_no_further_apart(a: np.ndarray, b: np.ndarray, radius: float) -> None:
    before = norm(a - b)
    scale = max(norm(a), norm(b), 1e-3)
    project(a, radius)
    project(b, radius)
    assert norm(a - b) <= before + 1e-5 * min(scale, radius)


def test_inside_the_ball_nothing_changes() -> None:
    vector = np.array([0.3, -0.4], dtype=np.float32)
    assert project(vector, 0.5) == pytest.approx(0.5)
    np.testing.assert_array_equal(vector, np.array([0.3, -0.4], dtype=np.float32))


@pytest.mark.parametrize("beyond", [1.0001, 1.01, 3.0])
def test_just_beyond_the_ball_a_vector_moves_onto_it(beyond: float) -> None:
    vector = np.array([0.6, -0.8], dtype=np.float32) * np.float32(beyond)
    project(vector, 1.0)
    assert norm(vector) == pytest.approx(1.0, abs=1e-6)


def test_an_infinite_radius_is_no_clip() -> None:
    vector = np.full(4, 1e30, dtype=np.float32)
    project(vector, math.inf)
    np.testing.assert_array_equal(vector, np.full(4, 1e30, dtype=np.float32))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_counts_as_zero(bad: float) -> None:
    vector = np.array([1.0, bad], dtype=np.float32)
    assert not math.isfinite(project(vector, 1.0))
    np.testing.assert_array_equal(vector, 0)


@pytest.mark.parametrize("length", [1e24, 4.6e32, 1.4e33])
def test_no_length_is_scaled_by_a_factor_that_rounding_doubles(length: float) -> None:
    """A factor of 7e-46 would be the smallest float32, which is twice that."""
    vector = np.full(64, length / 8, dtype=np.float32)
    project(vector, SMALLEST_CLIP)
    assert norm(vector) <= SMALLEST_CLIP * (1 + 1e-6)


def test_large_norms_do_not_overflow() -> None:
    vector = np.full(1000, 3e30, dtype=np.float32)  # its square overflows float32
    project(vector, 1.0)
    assert norm(vector) == pytest.approx(1.0, rel=1e-5)
