"""The ε of the published algorithm as its paper computes it, and the round that the algorithm really is.

"User-entity differential privacy in learning natural language models" states ε without saying how it was
computed. Its figures are those of the moments accountant of Abadi et al. (2016, arXiv 1607.00133) with
integer orders 1 to 64, noise multiplier z and a sampling probability that multiplies the users', the entities'
and the sensitive share. That ε is not a guarantee (docs/privacy.md, section 3); :func:`proven_event` describes
the same mechanism in terms for which one is proven.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import gammaln, logsumexp

from strategies.accounting import RoundEvent
from strategies.units import PrivacyError

Estimator = Literal["f_e", "f_e_plus", "user_level"]

_ORDERS = range(1, 65)


@dataclass(frozen=True, slots=True)
class PublishedSettings:
    """A training as the paper describes it; rates follow from the counts.

    Attributes:
        estimator: ``f_e`` (sensitive sentences only), ``f_e_plus`` (all) or ``user_level`` (the baseline).
        users: |U|, all users.
        users_per_round: expected number of users per round, q_u·|U|.
        q_e: probability that an entity is sampled; not used by ``user_level``.
        sentences: all sentences.
        sensitive_sentences: those with at least one entity.
        noise_multiplier: z.

    Raises:
        PrivacyError: if a value is impossible.
    """

    estimator: Estimator
    users: int
    users_per_round: float
    noise_multiplier: float
    q_e: float = 1.0
    sentences: int = 1
    sensitive_sentences: int = 1

    def __post_init__(self) -> None:
        if self.estimator not in ("f_e", "f_e_plus", "user_level"):
            raise PrivacyError(f"estimator is {self.estimator!r}; allowed: 'f_e', 'f_e_plus', 'user_level'")
        if self.users < 1:
            raise PrivacyError(f"users is {self.users}; allowed: an integer of at least 1")
        if not 0 < self.users_per_round <= self.users:
            raise PrivacyError(
                f"users_per_round is {self.users_per_round}; allowed: above 0, at most users ({self.users})"
            )
        if self.sentences < 1:
            raise PrivacyError(f"sentences is {self.sentences}; allowed: an integer of at least 1")
        if not 1 <= self.sensitive_sentences <= self.sentences:
            raise PrivacyError(
                f"sensitive_sentences is {self.sensitive_sentences}; allowed: from 1 to sentences ({self.sentences})"
            )
        RoundEvent("uedp", self.noise_multiplier, q_u=self.q_u, q_e=self.q_e)

    @property
    def q_u(self) -> float:
        """The rate at which users are sampled."""
        return self.users_per_round / self.users

    @property
    def claimed_rate(self) -> float:
        """The sampling probability behind the paper's ε."""
        if self.estimator == "user_level":
            return self.q_u
        if self.estimator == "f_e":
            return self.q_u * self.q_e
        return self.q_u * self.q_e * self.sensitive_sentences / self.sentences


def epsilon_as_published(settings: PublishedSettings, rounds: int, delta: float) -> float:
    """The paper's ε: min over orders λ of (rounds · α(λ) − ln δ) / λ. It is a claim, not a guarantee."""
    moments = [log_moment(settings.claimed_rate, settings.noise_multiplier, order) for order in _ORDERS]
    return min((rounds * moment - float(np.log(delta))) / order for order, moment in zip(_ORDERS, moments, strict=True))


def log_moment(q: float, noise_multiplier: float, order: int) -> float:
    """α(λ) = ln E_P[(P/Q)^λ] with P = (1−q)·N(0, z²) + q·N(1, z²) and Q = N(0, z²) (Abadi et al., eq. 2)."""
    power = order + 1
    k = np.arange(power + 1, dtype=np.float64)
    with np.errstate(divide="ignore"):
        log_out = np.where(k < power, (power - k) * np.log1p(-q) if q < 1 else -np.inf, 0.0)
    log_terms = gammaln(power + 1) - gammaln(k + 1) - gammaln(power - k + 1) + log_out
    return float(logsumexp(log_terms + k * np.log(q) + k * (k - 1) / (2 * noise_multiplier**2)))


def proven_event(settings: PublishedSettings) -> RoundEvent:
    """The mechanism as the paper states it (weights 1, public denominators), in terms that are accounted for.

    The noise of both estimators has standard deviation z·(q_u·|U| + 1)·β / D where one user's clipped update
    adds at most β / D to the same average: in units of one user's clip that is z·(q_u·|U| + 1). An entity
    may turn the clipped update of every sampled user that knows it, by 2β, and since a sentence counts as
    soon as any of its entities is active, q_e does not amplify. ``user_level`` adds noise z·β to the sum.
    """
    z = settings.noise_multiplier
    if settings.estimator != "user_level":
        z *= settings.users_per_round + 1
    return RoundEvent("user_level", z, q_u=settings.q_u)
