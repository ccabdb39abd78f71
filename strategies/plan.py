"""The promise of a run in one frozen object, so that sampling, clipping, noise and accounting cannot disagree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from strategies import accounting
from strategies.units import Adjacency, PrivacyError

StrategyName = Literal["uedp", "user_level", "noiseless"]


@dataclass(frozen=True, slots=True)
class PrivacyPlan:
    """Everything public that decides how a round is computed, noised and accounted for.

    Attributes:
        strategy: ``uedp`` (clip every sentence, then every user), ``user_level`` (DP-FedAvg: clip every user's
            local training), or ``noiseless`` (neither clip nor noise, no guarantee).
        population: N, the public number of enrolled users; the round's sum is divided by ``q_u * population``.
        q_u: the probability that a user is sampled in a round.
        q_e: the probability that an entity is active in a round.
        q_s: the probability that a sentence is active in a round.
        clip_norm: c, the L2 bound on one sentence's gradient (``uedp``) or on one user's update (``user_level``).
        user_cap: ŵ, the user's cap per round in sentences; the user clip is β = ŵ·c.
        noise_multiplier: z; the noise on the sum has standard deviation z·β.
        rounds: T, how many rounds may be released.
        delta: the δ at which every ε is stated.

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
    rounds: int
    delta: float

    def __post_init__(self) -> None:
        for name in ("q_u", "q_e", "q_s"):
            _require(0 < getattr(self, name) <= 1, name, getattr(self, name), "in (0, 1]")
        _require(self.population >= 1, "population", self.population, "an integer of at least 1")
        _require(self.rounds >= 1, "rounds", self.rounds, "an integer of at least 1")
        _require(0 < self.delta < 1, "delta", self.delta, "in (0, 1)")
        if self.strategy == "noiseless":
            return
        _require(0 < self.clip_norm < math.inf, "clip_norm", self.clip_norm, "above 0")
        _require(1 <= self.user_cap < math.inf, "user_cap", self.user_cap, "at least 1")
        _require(0 < self.noise_multiplier < math.inf, "noise_multiplier", self.noise_multiplier, "above 0")
        if self.strategy == "user_level":
            for name in ("q_e", "q_s", "user_cap"):
                _require(getattr(self, name) == 1, name, getattr(self, name), "1 under user_level")

    @property
    def private(self) -> bool:
        """Whether the plan promises anything at all."""
        return self.strategy != "noiseless"

    @property
    def sentence_clip(self) -> float:
        """c, the bound on one sentence's gradient; infinite where sentences are not clipped."""
        return self.clip_norm if self.strategy == "uedp" else math.inf

    @property
    def user_clip(self) -> float:
        """β = ŵ·c, the bound on one user's contribution to the sum."""
        return self.user_cap * self.clip_norm if self.private else math.inf

    @property
    def noise_std(self) -> float:
        """z·β, the standard deviation of the noise on every coordinate of the sum."""
        return self.noise_multiplier * self.user_clip if self.private else 0.0

    @property
    def expected_cohort(self) -> float:
        """q_u·N, the public denominator of the average; never the realised size of a cohort."""
        return self.q_u * self.population

    def event(self) -> accounting.RoundEvent:
        """What one round releases, as the accountant needs it."""
        if not self.private:
            raise PrivacyError("strategy is noiseless; allowed: uedp, user_level (only these can be accounted for)")
        return accounting.RoundEvent(
            strategy="uedp" if self.strategy == "uedp" else "user_level",
            noise_multiplier=self.noise_multiplier,
            q_u=self.q_u,
            q_e=self.q_e,
            q_s=self.q_s,
            user_cap=self.user_cap,
        )

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
        return accounting.epsilon_curve(event, adjacency, rounds, self.delta)


def _require(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise PrivacyError(f"{name} is {value}; allowed: {allowed}")
