"""Test the simulated δ: below the truth, close to it, and above a claim with half of the rate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fl_sim.auditing.audited_rounds import Distribution
from fl_sim.auditing.ledger_audit import delta_at_least
from fl_sim.auditing.lower_bounds import gaussian_epsilon
from fl_sim.auditing.real_rounds.canary_audit import shift_distribution
from fl_sim.auditing.worst_case_corpora import Scenario
from fl_sim.strategies.accounting import accountant
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.accounting.adjacency import Adjacency

ONE = Distribution(np.ones(1), np.zeros(1))
EVENT = RoundEvent("uedp", 4.0, q_s=0.1, user_cap=2.0)


@pytest.mark.parametrize(("mu", "delta"), [(1.0, 0.1), (2.0, 0.01)])
def test_delta_of_a_gaussian(mu: float, delta: float) -> None:
    """Four rounds at noise 2/μ have the privacy loss of one Gaussian with μ."""
    least = delta_at_least(ONE, 2 / mu, 4, gaussian_epsilon(mu, delta), seed=0, trials=200_000)
    assert 0.85 * delta < least < delta


@pytest.mark.nightly
def test_the_accountant_passes_and_half_of_the_rate_is_seen() -> None:
    law, adjacency, rounds = shift_distribution(EVENT, Scenario(user_sentences=12)), Adjacency(12), 5
    honest = accountant.epsilon(EVENT, adjacency, rounds, 1e-5)
    halved = accountant.epsilon(replace(EVENT, q_s=0.05), adjacency, rounds, 1e-5)
    assert delta_at_least(law, 4.0, rounds, honest, seed=0) <= 1e-5
    assert delta_at_least(law, 4.0, rounds, halved, seed=0) > 1e-5
