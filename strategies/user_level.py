"""Define ``user_level``: DP-FedAvg and DP-FedSGD (McMahan et al. 2018).

Each user is sampled independently, and the whole client update is clipped to β = c: θ_u − θ after local steps, or the
sum of the user's gradients. With ``privacy.sampling = "random_allocation"`` each user takes part in exactly one of
every ``privacy.epoch_rounds`` rounds instead.

Guarantee: (ε, δ) for one user by the subsampled Gaussian mechanism (docs/privacy-accounting.md, section 7), or by
random allocation (section 16). An entity is protected only as a group of the users who mention it. Assumption: rates,
clip, z and N are public.

>>> mechanism = UserLevelDP(
...     population=1000, q_u=0.05, q_e=1.0, q_s=1.0, clip_norm=0.5, user_cap=1.0, noise_multiplier=1.0)
>>> mechanism.client_rule(clip_norm=0.5).user_clip, mechanism.denominator
(0.5, 50.0)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from fl_sim.strategies.accounting import random_allocation
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.client_rules import ClientRule
from fl_sim.strategies.mechanism import (
    LOCAL_STEPS,
    LocalTrainingConfig,
    Mechanism,
    Settings,
    UnreadSettings,
    gradients_or_steps,
)
from fl_sim.strategies.primitives import sampling
from fl_sim.strategies.primitives.limits import MOST_EPOCH_ROUNDS, PrivacyError
from fl_sim.strategies.privacy_config import GaussianSumConfig, PrivacyConfig


class UserLevelConfig(GaussianSumConfig):
    """Declare the keys of ``[privacy]`` that ``user_level`` reads."""

    sampling: Literal["poisson", "random_allocation"] = Field(
        "poisson",
        description="users are sampled independently in every round (`poisson`), or each takes part in one round of "
        "every epoch, chosen uniformly (`random_allocation`), which gives a smaller ε",
    )
    epoch_rounds: int | None = Field(
        None, ge=1, le=MOST_EPOCH_ROUNDS, description="t of random_allocation, the rounds of an epoch; q_u is 1/t"
    )

    @model_validator(mode="after")
    def _epochs_are_those_of_random_allocation(self) -> UserLevelConfig:
        if self.sampling == "poisson":
            if self.epoch_rounds is not None:
                raise ValueError(
                    f"privacy.epoch_rounds is {self.epoch_rounds}; allowed: with sampling = random_allocation only"
                )
            return self
        if self.epoch_rounds is None:
            raise ValueError("privacy.epoch_rounds is missing; allowed: a number of rounds, with random_allocation")
        if self.q_u is not None:
            try:
                random_allocation.check_epoch(self.epoch_rounds, self.q_u, "user_level")
            except PrivacyError as error:
                raise ValueError(f"privacy.{error}") from error
        if self.secure_noise:
            raise ValueError(
                "privacy.secure_noise is true and privacy.sampling is random_allocation; allowed: sampling = poisson, "
                "because a process that goes on after a crash would allocate its users afresh"
            )
        return self


@dataclass(frozen=True, kw_only=True)
class UserLevelDP(Mechanism):
    """Clip each client update as a whole and sample users only.

    Attributes:
        local: how users train; ε does not depend on it, so records of the mechanism omit it.
        epoch_rounds: t of random allocation, with q_u = 1/t; None for users who are sampled independently.
    """

    defaults: ClassVar = Mechanism.defaults | {"q_u": 0.05}
    Config = UserLevelConfig
    fixed_at_one = ("q_e", "q_s", "user_cap")
    protects = "one user: all of the user's sentences (entities only through the users who mention them)"
    headline = "epsilon_user"

    strategy: str = "user_level"
    local: LocalTrainingConfig = field(default_factory=LocalTrainingConfig, compare=False)
    epoch_rounds: int | None = None

    def check(self) -> None:
        super().check()
        if self.epoch_rounds is not None:
            random_allocation.check_epoch(self.epoch_rounds, self.q_u, "user_level")

    @classmethod
    def numbers(cls, privacy: PrivacyConfig) -> dict[str, float]:
        epoch_rounds = privacy.epoch_rounds if isinstance(privacy, UserLevelConfig) else None
        return super().numbers(privacy) | ({} if epoch_rounds is None else {"q_u": 1 / epoch_rounds})

    @classmethod
    def own_fields(cls, settings: Settings) -> dict[str, object]:
        return super().own_fields(settings) | {"local": settings.local}

    @classmethod
    def unread(cls, strategy: str, local: LocalTrainingConfig) -> Iterator[UnreadSettings]:
        if local.update == "gradients":
            yield "local", LOCAL_STEPS, "users take no local steps, they send gradients"

    def client_rule(self, clip_norm: float) -> ClientRule:
        return gradients_or_steps(self.local.update or "steps", self.local, self.bounds(clip_norm))

    def cohort(self, seed: int, server_round: int, num_users: int) -> npt.NDArray[np.int64]:
        if self.epoch_rounds is None:
            return super().cohort(seed, server_round, num_users)
        return sampling.allocated_users(seed, server_round, num_users, self.epoch_rounds)

    def event(self) -> RoundEvent:
        return RoundEvent("user_level", self.noise_multiplier, q_u=self.q_u, epoch_rounds=self.epoch_rounds)

    def rates_in_words(self) -> tuple[str, ...]:
        if self.epoch_rounds is None:
            return super().rates_in_words()
        return (f"each user in one of every {self.epoch_rounds} rounds (random allocation)",)
