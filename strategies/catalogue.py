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
) -> BoundedSumStrategy:
    """The strategy that ``plan.strategy`` names."""
    if plan.strategy == "uedp":
        return UserEntityDP(plan, federation, optimizer, should_stop)
    if plan.strategy == "user_level":
        return UserLevelDP(plan, federation, optimizer, local, should_stop)
    return Noiseless(plan, federation, optimizer, local, should_stop)
