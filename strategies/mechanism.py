"""The promise of a run in one frozen object, so that sampling, clipping, noise and accounting cannot disagree."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from fl_sim.strategies.accounting import accountant
from fl_sim.strategies.accounting.accountant import Clipping
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound, PrivacyError
from fl_sim.strategies.published import PublishedSettings, PublishedTerms

StrategyName = Literal["uedp", "user_level", "published", "noiseless"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveClip:
    """The clip follows a quantile of the norms, which a noisy count per round estimates (docs/privacy.md, section 12).

    Attributes:
        quantile: γ in (0, 1), the share of items (sentences, or users where only those are clipped) that the clip is
            to leave as they are.
        learning_rate: η > 0 of the geometric step c ← c·exp(−η·(share − γ)).
        count_noise: r > 1, the noise on the count as a multiple of what would use up the whole budget z. The noise on
            the sum grows by (1 − 1/r²)^−½ in turn.

    Raises:
        PrivacyError: for a value that is impossible.
    """

    quantile: float
    learning_rate: float
    count_noise: float

    def __post_init__(self) -> None:
        _require(0 < self.quantile < 1, "clip_quantile", self.quantile, "in (0, 1)")
        _require(0 < self.learning_rate < math.inf, "clip_learning_rate", self.learning_rate, "above 0")
        _require(1 < self.count_noise < math.inf, "clip_count_noise", self.count_noise, "above 1")

    @property
    def largest_vote(self) -> float:
        """h = max(γ, 1−γ), the most that one item moves the count Σ(b − γ)."""
        return max(self.quantile, 1 - self.quantile)

    @property
    def vote_weight(self) -> float:
        """κ = 1/(r·h): a vote is the coordinate κ·c·(b − γ) of an item's vector."""
        return 1 / (self.count_noise * self.largest_vote)

    @property
    def update_weight(self) -> float:
        """a = (1 − 1/r²)^½, by which an item's own coordinates shrink to make room for the vote."""
        return math.sqrt(1 - self.count_noise**-2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """Everything public that decides how one round is computed, noised and accounted for.

    Attributes:
        strategy: ``uedp`` (clip every sentence, then every user), ``user_level`` (DP-FedAvg: clip every user's
            local training), ``published`` (the UeDP paper's algorithm), or ``noiseless`` (neither clip nor noise, no
            guarantee).
        population: N, the public number of enrolled users.
        q_u: the probability that a user is sampled in a round.
        q_e: the probability that an entity is active in a round.
        q_s: the probability that a sentence is active in a round; under ``published`` an extended entity.
        clip_norm: c, the L2 bound on one sentence's gradient (``uedp``) or on one user's update (the others); the
            first round's where the clip adapts.
        user_cap: ŵ, the user's cap per round in sentences; the user clip is β = ŵ·c.
        noise_multiplier: z; the noise on the sum has standard deviation z·β, but for ``published``
            (:meth:`~fl_sim.strategies.published.PublishedTerms.noise_per_clip`) and where the clip adapts.
        clipping: of ``uedp``: ``sentence``, or ``user`` where only the user's sum is clipped.
        adaptive: how the clip adapts; None for a fixed one.
        published: what ``published`` needs besides; None for the others.

    Raises:
        PrivacyError: for a value that is impossible, naming it and what is allowed.
    """

    strategy: StrategyName
    population: int
    q_u: float
    q_e: float
    q_s: float
    clip_norm: float
    user_cap: float
    noise_multiplier: float
    clipping: Clipping = "sentence"
    adaptive: AdaptiveClip | None = None
    published: PublishedTerms | None = None

    def __post_init__(self) -> None:
        _require(self.strategy in get_args(StrategyName), "strategy", self.strategy, ", ".join(get_args(StrategyName)))
        for name in ("q_u", "q_e", "q_s"):
            _require(0 < getattr(self, name) <= 1, name, getattr(self, name), "in (0, 1]")
        _require(self.population >= 1, "population", self.population, "an integer of at least 1")
        _require(self.clipping in get_args(Clipping), "clipping", self.clipping, ", ".join(get_args(Clipping)))
        self._check_strategy()
        if not self.private:
            return
        _require(0 < self.clip_norm < math.inf, "clip_norm", self.clip_norm, "above 0")
        _require(1 <= self.user_cap < math.inf, "user_cap", self.user_cap, "at least 1")
        _require(0 < self.noise_multiplier < math.inf, "noise_multiplier", self.noise_multiplier, "above 0")
        if self.published is not None:
            noise = self.noise_per_clip
            _require(0 < noise < math.inf, "noise_multiplier", self.noise_multiplier, "what gives a noise above 0")

    def _check_strategy(self) -> None:
        """What belongs to one strategy is not said of another."""
        named = self.strategy
        if named != "uedp":
            _require(self.clipping == "sentence", "clipping", self.clipping, f"its default under {named}")
        if named not in ("uedp", "user_level"):
            _require(self.adaptive is None, "adaptive", self.adaptive, f"nothing under {named}")
        belongs = (self.published is not None) == (named == "published")
        _require(belongs, "published", self.published, "its terms under published, nothing under the others")
        for name in {"user_level": ("q_e", "q_s", "user_cap"), "published": ("user_cap",)}.get(named, ()):
            _require(getattr(self, name) == 1, name, getattr(self, name), f"1 under {named}")

    @property
    def private(self) -> bool:
        """Whether the mechanism promises anything at all."""
        return self.strategy != "noiseless"

    @property
    def clips_sentences(self) -> bool:
        """Whether one sentence moves a user's sum by at most c."""
        return self.strategy == "uedp" and self.clipping == "sentence"

    @property
    def sentence_clip(self) -> float:
        """c, the bound on one sentence's gradient; infinite where sentences are not clipped."""
        return self.clip_norm if self.clips_sentences else math.inf

    @property
    def user_clip(self) -> float:
        """β = ŵ·c, the bound on one user's contribution to the sum (the first round's where the clip adapts)."""
        return self.user_cap * self.clip_norm if self.private else math.inf

    @property
    def noise_per_clip(self) -> float:
        """The standard deviation of the noise on every coordinate of the sum, divided by the user clip β."""
        if self.published is not None:
            return self.published.noise_per_clip(
                self.noise_multiplier, self.q_u, self.q_e, self.q_s, self.population, self.clip_norm
            )
        share = self.adaptive.update_weight if self.adaptive is not None else 1.0
        return self.noise_multiplier / share if self.private else 0.0

    @property
    def noise_std(self) -> float:
        """The standard deviation of the noise on every coordinate of the sum (the first round's)."""
        return self.noise_per_clip * self.user_clip if self.private else 0.0

    @property
    def items_per_user(self) -> float:
        """How many items with a vote on the clip a full user counts for: ŵ sentences, or itself."""
        return self.user_cap if self.clips_sentences else 1.0

    @property
    def expected_cohort(self) -> float:
        """q_u·N, the public expectation of a cohort's size."""
        return self.q_u * self.population

    @property
    def denominator(self) -> float:
        """What the sum is divided by: public, never the realised size of a cohort."""
        if self.published is not None:
            return self.published.denominator(self.q_u, self.q_e, self.q_s)
        return self.expected_cohort

    def event(self) -> accountant.RoundEvent:
        """What one round releases, as the accountant needs it."""
        if not self.private:
            raise PrivacyError("strategy is noiseless; allowed: those with noise (only these can be accounted for)")
        if self.published is not None:  # any sentence with the entity may turn a user's update: q_e amplifies nothing
            return accountant.RoundEvent("user_level", self.noise_per_clip, q_u=self.q_u)
        return accountant.RoundEvent(
            strategy="uedp" if self.strategy == "uedp" else "user_level",
            noise_multiplier=self.noise_multiplier,
            q_u=self.q_u,
            q_e=self.q_e,
            q_s=self.q_s,
            user_cap=self.user_cap,
            clipping=self.clipping,
        )

    def exposed(self, adjacency: Adjacency) -> Adjacency:
        """Whom ε is computed for where ``adjacency`` is meant: everybody where weights depend on other users' data."""
        if self.published is None or not self.published.weights_from_data:
            return adjacency
        return replace(adjacency, entity_bound=ContributionBound(users=self.population, sentences_per_user=1))

    def claim(self) -> PublishedSettings | None:
        """The training as the paper's accountant reads it; None for what is not the paper's algorithm."""
        if self.published is None:
            return None
        return PublishedSettings(
            estimator=self.published.estimator,
            users=self.population,
            users_per_round=self.expected_cohort,
            noise_multiplier=self.noise_multiplier,
            q_e=self.q_e,
            sentences=self.published.sentences,
            sensitive_sentences=self.published.sensitive_sentences,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyPlan(Mechanism):
    """A run's mechanism, how often it is used, and the δ at which it is stated.

    Attributes:
        rounds: T, how many rounds may be released.
        delta: the δ at which every ε is stated.
    """

    rounds: int
    delta: float

    def __post_init__(self) -> None:
        Mechanism.__post_init__(self)  # a class with slots is made anew, which the short super() would not know
        _require(self.rounds >= 1, "rounds", self.rounds, "an integer of at least 1")
        _require(0 < self.delta < 1, "delta", self.delta, "in (0, 1)")

    def epsilon_curve(
        self, adjacency: Adjacency, rounds: Sequence[int], *, robust: bool = False
    ) -> npt.NDArray[np.float64]:
        """ε at the plan's δ after each number of ``rounds``; infinite without noise.

        Args:
            adjacency: who is protected: a user with at most n' sentences, an entity of at most some reach.
            rounds: the numbers of rounds at which ε is wanted.
            robust: state the bound that does not rely on the entity having been detected (q_e := 1).
        """
        if not self.private:
            return np.full(len(rounds), math.inf)
        event = self.event().robust() if robust else self.event()
        return accountant.epsilon_curve(event, self.exposed(adjacency), rounds, self.delta)


PARTS: dict[str, type[AdaptiveClip] | type[PublishedTerms]] = {"adaptive": AdaptiveClip, "published": PublishedTerms}
"""The fields of a mechanism that have fields of their own."""


def from_record(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a mechanism as JSON keeps them (``dataclasses.asdict``), with objects for those of :data:`PARTS`.

    Raises:
        PrivacyError: for a value that is impossible.
        TypeError: for other fields than a part has, or of another kind.
    """
    return {
        name: PARTS[name](**value) if name in PARTS and value is not None else value for name, value in values.items()
    }


def _require(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise PrivacyError(f"{name} is {value}; allowed: {allowed}")
