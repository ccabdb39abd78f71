"""The ε of the published algorithm as its paper computes it, and the round that the algorithm really is.

"User-entity differential privacy in learning natural language models" states ε without saying how it was
computed. Its figures are those of the moments accountant of Abadi et al. (2016, arXiv 1607.00133) with
integer orders 1 to 64, noise multiplier z and a sampling probability that multiplies the users', the entities'
and the sensitive share. That ε is not a guarantee (docs/privacy.md, section 3); :func:`proven_event` describes
the same mechanism in terms for which one is proven.
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
from fl_sim.strategies.accounting.adjacency import PrivacyError

Estimator = Literal["f_e", "f_e_plus", "user_level"]
NoiseScale = Literal["as-stated", "as-coded"]

_ORDERS = range(1, 65)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTerms:
    """What the paper's algorithm needs beside rates, β and z: its estimator, its weights, its noise.

    The weights are w_u = min(n_u/ŵ_u, 1), w_e = min(n_e/ŵ_e, 1), w_s = min(|S|/ŵ_s, 1); without a cap they are 1, as
    in the authors' code. Their sums are taken as public.

    Attributes:
        estimator: ``f_e`` (only sentences with a sampled entity) or ``f_e_plus`` (sampled extended entities too).
        noise: ``as-stated`` (standard deviation σ) or ``as-coded`` (σ², what the authors' code draws).
        user_weights, entity_weights, extended_weights: W_u, W_e, W_s.
        sentences, sensitive_sentences: all, and those with an entity; only the paper's own ε needs them.
        user_cap, entity_cap, extended_cap: ŵ_u, ŵ_e, ŵ_s; None for weights of 1.

    Raises:
        PrivacyError: if a value is impossible.
    """

    estimator: Estimator
    noise: NoiseScale
    user_weights: float
    entity_weights: float
    extended_weights: float
    sentences: int
    sensitive_sentences: int
    user_cap: float | None = None
    entity_cap: float | None = None
    extended_cap: float | None = None

    def __post_init__(self) -> None:
        if self.estimator not in ("f_e", "f_e_plus"):
            raise PrivacyError(f"estimator is {self.estimator!r}; allowed: 'f_e', 'f_e_plus'")
        if self.noise not in get_args(NoiseScale):
            raise PrivacyError(f"noise is {self.noise!r}; allowed: {', '.join(map(repr, get_args(NoiseScale)))}")
        for name in ("user_weights", "entity_weights"):
            if not 0 < getattr(self, name) < math.inf:
                raise PrivacyError(f"{name} is {getattr(self, name)}; allowed: finite and above 0")
        if not 0 <= self.extended_weights < math.inf:
            raise PrivacyError(f"extended_weights is {self.extended_weights}; allowed: finite and at least 0")
        for name in ("user_cap", "entity_cap", "extended_cap"):
            cap = getattr(self, name)
            if cap is not None and not 0 < cap < math.inf:
                raise PrivacyError(f"{name} is {cap}; allowed: finite and above 0, or nothing")

    @property
    def weights_from_data(self) -> bool:
        """Whether a user's share depends on other users' data, so that one of them moves everybody's."""
        return any(cap is not None for cap in (self.user_cap, self.entity_cap, self.extended_cap))

    def denominator(self, q_u: float, q_e: float, q_s: float) -> float:
        """D = q_u·W_u·(q_e·W_e + q_s·W_s), without the last term for ``f_e``."""
        extended = q_s * self.extended_weights if self.estimator == "f_e_plus" else 0.0
        return q_u * self.user_weights * (q_e * self.entity_weights + extended)

    def noise_per_clip(self, z: float, q_u: float, q_e: float, q_s: float, users: int, user_clip: float) -> float:
        """The standard deviation of the noise on the sum of weighted updates, divided by β.

        σ = z·(q_u·|U| + 1)·max(w_u)·β / D belongs to the average, with max(w_u) = 1. On the sum, before the division
        by D, that is z·(q_u·|U| + 1)·β as stated, and σ²·D as coded.
        """
        stated = z * (q_u * users + 1)
        if self.noise == "as-stated":
            return stated
        return stated**2 * user_clip / self.denominator(q_u, q_e, q_s)


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
    return float(curve_as_published(settings, [rounds], delta)[0])


def curve_as_published(settings: PublishedSettings, rounds: Sequence[int], delta: float) -> npt.NDArray[np.float64]:
    """:func:`epsilon_as_published` after each number of ``rounds``; 0 after none."""
    orders = np.array(_ORDERS, dtype=np.float64)
    moments = np.array([log_moment(settings.claimed_rate, settings.noise_multiplier, order) for order in _ORDERS])
    counts = np.asarray(rounds, dtype=np.float64)
    claimed = ((counts[:, None] * moments - math.log(delta)) / orders).min(axis=1)
    return np.where(counts > 0, claimed, 0.0)


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
