"""Attack a known pair of corpora with the strongest test: the likelihood ratio of all released sums.

The attacker knows both corpora and the mechanism and observes every round's noisy sum. The attack estimates the
distribution of the sum under sampling from rounds without noise (with seeds of their own), so it fits any mechanism, a
broken one included. The accuracy of that estimate affects the power of the attack, never the validity of the bound.

>>> distribution = Distribution(values=np.array([0.0, 1.0]), log_weights=np.log([0.5, 0.5]))
>>> distribution.log_likelihood(np.array([[0.0, 10.0]]), noise_std=1.0).round(2)
array([ -0.22, -41.19])
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from fl_sim.auditing.audited_rounds import AuditedMechanism
from fl_sim.auditing.lower_bounds import Scores
from fl_sim.strategies.accounting.adjacency import PrivacyError
from fl_sim.strategies.primitives import streams

Floats = NDArray[np.float64]

_LEARNING_COPIES = 20_000
_LEARNING_ROUNDS = 2
_ITEMS_PER_BATCH = 2_000_000  # users and sentences in memory at once
_DECIMALS = 5  # sums without noise that agree to this number of decimals count as one value


@dataclass(frozen=True, slots=True)
class Distribution:
    """Hold the empirical distribution of a round's sum before noise: values and their log frequencies, float64 (V,)."""

    values: Floats
    log_weights: Floats

    def log_likelihood(self, outputs: Floats, noise_std: float) -> Floats:
        """Return Σ_t ln p(y_t), up to a constant, float64 (copies,), for outputs (rounds, copies)."""
        total = np.zeros(outputs.shape[1])
        for row in outputs:
            squares = ((row[:, None] - self.values) / noise_std) ** 2
            total += logsumexp(self.log_weights - squares / 2, axis=1)
        return total


def attack(target: AuditedMechanism, rounds: int, trials: int, seed: int) -> Scores:
    """Return the log likelihood ratios of ``trials`` independent trainings of ``rounds`` rounds on either corpus.

    Raises:
        PrivacyError: ``rounds`` or ``trials`` is impossible.
    """
    if trials < 8:
        raise PrivacyError(f"trials is {trials}; allowed: an integer of at least 8")
    if rounds < 1:
        raise PrivacyError(f"rounds is {rounds}; allowed: an integer of at least 1")
    distributions = {present: _learn(target, present, seed) for present in (False, True)}

    def scores(present: bool) -> Floats:
        parts = []
        for batch, copies in enumerate(_batches(target, trials)):
            outputs = target.outputs(present, rounds, copies, _seed(seed, "audit trial", present, batch))
            likelihoods = {
                assumed: distribution.log_likelihood(outputs, target.noise_std)
                for assumed, distribution in distributions.items()
            }
            parts.append(likelihoods[True] - likelihoods[False])
        return np.concatenate(parts)

    return Scores(without=scores(False), present=scores(True))


def _learn(target: AuditedMechanism, present: bool, seed: int) -> Distribution:
    """Estimate the distribution of a round's sum before noise, from rounds that no trial uses."""
    copies = next(_batches(target, _LEARNING_COPIES))
    sums = target.outputs(present, _LEARNING_ROUNDS, copies, _seed(seed, "audit learning", present, 0), noise=False)
    values, counts = np.unique(sums.round(_DECIMALS), return_counts=True)
    return Distribution(values, np.log(counts / counts.sum()))


def _batches(target: AuditedMechanism, copies: int) -> Iterator[int]:
    """Yield numbers of copies that fit into memory together and add up to ``copies``."""
    most = max(1, _ITEMS_PER_BATCH // max(target.scenario.items, 1))
    for start in range(0, copies, most):
        yield min(most, copies - start)


def _seed(seed: int, purpose: str, present: bool, batch: int) -> int:
    return streams.derived_seed(seed, purpose, int(present), batch)
