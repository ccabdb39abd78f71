"""Define ``user_level``: DP-FedAvg and DP-FedSGD (McMahan et al. 2018).

Each user is sampled independently, and the whole client update is clipped to β = c: θ_u − θ after local steps, or the
sum of the user's gradients.

Guarantee: (ε, δ) for one user by the subsampled Gaussian mechanism (docs/privacy.md, section 7). An entity is protected
only as a group of the users who mention it. Assumption: rates, clip, z and N are public.

>>> from fl_sim.strategies.accounting.adjacency import Adjacency
>>> from fl_sim.strategies.mechanism import PrivacyPlan
>>> mechanism = UserLevelDP(
...     population=1000, q_u=0.05, q_e=1.0, q_s=1.0, clip_norm=0.5, user_cap=1.0, noise_multiplier=1.0)
>>> mechanism.client_rule(clip_norm=0.5).user_clip, mechanism.denominator
(0.5, 50.0)
>>> PrivacyPlan(mechanism=mechanism, rounds=10, delta=1e-5).epsilon_curve(Adjacency(), [1, 10]).round(2)
array([1.03, 1.66])
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.client_rules import ClientRule
from fl_sim.strategies.local_training import LOCAL_STEPS, LocalTrainingConfig, gradients_or_steps
from fl_sim.strategies.mechanism import Mechanism, Settings, UnreadSettings


@dataclass(frozen=True, kw_only=True)
class UserLevelDP(Mechanism):
    """Clip each client update as a whole and sample users only.

    Attributes:
        local: how users train; ε does not depend on it, so records of the mechanism omit it.
    """

    defaults: ClassVar = {
        "q_u": 0.05,
        "q_e": 1.0,
        "q_s": 1.0,
        "clip_norm": 1.0,
        "user_cap": 1.0,
        "noise_multiplier": 1.0,
    }
    keys = ("clip_quantile", "clip_learning_rate", "clip_count_noise")
    fixed_at_one = ("q_e", "q_s", "user_cap")
    protects = "one user: all of the user's sentences (entities only through the users who mention them)"
    headline = "epsilon_user"

    strategy: str = "user_level"
    local: LocalTrainingConfig = field(default_factory=LocalTrainingConfig, compare=False)

    @classmethod
    def own_fields(cls, settings: Settings) -> dict[str, Any]:
        return {"local": settings.local}

    @classmethod
    def unread(cls, strategy: str, local: LocalTrainingConfig) -> Iterator[UnreadSettings]:
        if local.update == "gradients":
            yield "local", LOCAL_STEPS, "users take no local steps, they send gradients"

    def client_rule(self, clip_norm: float) -> ClientRule:
        return gradients_or_steps(self.local.update or "steps", self.local, self.bounds(clip_norm))

    def event(self) -> RoundEvent:
        return RoundEvent("user_level", self.noise_multiplier, q_u=self.q_u)
