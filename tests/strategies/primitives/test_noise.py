"""Test secure noise: the stated scale and no other, independent, never repeated, on the public grid."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fl_sim.strategies.primitives import noise
from fl_sim.strategies.primitives.noise import (
    add_secure_noise,
    gaussian_noise,
    grid_width,
    secure_gaussian_noise,
    sum_hash,
)
from tests.strategies.federation import is_gaussian_of, plan, run_rounds, zeros

SIZE = 40_000


def test_the_hash_of_a_sum_depends_on_every_part_of_a_release_and_on_the_seed() -> None:
    """Two releases with one hash have one noise, so the hash covers what noise is added to and scaled with."""
    total = np.array([0.5, 0.0, -1.0])
    changed = [np.array([0.5, 1e-16, -1.0]), total[:2], -total, total * (1 + 2**-52)]
    hashes = [sum_hash(0, 1, total, (3.0, 2.0)), *(sum_hash(0, 1, other, (3.0, 2.0)) for other in changed)]
    hashes += [sum_hash(0, 1, total, others) for others in ((3.5, 2.0), (3.0, 2.5))]
    hashes += [sum_hash(1, 1, total, (3.0, 2.0)), sum_hash(0, 2, total, (3.0, 2.0))]
    assert len(set(hashes)) == len(hashes)
    assert hashes[0] == sum_hash(0, 1, total[::-1].copy()[::-1], (3.0, 2.0))


@pytest.mark.parametrize("std", [1e-6, 0.7, 3.0, 1e9])
def test_secure_noise_has_the_stated_scale_and_no_other(std: float) -> None:
    drawn = secure_gaussian_noise(SIZE, std).astype(np.float64)
    assert is_gaussian_of(std, drawn)
    for wrong in (0.95, 1.05, 0.5, 2.0):
        assert not is_gaussian_of(std * wrong, drawn)


def test_secure_noise_is_independent_across_coordinates_and_draws() -> None:
    drawn = np.stack([secure_gaussian_noise(1_000, 1.0).astype(np.float64) for _ in range(20)])
    between = np.corrcoef(drawn)[np.triu_indices(20, 1)]
    assert np.abs(between).max() < 6 / np.sqrt(1_000)
    halves = np.hsplit(drawn, 2)  # the two coordinates that one pair of uniforms makes
    for first, second in ((drawn[:, :-1], drawn[:, 1:]), halves, (halves[0] ** 2, halves[1] ** 2)):
        assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 6 / np.sqrt(first.size)


@pytest.mark.parametrize("size", [0, 1, 2, 7])
def test_every_size_is_met(size: int) -> None:
    assert secure_gaussian_noise(size, 1.0).shape == gaussian_noise(0, 1, size, 1.0).shape == (size,)


def test_a_large_models_noise_is_drawn_in_blocks_and_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on any number of processors; no block repeats another; seeded and secure noise of the stated scale."""
    monkeypatch.setattr(noise, "_BLOCK", SIZE // 4)
    size = SIZE + 3
    draws = []
    for processors in (1, 4):
        monkeypatch.setattr(noise.os, "cpu_count", lambda count=processors: count)
        draws.append(gaussian_noise(0, 1, size, 3.0))
    np.testing.assert_array_equal(*draws)
    assert not np.intersect1d(draws[0], gaussian_noise(0, 2, size, 3.0)).size
    for drawn in (draws[0], secure_gaussian_noise(size, 3.0).astype(np.float64)):
        assert len(np.unique(drawn)) == size
        assert is_gaussian_of(3.0, drawn)
        assert not is_gaussian_of(3.0 * 0.95, drawn)


def test_every_block_of_a_secure_sum_gets_noise_of_its_own_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "_SECURE_BLOCK", SIZE // 4)
    total = np.zeros(SIZE + 3)
    norm = add_secure_noise(total, 3.0)
    assert is_gaussian_of(3.0, total)
    assert not is_gaussian_of(3.0 * 0.95, total)
    assert norm == pytest.approx(np.linalg.norm(total), rel=1e-3)
    blocks = total[:SIZE].reshape(4, -1)
    between = np.corrcoef(blocks)[np.triu_indices(4, 1)]
    assert np.abs(between).max() < 6 / np.sqrt(SIZE // 4)


def test_the_tail_has_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """After two words that begin with 32 zeros, a half: a uniform number of 2^-65, a radius of sqrt(2 ln 2^65)."""
    half = (2**63 - 1).to_bytes(8, "little")
    words = iter([bytes(8), (2**32 - 1).to_bytes(8, "little"), half, bytes(8)])  # the last is the angle
    monkeypatch.setattr(noise.os, "urandom", lambda count: next(words))
    np.testing.assert_allclose(secure_gaussian_noise(2, 1.0).astype(float), [math.sqrt(130 * math.log(2)), 0.0])
    monkeypatch.setattr(noise.os, "urandom", lambda count: b"\xff" * count)
    np.testing.assert_allclose(secure_gaussian_noise(2, 1.0).astype(float), [0.0, 0.0], atol=1e-9)


def test_a_noisy_sum_is_rounded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Just above the middle between two grid points, by less than a double of that size can tell."""
    above = np.longdouble(grid_width(1.0)) / 2 + np.longdouble(2) ** -60
    monkeypatch.setattr(noise, "secure_gaussian_noise", lambda size, std: np.full(size, above))
    total = np.array([1.0])
    add_secure_noise(total, 1.0)
    assert total == 1.0 + grid_width(1.0)


@pytest.mark.parametrize("std", [1e-6, 0.7, 1.0, 1.999, 3.0, 1e9])
def test_the_grid_is_a_power_of_two_and_fine(std: float) -> None:
    width = grid_width(std)
    assert np.frexp(width)[0] == 0.5
    assert std * 2.0**-11 < width <= std * 2.0**-10


def released(**changes: float) -> np.ndarray:
    """Return the noisy sums of rounds without contributions, (rounds, size), at sizes for which float32 is exact."""
    privacy = plan(population=1, q_u=1.0, **changes)
    models, _ = run_rounds(privacy, size=SIZE, rounds=1, answer=zeros, secure_noise=True)
    return models[0].astype(np.float64) * privacy.mechanism.expected_cohort


def test_a_secure_round_releases_noise_of_the_stated_scale_on_the_grid() -> None:
    sums = released(noise_multiplier=2.0, clip_norm=0.5, user_cap=3.0)
    assert is_gaussian_of(3.0, sums)
    for wrong in (0.95, 1.05):
        assert not is_gaussian_of(3.0 * wrong, sums)
    steps = sums / grid_width(3.0)
    np.testing.assert_array_equal(steps, np.round(steps))


def test_a_repeated_secure_round_releases_other_noise() -> None:
    assert not np.array_equal(released(noise_multiplier=1.0), released(noise_multiplier=1.0))
