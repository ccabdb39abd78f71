"""The UeDP paper's formulas: denominator and noise of its round, the ε that it claims, the one that is proven.

"User-entity differential privacy in learning natural language models", equations 4 to 6. The paper's ε is that of the
moments accountant of Abadi et al. (2016, arXiv 1607.00133) with integer orders 1 to 64, noise multiplier z and a
sampling probability that multiplies the users', the entities' and the sensitive share. It is a claim and no guarantee
(docs/privacy-proofs.md, section 3); :func:`proven_event` describes the same mechanism in terms for which one is proven.

>>> baseline = PublishedSettings("user_level", users=1000, users_per_round=50, noise_multiplier=2.0)
>>> round(epsilon_as_published(baseline, rounds=50, delta=1e-5), 2)
1.11
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, logsumexp

from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.primitives.limits import SMALLEST_NOISE, check_delta, require

Estimator = Literal["f_e", "f_e_plus", "user_level"]
Floats = npt.NDArray[np.float64]

_ORDERS = range(1, 65)

AS_PUBLISHED = "epsilon_as_published"
"""The metric that is what the paper would claim, and no guarantee."""


def denominator(expected_weight: float, q_e: float, entity_weights: float, extended: float) -> float:
    """Return D of equation 4, from q_u·W_u, q_e, W_e and q_s·W_s (0 for ``f_e``)."""
    return expected_weight * (q_e * entity_weights + extended)


def stated_noise(noise_multiplier: float, expected_cohort: float) -> float:
    """Return the standard deviation of the noise on the sum of weighted updates, divided by β, as the paper states it.

    σ = z·(q_u·|U| + 1)·max(w_u)·β / D belongs to the average (equation 6), with max(w_u) = 1. On the sum, before the
    division by D, that is z·(q_u·|U| + 1)·β.
    """
    return noise_multiplier * (expected_cohort + 1)


def coded_noise(stated: float, user_clip: float, denominator: float) -> float:
    """Return what becomes of :func:`stated_noise` where the code draws σ² for σ: σ²·D on the sum, divided by β."""
    return stated**2 * user_clip / denominator


@dataclass(frozen=True, slots=True)
class PublishedSettings:
    """A training as the paper describes it; rates follow from the counts.

    Attributes:
        estimator: What is estimated: ``f_e`` (sensitive sentences only), ``f_e_plus`` (all) or ``user_level`` (the
            baseline).
        users: The number of users |U|.
        users_per_round: The expected number of users per round, q_u·|U|.
        q_e: The probability that an entity is sampled in a round; not used by ``user_level``.
        sentences: The number of sentences.
        sensitive_sentences: The number of sentences with at least one entity.
        noise_multiplier: The noise multiplier z.

    Raises:
        PrivacyError: a value is impossible.
    """

    estimator: Estimator
    users: int
    users_per_round: float
    noise_multiplier: float
    q_e: float = 1.0
    sentences: int = 1
    sensitive_sentences: int = 1

    def __post_init__(self) -> None:
        estimators = get_args(Estimator)
        require(self.estimator in estimators, "estimator", repr(self.estimator), ", ".join(map(repr, estimators)))
        require(self.users >= 1, "users", self.users, "an integer of at least 1")
        cohort = f"above 0, at most users ({self.users})"
        require(0 < self.users_per_round <= self.users, "users_per_round", self.users_per_round, cohort)
        require(self.sentences >= 1, "sentences", self.sentences, "an integer of at least 1")
        sensitive = f"from 1 to sentences ({self.sentences})"
        within = 1 <= self.sensitive_sentences <= self.sentences
        require(within, "sensitive_sentences", self.sensitive_sentences, sensitive)
        z = self.noise_multiplier
        require(z >= SMALLEST_NOISE, "noise_multiplier", z, f"at least {SMALLEST_NOISE:g}, as in a run")
        RoundEvent("uedp", z, q_u=self.q_u, q_e=self.q_e)

    @property
    def q_u(self) -> float:
        """The rate at which users are sampled."""
        return self.users_per_round / self.users

    @property
    def claimed_rate(self) -> float:
        """The sampling probability behind the paper's ε."""
        if self.estimator == "user_level":
            return self.q_u
        rate = self.q_u * self.q_e
        return rate * self.sensitive_sentences / self.sentences if self.estimator == "f_e_plus" else rate

    @property
    def noise_per_clip(self) -> float:
        """The standard deviation of the noise on the sum, divided by β."""
        if self.estimator == "user_level":
            return self.noise_multiplier
        return stated_noise(self.noise_multiplier, self.users_per_round)


def epsilon_as_published(settings: PublishedSettings, rounds: int, delta: float) -> float:
    """Return the paper's ε after ``rounds`` rounds at ``delta``. It is a claim, not a guarantee."""
    return float(curve_as_published(settings, [rounds], delta)[0])


def curve_as_published(settings: PublishedSettings, rounds: Sequence[int], delta: float) -> Floats:
    """Return min over orders λ of (rounds · α(λ) − ln δ) / λ after each number of ``rounds``, float64; 0 after none."""
    check_delta(delta)
    orders = np.array(_ORDERS, dtype=np.float64)
    moments = np.array([log_moment(settings.claimed_rate, settings.noise_multiplier, order) for order in _ORDERS])
    counts = np.asarray(rounds, dtype=np.float64)
    claimed = ((counts[:, None] * moments - math.log(delta)) / orders).min(axis=1)
    return np.where(counts > 0, claimed, 0.0)


def log_moment(q: float, noise_multiplier: float, order: int) -> float:
    """Return α(λ) = ln E_P[(P/Q)^λ] with P = (1−q)·N(0, z²) + q·N(1, z²) and Q = N(0, z²) (Abadi et al., eq. 2)."""
    power = order + 1
    k = np.arange(power + 1, dtype=np.float64)
    with np.errstate(divide="ignore"):
        log_out = np.where(k < power, (power - k) * np.log1p(-q) if q < 1 else -np.inf, 0.0)
    log_terms = gammaln(power + 1) - gammaln(k + 1) - gammaln(power - k + 1) + log_out
    return float(logsumexp(log_terms + k * np.log(q) + k * (k - 1) / (2 * noise_multiplier**2)))


def proven_event(settings: PublishedSettings) -> RoundEvent:
    """Return the mechanism as the paper states it (weights 1, public denominators), in terms that are accounted for.

    The noise of both estimators has standard deviation z·(q_u·|U| + 1)·β / D where one user's clipped update
    adds at most β / D to the same average: in units of one user's clip that is z·(q_u·|U| + 1). An entity
    may turn the clipped update of every sampled user that knows it, by 2β, and since a sentence counts as
    soon as any of its entities is active, q_e does not amplify. ``user_level`` adds noise z·β to the sum.
    """
    return RoundEvent("user_level", settings.noise_per_clip, q_u=settings.q_u)
