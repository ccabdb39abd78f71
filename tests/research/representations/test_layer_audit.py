"""The auditor on privacy layers: an attack's lower bound on ε lies below what is proven, above what DPNR claims."""

from __future__ import annotations

import numpy as np
import pytest

from fl_sim.research.representations.evaluation.layer_audit import attack_layer, largest_log_ratio, worst_pair
from fl_sim.research.representations.local_privacy import Mechanism, MinMax, MinMaxShared, UnitL1, UnitL2
from fl_sim.strategies.accounting.adjacency import PrivacyError

TRIALS = 20_000
CONFIDENCE = 0.999


def audited(mechanism: Mechanism) -> float:
    """The attack's bound on ε."""
    return attack_layer(mechanism, TRIALS, CONFIDENCE)


@pytest.mark.parametrize("mechanism", [MinMax(16, 0.25), UnitL2(16, 0.5)], ids=lambda m: m.name)
def test_the_auditor_refutes_what_was_claimed_and_not_what_is_proven(mechanism: Mechanism) -> None:
    found = audited(mechanism)
    assert mechanism.guarantee().claimed == pytest.approx(mechanism.epsilon)
    assert 1.3 * mechanism.epsilon < found <= mechanism.proven_epsilon


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_federate_s_layer_withstands_and_the_bound_is_near(epsilon: float) -> None:
    found = audited(UnitL1(8, epsilon))
    assert 0.7 * epsilon < found <= epsilon


@pytest.mark.parametrize("kind", [MinMax, UnitL1, UnitL2])
def test_the_worst_pair_is_as_bad_as_what_is_proven(kind: type[Mechanism]) -> None:
    mechanism = kind(6, 0.5)
    found = largest_log_ratio(mechanism, worst_pair(mechanism))
    assert 0.99 * mechanism.proven_epsilon < found <= mechanism.proven_epsilon


def test_a_shared_noise_has_no_ratio() -> None:
    with pytest.raises(PrivacyError, match="independent noise on each coordinate"):
        largest_log_ratio(MinMaxShared(3, 1.0), np.eye(3))
