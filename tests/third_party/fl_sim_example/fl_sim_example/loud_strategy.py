"""User-level DP with twice the noise: what changes a shipped strategy is one class."""

from __future__ import annotations

from dataclasses import dataclass

from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.user_level import UserLevelDP


@dataclass(frozen=True, kw_only=True)
class LoudUserLevel(UserLevelDP):
    """The noise has standard deviation 2·z·β."""

    defaults = UserLevelDP.defaults | {"q_u": 0.5}

    @property
    def noise_per_clip(self) -> float:
        return 2 * self.noise_multiplier

    def event(self) -> RoundEvent:
        return RoundEvent("user_level", self.noise_per_clip, q_u=self.q_u)
