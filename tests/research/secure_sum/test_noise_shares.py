"""The design of a secure sum keeps what its settings promise: noise, thresholds, modulus."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fl_sim.research.secure_sum.lattice_rounding import centred, residues
from fl_sim.research.secure_sum.noise_shares import SMOOTHING, DistributedNoise
from fl_sim.strategies.primitives.limits import PrivacyError

SETTINGS = DistributedNoise(population=1000, sampling_rate=0.05, dimension=1000, bits=16, dropout=0.3, colluding=3)


@pytest.mark.parametrize("population", [200, 1000, 20_000])
@pytest.mark.parametrize("noise_multiplier", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("bits", [12, 16, 24])
def test_the_honest_survivors_carry_the_noise(population: int, noise_multiplier: float, bits: int) -> None:
    settings = replace(SETTINGS, population=population, sampling_rate=0.2, noise_multiplier=noise_multiplier, bits=bits)
    try:
        design = settings.design()
    except PrivacyError:
        assert bits == 12
        return
    variance = (design.fewest_survivors - 3) * design.share_std**2
    assert np.sqrt((variance - SMOOTHING) / design.norm_bound_squared) >= noise_multiplier * (1 - 1e-12)
    assert np.isclose(design.noise_against_server**2, (variance - SMOOTHING) / design.norm_bound_squared)
    full = (design.full_shares - 3) * design.share_std**2
    assert np.isclose(design.noise_of_models**2, (full - SMOOTHING) / design.norm_bound_squared)


def test_colluding_nodes_and_drop_outs_cost_noise() -> None:
    plain = replace(SETTINGS, dropout=0.0, colluding=0).design()
    with_drop_outs, with_colluding = replace(SETTINGS, colluding=0).design(), replace(SETTINGS, dropout=0.0).design()
    for costly in (with_drop_outs, with_colluding):
        assert costly.share_std / costly.scale > plain.share_std / plain.scale
        assert costly.fewest_survivors <= plain.fewest_survivors
    assert with_drop_outs.full_shares == plain.full_shares


def test_the_thresholds_are_missed_as_rarely_as_they_say() -> None:
    settings = replace(SETTINGS, unopened=0.05)
    design = settings.design()
    random = np.random.default_rng(0)
    others = random.binomial(999, 0.05, 200_000)
    honest = random.binomial(999 - 3, 0.05 * 0.7, 200_000)
    missed = float((honest < design.fewest_survivors).mean() + (others >= design.full_shares).mean())
    assert design.boundary <= 0.05
    assert abs(missed - design.boundary) < 0.003


def test_colluding_nodes_do_not_hide_a_round_with_few_survivors() -> None:
    """Σ_k P[k honest survivors] below the threshold and P[k invited] from K on, summed by hand."""
    design = replace(SETTINGS, population=60, sampling_rate=0.6, colluding=8, unopened=0.1, bits=20).design()

    def binomial(k: int, n: int, p: float) -> float:
        return math.comb(n, k) * p**k * (1 - p) ** (n - k)

    few = sum(binomial(k, 59 - 8, 0.6 * 0.7) for k in range(design.fewest_survivors))
    many = sum(binomial(k, 59, 0.6) for k in range(design.full_shares, 60))
    assert design.boundary == pytest.approx(few + many, rel=1e-9)
    assert few <= 0.05 < few + binomial(design.fewest_survivors, 59 - 8, 0.6 * 0.7)


def test_few_coordinates_of_equal_updates_leave_the_modulus() -> None:
    """The bound is on the sum of K equal updates with K shares of noise, rotated at random."""
    design = replace(SETTINGS, bits=12, overflow=0.05).design()
    random = np.random.default_rng(0)
    left = 0
    for _ in range(100):
        signs = random.integers(0, 2, design.padded) * 2 - 1
        signal = design.full_shares * design.scale * signs / np.sqrt(design.padded)
        noise = np.sqrt(design.full_shares) * design.share_std * random.standard_normal(design.padded)
        total = np.round(signal + noise).astype(np.int64)
        left += bool((centred(residues(total, 12), 12) != total).any())
    assert left <= 10


def test_more_bits_never_cost_more() -> None:
    errors = []
    for bits in range(12, 24):
        design = replace(SETTINGS, bits=bits).design()
        errors.append(design.share_std / design.scale)
    assert np.all(np.diff(errors) < 1e-6)


def test_everybody_takes_part_at_rate_one() -> None:
    design = DistributedNoise(population=10, sampling_rate=1.0, dimension=4, bits=20).design()
    assert (design.fewest_survivors, design.full_shares, design.boundary) == (9, 10, 0.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bits": 1}, "bits is 1; allowed: from 2 to 40"),
        ({"bits": 6}, "bits is 6; allowed: more, as the noise and the sum do not fit into 6"),
        ({"dropout": 1.0}, "dropout is 1.0; allowed: from 0 to below 1"),
        ({"colluding": 40}, "colluding is 40; allowed: below 14, the fewest survivors of a round"),
        ({"colluding": -1}, "colluding is -1; allowed: from 0 to below population"),
        ({"sampling_rate": 0.0}, "sampling_rate is 0.0; allowed: in [1e-15, 1]"),
        ({"population": 1, "colluding": 0}, "population is 1; allowed: an integer of at least 2"),
        ({"dimension": 0}, "dimension is 0; allowed: an integer of at least 1"),
        ({"noise_multiplier": float("nan")}, "noise_multiplier is nan; allowed: above 0"),
        ({"unopened": 0.0}, "unopened is 0.0; allowed: above 0 and below 1"),
    ],
)
def test_bad_settings_are_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PrivacyError) as caught:
        replace(SETTINGS, **changes).design()
    assert str(caught.value) == message
