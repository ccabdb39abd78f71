"""Audits of privacy layers: the exact ε of small ones, and an attack on the releases of large ones.

An attack's lower bound on ε can refute a claim, and never proves one.

>>> layer = MinMax(dimensions=3, epsilon=0.5)
>>> largest_log_ratio(layer, worst_pair(layer))  # 0.5 is claimed
1.5
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fl_sim.auditing.lower_bounds import Scores, epsilon_lower_bound
from fl_sim.research.representations.client.privacy_layers import PrivacyLayer
from fl_sim.research.representations.local_privacy import Mechanism, MinMax, MinMaxShared, UnitL2
from fl_sim.strategies.accounting.adjacency import PrivacyError

Floats = NDArray[np.float64]


def worst_pair(mechanism: Mechanism) -> Floats:
    """Return two encoder outputs, float64 (2, k), with the largest distance of any two after normalisation."""
    k = mechanism.dimensions
    if isinstance(mechanism, MinMax):
        return np.array([[0.0] + [1.0] * (k - 1), [1.0] + [0.0] * (k - 1)])
    if isinstance(mechanism, UnitL2):
        return np.array([[1.0] * k, [-1.0] * k])
    return np.array([[1.0] + [0.0] * (k - 1), [0.0] * (k - 1) + [1.0]])


def largest_log_ratio(mechanism: Mechanism, vectors: Floats) -> float:
    """Return the smallest ε that holds for all pairs of ``vectors`` and all outputs.

    It is the largest log-ratio of an output's probabilities. Coordinates are independent with noise P(n) ∝ e^(−|n|/t),
    so an output's ratio is at most that of the output that equals one of the two: the L1 distance on the grid, over t.

    ``vectors`` are float64 (n, k).

    Raises:
        PrivacyError: for ``dpnr-shared``, whose coordinates share their noise.
    """
    if isinstance(mechanism, MinMaxShared):
        raise PrivacyError("layer is 'dpnr-shared'; allowed: one with independent noise on each coordinate")
    steps = mechanism.on_grid(vectors)
    return float(max(np.abs(steps - row).sum(axis=1).max() for row in steps) / mechanism.noise_steps)


def attack_layer(mechanism: Mechanism, trials: int, confidence: float) -> float:
    """Return a lower bound on ε from releases of the worst pair, distinguished by their likelihood ratio.

    There are ``trials`` releases of each of the two vectors; ``confidence`` is a share.
    """
    pair = worst_pair(mechanism)
    layer = PrivacyLayer(mechanism)
    centres = mechanism.normalise(pair)

    def scores(which: int) -> Floats:
        vectors = torch.from_numpy(np.repeat(pair[[which]], trials, axis=0))
        sent = layer.release(vectors, np.random.default_rng(which)).astype(np.float64)
        distances = np.abs(sent[:, None] - centres).sum(axis=2)
        return np.asarray((distances[:, 0] - distances[:, 1]) / mechanism.noise_scale)

    return epsilon_lower_bound(Scores(without=scores(0), present=scores(1)), 0.0, confidence)
