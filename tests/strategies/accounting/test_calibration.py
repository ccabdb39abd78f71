"""Test solving for a setting: the result just meets the target, quickly; an impossible target is refused."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest

from fl_sim.strategies.accounting.accountant import RoundEvent, epsilon, solve
from fl_sim.strategies.accounting.adjacency import NO_ENTITY, Adjacency, ContributionBound, PrivacyError

USERS = RoundEvent("uedp", 1.0, q_u=0.05, q_e=0.5, user_cap=15)
SENTENCES = RoundEvent("uedp", 1.0, q_e=0.5, q_s=0.05, user_cap=15)
USER_LEVEL = RoundEvent("user_level", 1.0, q_u=0.05)
PAIR = [Adjacency(15), Adjacency(15, ContributionBound(15, 1))]


def worst(event: RoundEvent, rounds: int) -> float:
    return max(epsilon(event, adjacency, rounds, 1e-5) for adjacency in PAIR)


@pytest.mark.sample(1)
@pytest.mark.parametrize("event", [USERS, SENTENCES, USER_LEVEL])
@pytest.mark.parametrize(("target", "rounds"), [(0.3, 1), (2.0, 50), (40.0, 1000)])
def test_the_noise_meets_the_target_quickly(event: RoundEvent, target: float, rounds: int) -> None:
    started = time.process_time()
    z = solve("noise_multiplier", event, PAIR, rounds, 1e-5, target)
    assert time.process_time() - started < 5
    assert 0.995 * target <= worst(replace(event, noise_multiplier=z), rounds) <= target


@pytest.mark.parametrize("unknown", ["q_s", "user_cap"])
def test_other_settings_meet_the_target(unknown: str) -> None:
    value = solve(unknown, SENTENCES, PAIR, 50, 1e-5, 1.0)
    assert 0.995 <= worst(replace(SENTENCES, **{unknown: value}), 50) <= 1.0


def test_rounds_are_the_most_that_fit() -> None:
    rounds = solve("rounds", SENTENCES, PAIR, 1, 1e-5, 1.0)
    assert worst(SENTENCES, rounds) <= 1.0 < worst(SENTENCES, rounds + 1)


def test_a_rate_that_may_be_one_is_one() -> None:
    quiet = replace(SENTENCES, noise_multiplier=1000.0)
    assert solve("q_s", quiet, PAIR, 50, 1e-5, 5.0) == 1.0


@pytest.mark.parametrize(
    ("unknown", "event", "target", "message"),
    [
        ("user_cap", USERS, 0.5, r"0.5 is out of reach by user_cap: at 1e\+06 ε is still 2.68"),
        ("rounds", SENTENCES, 0.01, r"0.01 is out of reach: ε is 4.3\d+ after 1 round"),
    ],
)
def test_an_unreachable_target_is_refused_with_figures(
    unknown: str, event: RoundEvent, target: float, message: str
) -> None:
    with pytest.raises(PrivacyError, match=message):
        solve(unknown, event, [Adjacency(math.inf)], 50, 1e-5, target)


@pytest.mark.parametrize("target", [0.0, -1.0, math.inf, math.nan])
def test_impossible_targets_are_refused(target: float) -> None:
    with pytest.raises(PrivacyError, match="target_epsilon is"):
        solve("noise_multiplier", USERS, PAIR, 50, 1e-5, target)


def test_a_target_without_a_protected_unit_is_refused() -> None:
    with pytest.raises(PrivacyError, match="without a protected user or entity"):
        solve("noise_multiplier", USERS, [Adjacency(0, NO_ENTITY)], 50, 1e-5, 1.0)
