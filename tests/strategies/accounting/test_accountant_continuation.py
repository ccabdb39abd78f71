"""ε of rounds that follow earlier ones: what the accountant says of both together, at any number of rounds."""

from __future__ import annotations

import numpy as np
import pytest

from fl_sim.strategies.accounting.accountant import (
    RoundEvent,
    composed_epsilon,
    continued_epsilon_curve,
    epsilon,
)
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound

UEDP, OTHER = RoundEvent("uedp", 4.0, 1.0, 0.5, 0.1, 2.0), RoundEvent("uedp", 2.0, 1.0, 0.5, 0.1, 5.0)
USERS = RoundEvent("user_level", 1.5, 0.1)
BOTH = Adjacency(12, ContributionBound(5, 2))
ROUNDS = [1, 2, 5, 30]


@pytest.mark.sample(3)
@pytest.mark.parametrize("adjacency", [Adjacency(12), Adjacency(), BOTH])
@pytest.mark.parametrize("event", [UEDP, OTHER, USERS])
def test_both_trainings_cost_what_the_accountant_says(event: RoundEvent, adjacency: Adjacency) -> None:
    curve = continued_epsilon_curve([(UEDP, adjacency, 20)], event, adjacency, ROUNDS, 1e-5)
    for rounds, value in zip(ROUNDS, curve, strict=True):
        together = composed_epsilon([(UEDP, adjacency, 20), (event, adjacency, rounds)], 1e-5)
        assert value == pytest.approx(together, rel=1e-3)


@pytest.mark.nightly
def test_all_earlier_trainings_count() -> None:
    earlier = [(UEDP, BOTH, 20), (OTHER, Adjacency(12), 5), (USERS, BOTH, 3)]
    together = composed_epsilon([*earlier, (UEDP, Adjacency(12), 4)], 1e-5)
    assert continued_epsilon_curve(earlier, UEDP, Adjacency(12), [4], 1e-5)[0] == pytest.approx(together, rel=1e-6)


def test_every_release_has_the_bounds_of_its_own_run() -> None:
    wide, narrow = Adjacency(12, ContributionBound(20, 3)), Adjacency(12, ContributionBound(1, 1))
    curve = continued_epsilon_curve([(UEDP, wide, 20)], OTHER, narrow, [10], 1e-5)[0]
    assert epsilon(UEDP, wide, 20, 1e-5) < curve < composed_epsilon([(UEDP, wide, 20), (OTHER, wide, 10)], 1e-5)
    assert curve > composed_epsilon([(UEDP, narrow, 20), (OTHER, narrow, 10)], 1e-5)


@pytest.mark.nightly
def test_long_curves_do_not_fall_and_are_exact_at_the_end() -> None:
    earlier = [(UEDP, BOTH, 20), (USERS, BOTH, 3)]
    rounds = list(range(1, 400, 7))
    curve = continued_epsilon_curve(earlier, OTHER, BOTH, rounds, 1e-5)
    assert (np.diff(curve) > -1e-4).all()
    for row in (0, 20, -1):
        alone = continued_epsilon_curve(earlier, OTHER, BOTH, [rounds[row]], 1e-5)[0]
        assert curve[row] >= alone * (1 - 1e-4)
    assert curve[-1] == pytest.approx(alone, rel=2e-3)
