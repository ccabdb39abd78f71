"""What ``uedp`` is compared with, on the same machinery: user-level DP-FedAvg, and no privacy at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from strategies.messages import LocalRule
from strategies.plan import PrivacyPlan
from strategies.rounds import BoundedSumStrategy, Federation
from strategies.server_optimizer import ServerOptimizer


class LocalTrainingConfig(BaseModel):
    """How a sampled user trains where the strategy lets it take several steps."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    update: Literal["gradients", "steps"] | None = Field(
        None, description="noiseless only: per-sentence gradients (as uedp) or local steps (as user_level)"
    )
    epochs: int = Field(1, ge=1, description="passes over the user's sentences")
    batch_size: int = Field(8, ge=1, description="sentences per local step")
    learning_rate: float = Field(0.5, gt=0, description="step size of local SGD")


class _LocalTrainingStrategy(BoundedSumStrategy):
    """A strategy whose users may take several local steps."""

    def __init__(
        self,
        plan: PrivacyPlan,
        federation: Federation,
        optimizer: ServerOptimizer,
        local: LocalTrainingConfig,
        should_stop: Callable[[], bool] = lambda: False,
        before_release: Callable[[int], None] = lambda server_round: None,
        secure_noise: bool = False,
    ) -> None:
        super().__init__(plan, federation, optimizer, should_stop, before_release, secure_noise)
        self.local = local

    def _rule(self, update: str) -> LocalRule:
        return LocalRule(
            update=update,
            q_e=self.plan.q_e,
            q_s=self.plan.q_s,
            sentence_clip=self.plan.sentence_clip,
            user_clip=self.plan.user_clip,
            local_epochs=self.local.epochs,
            batch_size=self.local.batch_size,
            learning_rate=self.local.learning_rate,
        )


class UserLevelDP(_LocalTrainingStrategy):
    """DP-FedAvg (McMahan et al. 2018): several local steps, the user's update clipped to β, Poisson users."""

    def local_rule(self) -> LocalRule:
        return self._rule("steps")


class Noiseless(_LocalTrainingStrategy):
    """The upper bound of utility: the same rounds without clip and noise. It protects nobody."""

    def local_rule(self) -> LocalRule:
        return self._rule(self.local.update or "gradients")
