"""The strongest attack on a known pair of corpora: the likelihood ratio of everything that was released.

The attacker knows both corpora and the mechanism, and sees every round's noisy sum. What the rounds' coins do to the
sum is learnt from rounds without noise (with seeds of their own), so the same attack fits any mechanism, a broken one
included. Whether the learnt law is exact decides the attack's power only, never the validity of the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from fl_sim.auditing.lower_bounds import (
    Bound,
    Scores,
    Verdict,
    epsilon_lower_bound,
    gaussian_lower_bound,
    judge_claims,
    noise_at_most,
)
from fl_sim.strategies.accounting.adjacency import PrivacyError
from fl_sim.strategies.primitives import streams

Floats = NDArray[np.float64]
Claims = Sequence[tuple[float, float]]

_LEARNING_COPIES = 20_000
_LEARNING_ROUNDS = 2
_ITEMS_PER_BATCH = 2_000_000  # users and sentences in memory at once
_DECIMALS = 5  # sums without noise that agree to these count as one value


class Target(Protocol):
    """A mechanism on one pair of adjacent corpora, in units of the user clip β."""

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on a round's sum, in units of β."""

    @property
    def items_per_copy(self) -> int:
        """Users and sentences that one independent copy needs in memory."""

    @property
    def random_shift(self) -> bool:
        """Whether coins decide by how much the protected data move a round's sum."""

    def outputs(self, present: bool, rounds: int, copies: int, seed: int, *, noise: bool = True) -> Floats:
        """The noisy sums of independent copies, with or without the protected data, (rounds, copies)."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Values of a round's sum before noise (V,), and how often they came (V,)."""

    values: Floats
    log_weights: Floats

    def log_likelihood(self, outputs: Floats, noise_std: float) -> Floats:
        """Σ_t ln p(y_t), up to a constant, for outputs (rounds, copies): (copies,)."""
        total = np.zeros(outputs.shape[1])
        for row in outputs:
            squares = ((row[:, None] - self.values) / noise_std) ** 2
            total += logsumexp(self.log_weights - squares / 2, axis=1)
        return total


@dataclass(frozen=True, slots=True)
class Audit:
    """What the attack shows.

    Attributes:
        bound: at the δ asked for, for any mechanism.
        gaussian: the same if the shift is fixed (no coin), else None.
        verdict: of the whole claimed curve; None if nothing is claimed.
        noise_at_most: bound on the true noise multiplier if nothing else is in question; None if not asked for.
        trials: outputs per corpus; half of them choose the event, half judge it.
    """

    bound: Bound
    gaussian: Bound | None
    verdict: Verdict | None
    noise_at_most: float | None
    trials: int


def audit(
    target: Target,
    *,
    rounds: int,
    trials: int,
    seed: int,
    delta: float,
    confidence: float,
    claims: Claims = (),
    noise: tuple[float, Callable[[float], Claims]] | None = None,
) -> Audit:
    """Attack ``target`` with ``trials`` independent trainings on either corpus.

    Args:
        target: the mechanism and the corpora.
        rounds: T, rounds that each training releases.
        trials: trainings per corpus.
        seed: root seed of every draw.
        delta: δ of the bound.
        confidence: with which all that is found holds at once; what may fail is shared out equally.
        claims: pairs (δ, ε) that an accountant claims for this mechanism.
        noise: the claimed noise multiplier, and the pairs (δ, ε) that the accountant claims at any other.
    """
    if trials < 8:
        raise PrivacyError(f"trials is {trials}; allowed: an integer of at least 8")
    if rounds < 1:
        raise PrivacyError(f"rounds is {rounds}; allowed: an integer of at least 1")
    if not 0 < confidence < 1:
        raise PrivacyError(f"confidence is {confidence}; allowed: between 0 and 1, both excluded")
    scores = attack(target, rounds, trials, seed)
    fixed = not target.random_shift
    each = 1 - (1 - confidence) / (1 + fixed + bool(claims) + (noise is not None))
    return Audit(
        bound=epsilon_lower_bound(scores, delta, each),
        gaussian=gaussian_lower_bound(scores, delta, each) if fixed else None,
        verdict=judge_claims(scores, claims, each) if claims else None,
        noise_at_most=noise_at_most(scores, noise[1], noise[0], each) if noise else None,
        trials=trials,
    )


def attack(target: Target, rounds: int, trials: int, seed: int) -> Scores:
    """The log likelihood ratios of ``trials`` trainings on either corpus."""
    distributions = {present: _learn(target, present, seed) for present in (False, True)}

    def scores(present: bool) -> Floats:
        parts = []
        for batch, copies in enumerate(_batches(target, trials)):
            outputs = target.outputs(present, rounds, copies, _seed(seed, "audit trial", present, batch))
            likelihoods = {
                held: distribution.log_likelihood(outputs, target.noise_std)
                for held, distribution in distributions.items()
            }
            parts.append(likelihoods[True] - likelihoods[False])
        return np.concatenate(parts)

    return Scores(without=scores(False), present=scores(True))


def _learn(target: Target, present: bool, seed: int) -> Distribution:
    """The law of a round's sum before noise, from rounds of which no trial is made."""
    copies = next(_batches(target, _LEARNING_COPIES))
    sums = target.outputs(present, _LEARNING_ROUNDS, copies, _seed(seed, "audit learning", present, 0), noise=False)
    values, counts = np.unique(sums.round(_DECIMALS), return_counts=True)
    return Distribution(values, np.log(counts / counts.sum()))


def _batches(target: Target, copies: int) -> Iterator[int]:
    """Numbers of copies that fit into memory together and add up to ``copies``."""
    most = max(1, _ITEMS_PER_BATCH // max(target.items_per_copy, 1))
    for start in range(0, copies, most):
        yield min(most, copies - start)


def _seed(seed: int, purpose: str, present: bool, batch: int) -> int:
    return streams.derived_seed(seed, purpose, int(present), batch)
