"""Strategies by name."""

from __future__ import annotations

from collections.abc import Callable

from strategies.baselines import LocalTrainingConfig, Noiseless, UserLevelDP
from strategies.plan import PrivacyPlan
from strategies.rounds import BoundedSumStrategy, Federation
from strategies.server_optimizer import ServerOptimizer
from strategies.uedp import UserEntityDP


def build_strategy(
    plan: PrivacyPlan,
    federation: Federation,
    optimizer: ServerOptimizer,
    local: LocalTrainingConfig,
    should_stop: Callable[[], bool] = lambda: False,
    before_release: Callable[[int], None] = lambda server_round: None,
    secure_noise: bool = False,
) -> BoundedSumStrategy:
    """The strategy that ``plan.strategy`` names; the arguments are those of :class:`BoundedSumStrategy`."""
    if plan.strategy == "uedp":
        return UserEntityDP(plan, federation, optimizer, should_stop, before_release, secure_noise)
    kind = UserLevelDP if plan.strategy == "user_level" else Noiseless
    return kind(plan, federation, optimizer, local, should_stop, before_release, secure_noise)
