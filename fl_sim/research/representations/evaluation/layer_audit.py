"""Privacy layers put to the test: every output of small ones, and an attack on what large ones send.

An attack's lower bound on ε can refute a claim, and never proves one.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fl_sim.auditing.lower_bounds import Bound, Scores, epsilon_lower_bound
from fl_sim.research.representations.client.local_privacy import Mechanism, MinMax, MinMaxShared, UnitL2
from fl_sim.research.representations.client.privacy_layers import PrivacyLayer
from fl_sim.strategies.accounting.adjacency import PrivacyError

Floats = NDArray[np.float64]


def worst_pair(mechanism: Mechanism) -> Floats:
    """Two encoder outputs (2, k) that are as far apart as any once they are normalised."""
    k = mechanism.dimensions
    if isinstance(mechanism, MinMax | MinMaxShared):
        return np.array([[0.0] + [1.0] * (k - 1), [1.0] + [0.0] * (k - 1)])
    if isinstance(mechanism, UnitL2):
        return np.array([[1.0] * k, [-1.0] * k])
    return np.array([[1.0] + [0.0] * (k - 1), [0.0] * (k - 1) + [1.0]])


def largest_log_ratio(mechanism: Mechanism, vectors: Floats) -> float:
    """The ε that holds for all pairs of these vectors (n, k) and all outputs, and no smaller one: the largest log of
    the ratio of an output's probabilities.

    Coordinates are independent and their noise is P(n) ∝ e^(−|n|/t), so that the ratio of an output is at most that
    of the output which equals one of the two: the L1 distance on the grid, over t.
    """
    if isinstance(mechanism, MinMaxShared):
        raise PrivacyError("layer is 'dpnr-shared'; allowed: one with a noise of its own for each coordinate")
    steps = mechanism.on_grid(vectors)
    return float(max(np.abs(steps - row).sum(axis=1).max() for row in steps) / mechanism.noise_steps)


def attack_layer(mechanism: Mechanism, trials: int, confidence: float) -> Bound:
    """A lower bound on the ε of what clients send: ``trials`` releases of either of the worst two vectors, told apart
    by their likelihood ratio.

    Args:
        mechanism: of the layer. trials: on either side. confidence: that the bound holds, a share.
    """
    pair = worst_pair(mechanism)
    layer = PrivacyLayer(mechanism)
    centres = mechanism.normalised(pair)

    def scores(which: int) -> Floats:
        vectors = torch.from_numpy(np.repeat(pair[[which]], trials, axis=0))
        sent = layer.release(vectors, np.random.default_rng(which)).astype(np.float64)
        distances = np.abs(sent[:, None] - centres).sum(axis=2)
        return np.asarray((distances[:, 0] - distances[:, 1]) / mechanism.noise_scale)

    return epsilon_lower_bound(Scores(without=scores(0), present=scores(1)), 0.0, confidence)
