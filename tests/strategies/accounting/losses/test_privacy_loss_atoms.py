"""Test that the atoms of a case's loss dominate in both directions, keep all mass, and agree with one case's grid."""

from __future__ import annotations

import numpy as np
import pytest

from fl_sim.strategies.accounting.losses import composition, privacy_loss
from fl_sim.strategies.accounting.losses.privacy_loss import (
    GaussianMixturePair,
    both_directions,
)
from tests.strategies.accounting.oracles import NOTHING, ScalarPair, divergence

TAIL = 1e-12
STILL = GaussianMixturePair(1.0, 1.0, np.zeros(0), np.zeros(0))


def mixture(shifts: list[float], weights: list[float]) -> GaussianMixturePair:
    common = max(0.0, 1.0 - sum(weights))
    return GaussianMixturePair(1.0, common, np.array(shifts), np.array(weights))


def many(first: float, spacing: float, number: int, share: float = 1.0) -> GaussianMixturePair:
    """Shifts on a lattice, with the weights of a bell."""
    steps = np.arange(number)
    bell = np.exp(-(((steps - number / 2) / (number / 8)) ** 2) / 2)
    return GaussianMixturePair(1.0, 1.0 - share, first + spacing * steps, share * bell / bell.sum())


ACTIVE = {
    "one": mixture([1.0], [1.0]),
    "some": mixture([0.3, 1.0, 1.3], [0.2, 0.3, 0.1]),
    "apart": mixture([0.2, 9.0], [0.7, 0.3]),
    "far": mixture([60.0], [1.0]),
    "lattice": many(0.2, 0.2, 60, share=0.9),
    "coarse lattice": many(2.0, 2.0, 50),
    "two lattices": GaussianMixturePair(
        1.0,
        0.1,
        np.sort(np.concatenate([0.2 * np.arange(1, 41), 0.2 * np.arange(1, 41) + 0.13])),
        np.full(80, 0.9 / 80),
    ),
}
every_active = pytest.mark.parametrize("active", ACTIVE.values(), ids=ACTIVE.keys())


@pytest.mark.sample(5)
@every_active
@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_atoms_dominate_both_ways_and_closely(active: GaussianMixturePair, rate: float) -> None:
    inactive = mixture([1.0], [0.1])
    ((forward, reverse),) = both_directions(active, inactive, (rate,), 1.0, 0.2, TAIL)
    weights = np.concatenate([rate * active.weights, (1 - rate) * inactive.weights])
    centres = np.concatenate([[0.0], active.shifts, inactive.shifts])
    common = rate * active.common + (1 - rate) * inactive.common
    pair = ScalarPair((centres, np.concatenate([[common], weights])), NOTHING, 1.0)
    for epsilon in (-1.0, 0.0, 0.3, 1.0, 3.0, 10.0):
        true = pair.delta(epsilon)
        for loss, expected in zip((forward, reverse), true, strict=True):
            bound = divergence(loss, epsilon)
            assert bound >= expected * (1 - 1e-6) - 1e-12
            assert bound <= expected + 1e-3
            for width in (0.01, 0.5):
                assert divergence(loss.on_grid(width), epsilon) >= bound * (1 - 1e-9)


@every_active
def test_no_mass_is_lost(active: GaussianMixturePair) -> None:
    for pair in both_directions(active, STILL, (0.3, 1.0), 1.0, 0.2, TAIL):
        for loss in pair:
            assert loss.masses.min() >= 0
            assert (np.diff(loss.losses) >= 0).all()
            assert loss.masses.sum() + loss.infinite == pytest.approx(1, abs=1e-12)
            assert loss.on_grid(0.1).masses.sum() + loss.infinite == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("name", ["lattice", "coarse lattice", "two lattices"])
def test_convolutions_agree_with_the_sum_of_terms(name: str) -> None:
    active = ACTIVE[name]
    part = privacy_loss._Part(active, 1.0)
    pieces = privacy_loss._pieces([part], TAIL)
    lattices = privacy_loss._Lattices.of(part, 0.2, min(piece.step for piece in pieces))
    assert lattices is not None
    x = lattices.points(pieces)
    under_q = privacy_loss.interval_masses(x)
    assert lattices.log_ratio(x) == pytest.approx(part.log_ratio(x), rel=1e-9, abs=1e-9)
    assert lattices.masses(x, under_q) == pytest.approx(part.masses(x, under_q), rel=1e-9, abs=1e-300)


def test_shifts_off_the_lattices_are_summed_term_by_term() -> None:
    off = privacy_loss._Part(GaussianMixturePair(1.0, 0.0, np.sqrt(np.arange(1, 101)), np.full(100, 0.01)), 1.0)
    assert privacy_loss._Lattices.of(off, 0.2, 0.05) is None
    assert privacy_loss._Lattices.of(privacy_loss._Part(many(0.2, 0.2, 60), 1.0), 0.001, 0.05) is None
    assert privacy_loss._Lattices.of(privacy_loss._Part(ACTIVE["one"], 1.0), 0.2, 0.05) is None


def test_what_the_shifts_leave_out_counts_as_a_certain_loss() -> None:
    short = GaussianMixturePair(1.0, 0.0, np.array([1.0]), np.array([0.9]))
    ((forward, reverse),) = both_directions(short, STILL, (0.5,), 1.0, 1.0, TAIL)
    assert forward.infinite == pytest.approx(0.05, abs=1e-9)
    assert reverse.infinite < 1e-9


def test_moments_are_bounds_from_above() -> None:
    """Against extended precision; small losses with large masses, large losses with tiny masses."""
    losses = np.linspace(-30.0, 90.0, 1001)
    for masses in (np.exp(-np.abs(losses)), np.exp(-(losses**2) / 20)):
        moments = composition.log_moments(losses, masses)
        present = masses > 0
        exponents = np.multiply.outer(composition.ORDERS.astype(np.longdouble), losses[present])
        exponents += np.log(masses[present].astype(np.longdouble))
        top = exponents.max(axis=1)
        exact = top + np.log(np.exp(exponents - top[:, None]).sum(axis=1))
        assert (moments >= exact).all()
        assert moments == pytest.approx(exact.astype(np.float64), rel=1e-7, abs=1e-9)
