"""Test that a round on the grid dominates its pair in both directions, and that every error is added to δ."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fl_sim.strategies.accounting.accountant import RoundEvent, epsilon
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound
from fl_sim.strategies.accounting.losses import composition, dominating_pairs
from fl_sim.strategies.accounting.losses.privacy_loss import GaussianMixturePair, GridLoss, discretize
from tests.strategies.accounting.oracles import ScalarPair, divergence

PAIRS = {
    "one-sided": GaussianMixturePair(1.0, 0.6, np.array([0.5, 2.0]), np.array([0.3, 0.1])),
    "always moved": GaussianMixturePair(1.0, 0.0, np.array([1.0, 3.0]), np.array([0.5, 0.5])),
    "two-sided": GaussianMixturePair(
        1.0, 0.2, np.array([0.0, 2.0]), np.array([0.5, 0.3]), np.array([0.0, 1.0]), np.array([0.7, 0.3])
    ),
    "bounded above": GaussianMixturePair(
        1.0, 0.0, np.array([0.0]), np.array([1.0]), np.array([0.0, 1.0]), np.array([0.9, 0.1])
    ),
}


def exact(mixture: GaussianMixturePair, z: float) -> ScalarPair:
    q = (-mixture.opposed_shifts, mixture.opposed_weights)
    centres = np.concatenate([mixture.shifts, q[0]])
    return ScalarPair((centres, np.concatenate([mixture.weights, mixture.common * q[1]])), q, z)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("z", [0.8, 2.0])
@pytest.mark.parametrize(("width", "tail"), [(1e-3, 1e-12), (0.3, 1e-12), (0.05, 1e-3)])
def test_the_grid_dominates_both_ways(name: str, z: float, width: float, tail: float) -> None:
    pair = exact(PAIRS[name], z)
    grids = discretize((PAIRS[name],), z, width, tail)
    for at in np.arange(-3.0, 6.0, 0.31):
        for grid, true in zip(grids, pair.delta(at), strict=True):
            bound = divergence(grid, at)
            assert bound >= true - 1e-6
            if width == 1e-3:
                assert bound == pytest.approx(true, rel=1e-3, abs=1e-6)


def test_what_the_distribution_leaves_out_is_added_to_delta() -> None:
    short = GaussianMixturePair(0.9, 0.5, np.array([1.0]), np.array([0.48]))
    forward, backward = discretize((short,), 1.0, 1e-2, 1e-12)
    assert forward.infinite == pytest.approx(0.1 + 0.9 * 0.02, rel=1e-6)
    assert backward.infinite == pytest.approx(0.1, rel=1e-6)


def test_what_q_misses_is_missing_in_the_common_part_of_p_too() -> None:
    known = GaussianMixturePair(1.0, 0.6, np.array([1.0]), np.array([0.4]), cut=(1e-20, 1e-19))
    assert known.missing == pytest.approx((1e-20 + 0.6e-19, 1e-19), rel=1e-12, abs=0)
    short = replace(known, opposed_weights=np.array([0.9]), weights=np.array([0.3]), cut=None)
    assert short.missing == pytest.approx((0.1 + 0.06, 0.1))


@pytest.mark.sample(2)
@pytest.mark.parametrize("width", [1e-2, 1e-4])
@pytest.mark.parametrize("z", [0.1, 1.0])
def test_the_rounding_of_a_round_is_that_of_all_its_operations(width: float, z: float) -> None:
    """A unit of the last place for each point of the grid, each term of a density, and the square of the shift."""
    for loss in discretize((PAIRS["two-sided"],), z, width, 1e-12):
        operations = len(loss.masses) + 4 + (PAIRS["two-sided"].spread / z) ** 2
        assert 2.0**-53 * operations <= loss.relative < 2.0**-53 * 100 * (operations + 100)


@pytest.mark.parametrize("name", ["infinite", "round_off"])
def test_composition_adds_every_round_to_delta(name: str) -> None:
    errors = {"infinite": 0.0, "round_off": 0.0} | {name: 1e-6}
    loss = GridLoss(0.1, -1, np.array([0.5, 0.0, 0.5]), **errors)
    window = composition.Window(-3.0, 3.0)
    enough, short = (composition.epsilons(loss, np.array([20]), d, window, 64)[0] for d in (2.1e-5, 1.9e-5))
    assert enough < math.inf
    assert short == math.inf
    assert composition.delta_of_loss(loss, 20, 5.0, window, 64) >= 2e-5 * (1 - 1e-9)


def test_relative_errors_of_every_round_are_added_to_losses_and_masses() -> None:
    exact = GridLoss(0.1, -1, np.array([0.4, 0.1, 0.5]), 0.0, 0.0)
    inexact = GridLoss(0.1, -1, exact.masses, 0.0, 0.0, relative=1e-3)
    window, counts = composition.Window(-3.0, 3.0), np.array([20])
    ours = composition.epsilons(inexact, counts, 1e-3, window, 64)[0]
    assert ours == pytest.approx(composition.epsilons(exact, counts, 1e-3 * math.exp(-0.02), window, 64)[0] + 0.02)
    at_half = composition.delta_of_loss(inexact, 20, 0.5, window, 64)
    assert at_half == pytest.approx(math.exp(0.02) * composition.delta_of_loss(exact, 20, 0.48, window, 64))
    at_zero = composition.delta_of_loss(inexact, 20, 0.0, window, 64)
    assert at_zero >= math.exp(0.02) * (composition.delta_of_loss(exact, 20, 0.0, window, 64) + 0.019)


def test_mass_beyond_the_window_is_added_to_delta() -> None:
    """On a circle that is far too small the bound must be useless, never wrong."""
    (loss, _) = discretize((PAIRS["one-sided"],), 0.5, 0.05, 1e-12)
    wide = composition.delta_of_loss(loss, 30, 10.0, composition.Window(-60.0, 60.0), 4096)
    narrow = composition.delta_of_loss(loss, 30, 10.0, composition.Window(-1.0, 1.0), 64)
    assert narrow >= wide * (1 - 1e-9)
    windows = ((composition.Window(-60.0, 60.0), 4096), (composition.Window(-1.0, 1.0), 64))
    for delta in (1e-2, 1e-5):
        wide, narrow = (composition.epsilons(loss, np.array([30]), delta, *window)[0] for window in windows)
        assert narrow >= wide * (1 - 1e-9)


def test_rare_shifts_only_ever_grow() -> None:
    distribution = dominating_pairs.binomial(500, 0.1, 1e-6)
    true = dominating_pairs.binomial(500, 0.1, 0.0)
    assert distribution.probabilities.sum() >= 1 - 2e-6
    for value in distribution.values:
        kept_above = distribution.probabilities[distribution.values >= value].sum() + (
            1 - distribution.probabilities.sum()
        )
        assert kept_above >= true.probabilities[true.values >= value].sum() - 1e-12


def test_robust_activates_the_entity_always() -> None:
    event = RoundEvent("uedp", 1.0, q_u=0.2, q_e=0.3, q_s=0.4, user_cap=5)
    assert event.robust() == RoundEvent("uedp", 1.0, q_u=0.2, q_e=1.0, q_s=0.4, user_cap=5)


@pytest.mark.parametrize("q_e", [0.5, 1.0])
@pytest.mark.parametrize("z", [0.6, 1.0, 3.0])
@pytest.mark.parametrize("users", [1, 15])
def test_one_corpus_with_the_user_and_one_with_the_entity(q_e: float, z: float, users: int) -> None:
    """The crossed reading of adjacency (docs/privacy-proofs.md, section 5): never worse than what is printed."""
    event = RoundEvent("uedp", z, q_u=1.0, q_e=q_e, q_s=0.1, user_cap=10)
    user = dominating_pairs.user_shift(1.0, 0.1, 12, 10, 1e-12)
    entity = dominating_pairs.entity_shift(q_e, dominating_pairs.binomial(users, 0.1, 1e-12), math.inf)
    crossed = GaussianMixturePair(
        1.0, 0.0, entity.values / 10, entity.probabilities, user.values / 10, user.probabilities
    )
    of_crossed = composition.epsilon_curve((crossed,), z, np.array([20]), 1e-5)[0]
    assert of_crossed <= epsilon(event, Adjacency(12, ContributionBound(users, 1)), 20, 1e-5) * (1 + 1e-3)
