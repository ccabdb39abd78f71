"""Audit noise whose scale follows the text: tokens that a detector marks get more of it, others less or none.

"SA-ADP" (Etuk and Matrawy 2025, arXiv 2512.01748) scales Gaussian noise by the sensitivity of the personal data that a
detector finds, and "Adaptive Token-Weighted Differential Privacy" (Yu, Singh, Li and Cao 2025, arXiv 2509.23246) gives
tokens that are marked as sensitive more noise than others. We know both from their abstracts and have read neither
algorithm in full, so this audits one step that the abstracts describe, and no paper's table: a round releases

    Σ_s Π_c(g_s) + N(0, V·I),  V = σ²c²·Σ_s S(s),

over the sampled sentences, where S(s) in [0, 1] is the sensitivity that the detector finds. If V were public, the round
would be a Gaussian mechanism with the noise multiplier σ·√(Σ S), whose ε such a method states.

V is not public. Beside a cohort whose sensitivities add up to n, one sentence of sensitivity S changes V by the factor
1 + S/n, and every coordinate of the release shows it: with d parameters the two variances are √(d/2)·S/n standard
deviations apart. Where nothing sensitive is sampled, V is 0 and the release is exact: ε is ∞.

>>> audited = audit()
>>> round(audited.claimed, 2), audited.at_least > 3 * audited.claimed
(2.34, True)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fl_sim.auditing.lower_bounds import Scores, epsilon_lower_bound, gaussian_epsilon
from fl_sim.strategies.primitives import streams

CONFIDENCE = 0.99


@dataclass(frozen=True, slots=True)
class AuditedClaim:
    """An ε that a method states for one round, and the least that an attack proves it to be, at CONFIDENCE."""

    claimed: float
    at_least: float


def audit(
    parameters: int = 124_000_000,
    cohort: int = 300,
    noise_multiplier: float = 0.1,
    delta: float = 1e-5,
    trials: int = 20_000,
    seed: int = 0,
) -> AuditedClaim:
    """Attack one round by the variance of its coordinates, with and without one fully sensitive sentence.

    The defaults are the round that the page of the comparison states: GPT-2, and 300 sensitive sentences.

    Args:
        parameters: d, of the model.
        cohort: the sampled sentences beside the attacked one, of sensitivity 1 each.
        noise_multiplier: σ, of one sentence.
        delta: δ of either ε.
        trials: rounds on either corpus.
        seed: of the noise.
    """
    rng = streams.generator(seed, "noise by sensitivity")
    before, after = float(cohort), cohort + 1.0
    scores = Scores(
        without=before * rng.chisquare(parameters, trials),  # the squared length of the noise, in units of σ²c²
        present=after * rng.chisquare(parameters, trials),
    )
    claimed = gaussian_epsilon(1 / (noise_multiplier * math.sqrt(cohort)), delta)
    return AuditedClaim(claimed, epsilon_lower_bound(scores, delta, CONFIDENCE))
