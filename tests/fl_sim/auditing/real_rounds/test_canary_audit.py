"""Test the audit by random canaries: it passes the intact product and refutes faults in the product's own code."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fl_sim.auditing.audited_rounds import Distribution
from fl_sim.auditing.lower_bounds import gaussian_epsilon
from fl_sim.auditing.real_rounds.canary_audit import CanaryAudit, CanaryClaim, bound_canaries
from fl_sim.auditing.real_rounds.canary_cases import CASES, audit_case, table_of
from fl_sim.strategies.accounting.adjacency import PrivacyError
from tests.fl_sim.auditing.faults import fault


def audited(name: str, mutation: str | None = None, canaries: int = 144, rounds: int = 6) -> CanaryAudit:
    if mutation is None:
        return audit_case(name, canaries=canaries, rounds=rounds)
    with fault(mutation):
        return audit_case(name, canaries=canaries, rounds=rounds)


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
def test_the_intact_product_passes(name: str) -> None:
    audit = audit_case(name) if name in ("awd-lstm", "user-level") else audited(name)
    assert audit.holds, audit.record()
    assert audit.epsilon_lower < audit.claim.proven[0][1]
    assert json.loads(json.dumps(audit.record(), allow_nan=False))["holds"] is True
    assert name in table_of([audit])


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "mutation", "test"),
    [
        ("nothing-sampled", "noise_reduced", "noise"),
        ("nothing-sampled", "noise_off", "epsilon"),
        ("uedp", "user_clip_off", "shift"),
        ("uedp", "sentences_twice_as_often", "shift"),
        ("uedp", "realised_denominator", "shift"),
    ],
)
def test_a_fault_in_the_product_is_refuted(name: str, mutation: str, test: str) -> None:
    rounds = 12 if mutation in ("noise_reduced", "sentences_twice_as_often") else 6
    broken = audited(name, mutation, canaries=256 if rounds == 12 else 144, rounds=rounds)
    assert test in broken.refuted, broken.record()


def simulated(seed: int, noise: float = 4.0, shift: float = 1.0) -> CanaryAudit:
    """One Gaussian user in four rounds, μ = ½, without the real rounds."""
    rng = np.random.default_rng(seed)
    included = rng.random(100) < 0.5
    along = rng.normal(0.0, noise, (4, 100)) + shift * included
    proven = tuple((delta, gaussian_epsilon(0.5, delta)) for delta in (1e-5, 1e-2, 0.1))
    return bound_canaries(
        CanaryClaim("simulated", Distribution(np.ones(1), np.zeros(1)), 4.0, 4.0, proven, 4), included, along, 0.95
    )


@pytest.mark.nightly
def test_an_intact_mechanism_is_refuted_no_more_often_than_the_confidence_says() -> None:
    assert sum(not simulated(seed).holds for seed in range(40)) <= 6


@pytest.mark.nightly
def test_each_test_sees_its_fault() -> None:
    assert "noise" in simulated(0, noise=3.0).refuted
    assert "shift" in simulated(0, shift=3.0).refuted
    assert {"epsilon", "curve", "fit", "noise"} <= set(simulated(0, noise=0.02).refuted)


def test_an_impossible_confidence_is_refused() -> None:
    with pytest.raises(PrivacyError, match="confidence is 1"):
        audit_case("uedp", confidence=1)
