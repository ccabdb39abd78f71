"""The auditor on privacy layers: an attack's lower bound on ε lies below what is proven, above what DPNR claims."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from clients.representations.layers import PrivacyLayer
from fl_sim.audit.bounds import Bound, Scores, epsilon_lower_bound
from strategies.local_privacy import Mechanism, MinMax, UnitL1, UnitL2

TRIALS = 20_000
CONFIDENCE = 0.999


def pair_of(mechanism: Mechanism) -> np.ndarray:
    """Two encoder outputs that are as far apart as any once they are normalised."""
    k = mechanism.dimensions
    if isinstance(mechanism, MinMax):
        return np.array([[0.0] + [1.0] * (k - 1), [1.0] + [0.0] * (k - 1)])
    if isinstance(mechanism, UnitL2):
        return np.array([[1.0] * k, [-1.0] * k])
    return np.array([[1.0] + [0.0] * (k - 1), [0.0] * (k - 1) + [1.0]])


def audited(mechanism: Mechanism) -> Bound:
    """The strongest attack on what clients send: the likelihood ratio, for somebody who knows both vectors."""
    pair = pair_of(mechanism)
    layer = PrivacyLayer(mechanism)
    centres = mechanism.normalised(pair)

    def scores(which: int) -> np.ndarray:
        vectors = torch.from_numpy(np.repeat(pair[[which]], TRIALS, axis=0))
        sent = layer.release(vectors, np.random.default_rng(which)).astype(np.float64)
        distances = np.abs(sent[:, None] - centres).sum(axis=2)
        return (distances[:, 0] - distances[:, 1]) / mechanism.noise_scale

    return epsilon_lower_bound(Scores(without=scores(0), present=scores(1)), 0.0, CONFIDENCE)


@pytest.mark.parametrize("mechanism", [MinMax(16, 0.25), UnitL2(16, 0.5)], ids=lambda m: m.name)
def test_the_auditor_refutes_what_was_claimed_and_not_what_is_proven(mechanism: Mechanism) -> None:
    found = audited(mechanism).epsilon
    assert mechanism.guarantee().claimed == pytest.approx(mechanism.epsilon)
    assert 1.3 * mechanism.epsilon < found <= mechanism.proven_epsilon


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_federate_s_layer_withstands_and_the_bound_is_near(epsilon: float) -> None:
    found = audited(UnitL1(8, epsilon)).epsilon
    assert 0.7 * epsilon < found <= epsilon


class _HalfTheNoise(UnitL1):
    @property
    def noise_steps(self) -> int:
        return super().noise_steps // 2


class _ForgetsToNormalise(UnitL1):
    def on_grid(self, vectors: np.ndarray) -> np.ndarray:
        return np.rint(3 * vectors * self.steps).astype(np.int64)


@pytest.mark.parametrize("broken", [_HalfTheNoise, _ForgetsToNormalise])
def test_the_auditor_catches_a_broken_layer(broken: type[UnitL1]) -> None:
    assert audited(broken(8, 1.0)).epsilon > 1.1
