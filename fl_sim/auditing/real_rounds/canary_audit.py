"""Bound ε, the noise and the shift of one real training from its releases along random canaries.

Half of the units are included. Along each unit's direction a round releases the unit's shift plus noise. Four tests
read these numbers, and their conclusions hold together with the stated confidence:

* *one run*: the likelihood ratio of each unit's releases ranks the units; the number of right guesses bounds ε of any
  mechanism, and tests the whole proven curve (:mod:`fl_sim.auditing.lower_bounds`).
* *noise*: the releases of units that are left out are noise alone; a χ² limit bounds its standard deviation from above.
* *shift*: the mean release of the included units, against the mean shift of the theorem; a t limit bounds it from
  below. It sees rates, clips, norms and denominators, also where their effect on ε is small.
* *fit*: if nothing is sampled, the scores are Gaussian and bound ε directly (Andrew et al. 2023). Otherwise the figure
  is reported and nothing rests on it.

The shift follows from docs/privacy-proofs.md. Every sentence of a canary has the same direction and a gradient longer
than the clip. A user with k eligible sentences moves the sum by g(k) = min(k, ŵ)/ŵ user clips if sentences are clipped,
and by g(k) = [k > 0] otherwise. The shift of a round is A·Σ_f g(K_f) + g(K'), with A ~ Bernoulli(q_e), K_f and K'
binomial and thinned by q_u.

>>> event = RoundEvent("uedp", 4.0, q_e=0.5, q_s=0.5, user_cap=2)
>>> law = shift_distribution(event, Scenario(entity_users=1, entity_sentences=1, user_sentences=1))
>>> law.values, np.exp(law.log_weights).round(4), mean_shift(law)
(array([0. , 0.5, 1. ]), array([0.375, 0.5  , 0.125]), 0.375)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from fl_sim.auditing.audited_rounds import Distribution
from fl_sim.auditing.lower_bounds import (
    Bools,
    Claim,
    Floats,
    curve_trade_off,
    f_dp_epsilon,
    fitted_gaussian_epsilon,
    refutes_by_ranking,
)
from fl_sim.auditing.worst_case_corpora import Scenario
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.mechanism import Mechanism

_DECIMALS = 9
_NEGLIGIBLE = 1e-14  # probability of a value that is left out


def as_run(mechanism: Mechanism, event: RoundEvent) -> RoundEvent:
    """Return the event of a mechanism with its rates as they are, not as the accountant is told."""
    names = ("noise_multiplier", "q_u", "q_e", "q_s", "user_cap")
    return replace(event, **{name: getattr(mechanism, name) for name in names})


def shift_distribution(event: RoundEvent, scenario: Scenario) -> Distribution:
    """Return the distribution of the shift of a round's sum by a scenario's canary user and entity, in user clips."""
    cap = event.user_cap if event.clips_sentences else 1.0  # of sentences in a user clip

    def of_user(sentences: int) -> dict[float, float]:
        """Return the probabilities of ŵ·g(K) of a user with so many sentences, by value."""
        law = {0.0: 1 - event.q_u}
        for count, chance in enumerate(event.q_u * stats.binom.pmf(np.arange(sentences + 1), sentences, event.q_s)):
            length = min(float(count), cap)
            law[length] = law.get(length, 0.0) + float(chance)
        return {length: chance for length, chance in law.items() if chance > _NEGLIGIBLE}

    mentions, entity = of_user(scenario.entity_sentences), {0.0: 1.0}
    for _ in range(scenario.entity_users):
        entity = _sum(entity, mentions)
    entity = {length: event.q_e * p for length, p in entity.items()}
    entity[0.0] = entity.get(0.0, 0.0) + 1 - event.q_e
    total = _sum(of_user(scenario.user_sentences), entity)
    lengths = sorted(total)
    weights = np.array([total[length] for length in lengths])
    return Distribution(np.array(lengths) / cap, np.log(weights / weights.sum()))


def mean_shift(law: Distribution) -> float:
    """Return the expected shift of a round, in user clips."""
    return float(law.values @ np.exp(law.log_weights))


def log_ratios(law: Distribution, outputs: Floats, noise_std: float) -> Floats:
    """Return ln(density with the canary / density without it) of every training, float64 (canaries,).

    ``outputs`` are the releases along one direction per canary, in the unit of the shift, float64 (rounds, canaries).
    """
    nothing = Distribution(np.zeros(1), np.zeros(1))
    return law.log_likelihood(outputs, noise_std) - nothing.log_likelihood(outputs, noise_std)


def _sum(first: dict[float, float], second: dict[float, float]) -> dict[float, float]:
    """Return the probabilities of the sum of two independent shifts."""
    law: dict[float, float] = {}
    for a, p in first.items():
        for b, q in second.items():
            length = round(a + b, _DECIMALS)
            law[length] = law.get(length, 0.0) + p * q
    return {length: chance for length, chance in law.items() if chance > _NEGLIGIBLE}


_TESTS = 5  # that share the failure probability: the bound on ε, the curve, the noise, the shift, the fit


@dataclass(frozen=True, eq=False)
class CanaryClaim:
    """Hold what is claimed of the training.

    Attributes:
        law: the distribution of a unit's shift in a round, in user clips.
        noise_std: the standard deviation of the noise along a direction, in user clips.
        proven: pairs (δ, ε) that the accountant proves, that at the requested δ first.
    """

    name: str
    law: Distribution
    noise_std: float
    noise_multiplier: float
    proven: Sequence[Claim]
    rounds: int

    @property
    def is_fixed(self) -> bool:
        """Tell whether the shift is not random, so that the trade-off curve is that of a Gaussian."""
        return len(self.law.values) == 1


@dataclass(frozen=True, eq=False)
class CanaryAudit:
    """Hold the bounds from one training.

    Attributes:
        included: whether each unit was included, bool (m,).
        scores: the likelihood ratio of each unit, float64 (m,).
        epsilon_lower: a lower bound on ε, valid for any mechanism.
        epsilon_fitted: the bound of the Gaussian fit of the scores; an estimate if anything is sampled.
        curve_refuted: whether the number of right guesses refutes the proven curve.
        noise_at_most: an upper bound on the noise multiplier.
        shift_at_least: a lower bound on the mean shift of an included unit, in user clips.
        confidence: with which all these hold together, the fit only where nothing is sampled.
    """

    claim: CanaryClaim
    included: Bools
    scores: Floats
    epsilon_lower: float
    epsilon_fitted: float
    curve_refuted: bool
    noise_at_most: float
    shift_at_least: float
    confidence: float

    @property
    def refuted(self) -> tuple[str, ...]:
        """Return the names of the tests that refute a claim."""
        epsilon = self.claim.proven[0][1]
        failed = {
            "epsilon": self.epsilon_lower > epsilon,
            "curve": self.curve_refuted,
            "noise": self.noise_at_most < self.claim.noise_multiplier,
            "shift": self.shift_at_least > mean_shift(self.claim.law),
            "fit": self.claim.is_fixed and self.epsilon_fitted > epsilon,
        }
        return tuple(name for name, fails in failed.items() if fails)

    @property
    def holds(self) -> bool:
        """Tell whether no test refutes a claim."""
        return not self.refuted

    def record(self) -> dict[str, object]:
        """Return the audit as one JSON object; an infinite ε is the word ``inf``."""
        inside, outside = self.scores[self.included], self.scores[~self.included]
        values = {
            "case": self.claim.name,
            "canaries": len(self.scores),
            "canaries_included": int(self.included.sum()),
            "rounds": self.claim.rounds,
            "delta": self.claim.proven[0][0],
            "epsilon_proven": self.claim.proven[0][1],
            "epsilon_lower": self.epsilon_lower,
            "epsilon_lower_fitted": self.epsilon_fitted,
            "gaussian_applies": self.claim.is_fixed,
            "noise_multiplier": self.claim.noise_multiplier,
            "noise_multiplier_at_most": self.noise_at_most,
            "shift": mean_shift(self.claim.law),
            "shift_at_least": self.shift_at_least,
            "attack_auc": float((inside[:, None] > outside).mean()) if len(inside) and len(outside) else None,
            "confidence": self.confidence,
            "refuted": list(self.refuted),
            "holds": self.holds,
        }
        return {name: "inf" if value == math.inf else value for name, value in values.items()}


def bound_canaries(claim: CanaryClaim, included: Bools, along: Floats, confidence: float) -> CanaryAudit:
    """Return the bounds from the releases of one training.

    Args:
        included: whether each unit was included, independently with probability ½, bool (m,).
        along: the noisy sums along the units' directions, in user clips, float64 (T, m).
        confidence: with which all bounds hold together.
    """
    failure = (1 - confidence) / _TESTS
    each, delta = 1 - failure, claim.proven[0][0]
    scores = log_ratios(claim.law, along, claim.noise_std)
    squares = along[:, ~included] ** 2
    noise = math.sqrt(squares.sum() / stats.chi2.ppf(failure, squares.size)) if squares.size else math.inf
    means, shift = along[:, included].mean(axis=0), -math.inf
    if len(means) > 1:
        width = stats.t.isf(failure, len(means) - 1) * means.std(ddof=1) / math.sqrt(len(means))
        shift = float(means.mean() - width)
    return CanaryAudit(
        claim=claim,
        included=included,
        scores=scores,
        epsilon_lower=f_dp_epsilon(included, scores, delta, each),
        epsilon_fitted=fitted_gaussian_epsilon(included, along.sum(axis=0), delta, each),
        curve_refuted=refutes_by_ranking(curve_trade_off(claim.proven), included, scores, each),
        noise_at_most=noise * claim.noise_multiplier / claim.noise_std,
        shift_at_least=shift,
        confidence=confidence,
    )
