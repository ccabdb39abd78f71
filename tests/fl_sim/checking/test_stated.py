"""The ε and δ of an app are read in the forms in which people write them, and nowhere else."""

from __future__ import annotations

import math

import pytest

from fl_sim.checking.stated import DELTA, read_stated


@pytest.mark.parametrize(
    ("line", "epsilon", "delta"),
    [
        ("epsilon=1.5 at delta=1e-6", 1.5, 1e-6),
        ("(ε, δ) = (3.0, 1e-6)", 3.0, 1e-6),
        ("(epsilon, delta): (3.0, 1e-6)", 3.0, 1e-6),
        ("the model is (3.0, 1e-06)-DP", 3.0, 1e-6),
        ("(ε, δ)-DP: (3.0, 1e-6)", 3.0, 1e-6),
        ("{'epsilon': 3.0, 'delta': 1e-06}", 3.0, 1e-6),
        ("ε ≈ 3", 3.0, DELTA),
        ("ε < 3.0", 3.0, DELTA),
        ("ε=.5", 0.5, DELTA),
        ("ε = ∞", math.inf, DELTA),
        ("epsilon spent: 3.0", 3.0, DELTA),
        ("epsilon after round 1: 3.0", 3.0, DELTA),
        ("Epsilon used so far 3.0", 3.0, DELTA),
        ("eps_spent=3", 3.0, DELTA),
        ("privacy budget spent: ε = 2.0", 2.0, DELTA),
        ("privacy budget spent so far: epsilon=2.0", 2.0, DELTA),
        ("privacy: eps=2, delta=1e-6", 2.0, 1e-6),
        ("DP-SGD eps: 2", 2.0, DELTA),
        ("privacy budget: epsilon=2.0", None, DELTA),
        ("target_epsilon=9", None, DELTA),
        ("GroupNorm(2, 4, eps=1e-05, affine=True)", None, DELTA),
        ("BatchNorm2d(8, eps=0.001, momentum=0.1)", None, DELTA),
        ("Adam (eps: 1e-08)", None, DELTA),
        ("epsilon=1e-08 (Adam)", None, DELTA),
        ("layer_norm_eps=0.01", None, DELTA),
        ("early stopping, min_delta=0.01", None, DELTA),
        ("huber delta: 0.5", None, DELTA),
        ("target delta: 1e-6", None, 1e-6),
    ],
)
def test_what_is_read_of_a_line(line: str, epsilon: float | None, delta: float) -> None:
    stated = read_stated(f"{line}\nROUND 1\n", [{}])
    assert (stated.epsilon, stated.delta) == (epsilon, delta)
    assert stated.delta_stated == (delta != DELTA)


@pytest.mark.parametrize(
    ("log", "config", "delta"),
    [
        ("epsilon=3 at delta=1e-6\nhuber delta: 0.5\ndelta = 0.1", {"delta": 1e-3}, 1e-6),
        ("epsilon=3", {"min-delta": 0.01, "huber_delta": 0.5}, DELTA),
        ("epsilon=3\nearly stopping: min_delta=0.01", {}, DELTA),
        ("epsilon=3\ndelta=0.01", {"target_delta": 1e-6}, 1e-6),
        ("epsilon=3", {"privacy.delta": 1e-6}, 1e-6),
        ("epsilon=3", {"dp-delta": 1e-6}, 1e-6),
    ],
)
def test_the_delta_is_that_beside_epsilon_or_of_a_setting_of_its_name(log: str, config: dict, delta: float) -> None:
    assert read_stated(f"{log}\nROUND 1\n", [{}], config).delta == delta


def test_a_line_on_privacy_in_which_nothing_is_read_is_told() -> None:
    log = "we use DP\nε: three\nwe use DP\nstep=1\nROUND 1\n"
    assert read_stated(log, [{}]).unread == ("we use DP", "ε: three")
    assert read_stated(f"{log}ε: 2\n", [{}]).unread == ()
