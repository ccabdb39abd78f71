"""``user_level``: DP-FedAvg and DP-FedSGD (McMahan et al. 2018).

Users are sampled independently, and the user's update as a whole is clipped to β = c: the way its local steps went, or
the sum of its gradients. Entities are protected only through the users who mention them.

>>> rates = {"q_u": 0.05, "q_e": 1.0, "q_s": 1.0}
>>> mechanism = UserLevelDP(population=946, clip_norm=1.0, user_cap=1.0, noise_multiplier=1.0, **rates)
>>> mechanism.describe().settings
('q_u 0.05', 'user clip β 1', 'noise multiplier z 1 (noise 1 on the sum)')
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
    """User-level differential privacy on the same machinery as ``uedp``.

    Attributes:
        local: how users train. ε does not depend on it, so that no record of the mechanism has it.
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
